"""The changes of one moment, gathered until they are stored, and the messages to send once they are."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from asynsched.channels import TriggerUnwanted, TriggerWanted, TryUnwanted
from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.changes import (
    Change,
    Killed,
    NewInstances,
    Row,
    RunChange,
    Stopped,
    TaskChange,
    TryResult,
)
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.rules.run_end import RunStop
from asynsched.states import FINISHED_RUN_STATES, TaskInstanceState
from asynsched.store.assets import AssetEventRow
from asynsched.store.runs.transitions import (
    Batch,
    ExpandedWrite,
    RenderedFieldsWrite,
    RunWrite,
    TaskRowKey,
    TaskWrite,
    XComDeletion,
    XComWrite,
)
from asynsched.store.schema import CallbackRequest, HistoryRow

BATCHING_DELAY = timedelta(milliseconds=20)
"""How long the start of a try waits to be stored together with other changes."""


@dataclass(slots=True)
class PendingBatch:
    """Gathers changes. A task that changes several times before it is stored is written once.

    Attributes:
        ends: The ends of tries that caused these changes, each with its task; None: no task waited for it.
        results: The decisions on the ends that a task waited for, and on triggers that ended a task.
        n_stale: How many messages came too late to mean anything, or changes that the database refused as too late.
    """

    scheduler_id: str
    lease_epoch: int
    tasks: dict[int, ActiveTask] = field(default_factory=dict)
    runs: dict[int, ActiveRun] = field(default_factory=dict)
    expanded: list[ExpandedWrite] = field(default_factory=list)
    history: list[HistoryRow] = field(default_factory=list)
    forgotten: list[XComDeletion] = field(default_factory=list)
    xcoms: dict[TaskRowKey, list[XComWrite]] = field(default_factory=dict)
    rendered: list[RenderedFieldsWrite] = field(default_factory=list)
    callbacks: list[CallbackRequest] = field(default_factory=list)
    asset_events: list[AssetEventRow] = field(default_factory=list)
    granted: list[ActiveTask] = field(default_factory=list)
    ended_runs: list[ActiveRun] = field(default_factory=list)
    ends: list[tuple[Ended, ActiveTask | None]] = field(default_factory=list)
    results: list[TryResult] = field(default_factory=list)
    unwanted: list[tuple[str, str]] = field(default_factory=list)
    triggers: list[TriggerWanted | TriggerUnwanted] = field(default_factory=list)
    n_stale: int = 0
    held_since: datetime | None = None

    def note(self, change: Change) -> None:
        if isinstance(change, TaskChange):
            self.tasks[id(change.task)] = change.task
            for row in change.rows:
                self._add(row)
            if change.result is not None:
                self.results.append(change.result)
            if change.before is TaskInstanceState.SCHEDULED and change.state is TaskInstanceState.QUEUED:
                self.granted.append(change.task)
        elif isinstance(change, RunChange):
            self._note_run(change)
        elif isinstance(change, NewInstances):
            self._note_instances(change)
        elif isinstance(change, Stopped):
            self.runs[change.run.id] = change.run
        elif isinstance(change, Killed):
            self.unwanted.append((change.token, change.reason))

    def _note_run(self, change: RunChange) -> None:
        run = change.run
        if change.before is not change.state:
            self.runs[run.id] = run
        for row in change.rows:
            self._add(row)
        if change.state in FINISHED_RUN_STATES:
            self.ended_runs.append(run)
        else:
            self.tasks.update((id(task), task) for task in run.all_instances() if not task.is_stored)

    def _note_instances(self, change: NewInstances) -> None:
        self.tasks.update((id(task), task) for task in change.new or ())
        if (gone := change.gone) is not None:
            self.tasks.pop(id(gone), None)
            if gone.is_stored:
                self.expanded.append(ExpandedWrite(gone.run.id, gone.task_id, gone.map_index, gone.stored_state))

    def _add(self, row: Row) -> None:
        match row:
            case HistoryRow():
                self.history.append(row)
            case XComDeletion(run_id, task_id, map_index):
                # No XCom of the task instance remains, neither those gathered here nor those in the database.
                self.xcoms.pop((run_id, task_id, map_index), None)
                self.forgotten.append(row)
            case XComWrite():
                self.xcoms.setdefault((row.dag_run_id, row.task_id, row.map_index), []).append(row)
            case RenderedFieldsWrite():
                self.rendered.append(row)
            case CallbackRequest():
                self.callbacks.append(row)
            case AssetEventRow():
                self.asset_events.append(row)

    def say(self, message: TryUnwanted | TriggerWanted | TriggerUnwanted) -> None:
        """Gather a message to send once all is stored."""
        if isinstance(message, TryUnwanted):
            self.unwanted.append((message.token, message.reason))
        else:
            self.triggers.append(message)

    @property
    def is_urgent(self) -> bool:
        """Whether this must be stored soon; the start of a try can wait for other changes."""
        if self.runs or self.granted or self.callbacks or self.unwanted or self.ends or self.triggers:
            return True
        return any(task.state is not TaskInstanceState.RUNNING for task in self.tasks.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store or say."""
        return not (self.tasks or self.runs or self.ends or self.unwanted or self.callbacks or self.triggers)

    def waits_for_more(self, now: datetime) -> bool:
        """Whether to delay storing this: it holds only recent starts of tries."""
        if self.is_empty or self.is_urgent:
            return False
        self.held_since = self.held_since or now
        # A `held_since` in the future does not count: the clock may have been set back.
        return self.held_since <= now < self.held_since + BATCHING_DELAY

    @property
    def due_at(self) -> datetime | None:
        """When the delay ends; None when nothing is delayed."""
        return None if self.held_since is None else self.held_since + BATCHING_DELAY

    def task_rows(self) -> Iterator[tuple[ActiveTask, TaskWrite]]:
        """Yield the changed task instances with their rows, in key order."""
        for task in sorted(self.tasks.values(), key=lambda task: task.row_key):
            yield task, _task_row(task)

    def batch(self, task_rows: Iterable[tuple[ActiveTask, TaskWrite]] | None = None) -> Batch:
        """Return the rows to write, in key order; pass `task_rows` if they were made before."""
        rows = list(self.task_rows() if task_rows is None else task_rows)
        return Batch(
            lease_epoch=self.lease_epoch,
            runs=[self._run_row(self.runs[run_id]) for run_id in sorted(self.runs)],
            expanded=self.expanded,
            new_tasks=[row for task, row in rows if not task.is_stored],
            tasks=[row for task, row in rows if task.is_stored],
            history=self.history,
            forgotten=self.forgotten,
            xcoms=[xcom for xcoms in self.xcoms.values() for xcom in xcoms],
            rendered=self.rendered,
            callbacks=self.callbacks,
            asset_events=self.asset_events,
        )

    def take_refused(self, refused: Collection[TaskRowKey]) -> list[ActiveTask]:
        """Remove the grants that were stored as refused, and return their task instances."""
        taken = [task for task in self.granted if task.row_key in refused]
        self.granted = [task for task in self.granted if task not in taken]
        return taken

    def mark_stored(self) -> None:
        for task in self.tasks.values():
            task.stored_state, task.stored_try, task.is_stored = task.state, task.try_number, True
        for run in self.runs.values():
            run.stored_state = run.state
            run.stored_epoch = self.lease_epoch

    def clear(self) -> None:
        """Begin to gather the next moment's changes."""
        for gathered in (
            self.tasks, self.runs, self.expanded, self.history, self.forgotten, self.xcoms, self.rendered,
            self.callbacks, self.asset_events, self.granted, self.ended_runs, self.ends, self.results, self.unwanted,
            self.triggers,
        ):  # fmt: skip
            gathered.clear()
        self.held_since = None

    def _run_row(self, run: ActiveRun) -> RunWrite:
        return RunWrite(
            run.id, run.stored_state, run.stored_epoch, run.state, run.reason, run.started_at, run.ended_at,
            run.version_id, self.scheduler_id, self.lease_epoch, run.queued_at, _json(run.stop),
        )  # fmt: skip


def _task_row(task: ActiveTask) -> TaskWrite:
    return TaskWrite(
        task.run.id, task.task_id, task.map_index, task.stored_state, task.stored_try, task.state, task.reason,
        task.try_number, task.max_tries, task.machine_kills, task.token, task.scheduled_at, task.queued_at,
        task.started_at, task.ended_at, task.next_try_at, task.rendered_map_index, task.result_length,
        task.route.priority_weight, task.route.pool, task.route.pool_slots, task.route.queue, task.route.executor,
        _json(task.deferral), " ".join(sorted(task.ignored)) or None,
    )  # fmt: skip


def _json(value: Struct | RunStop | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
