"""The changes of one moment, gathered until they are stored, and what is to be said once they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from asynsched.channels import TriggerUnwanted, TriggerWanted
from asynsched.protocol.messages import CausingTry, Ended, OutletEvent, RaisedException
from asynsched.scheduling.evaluation.deferral import encoded
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.rules.outlet_events import updates_of
from asynsched.scheduling.rules.run_state import RunEndCause
from asynsched.scheduling.rules.run_stop import encoded as encoded_stop
from asynsched.scheduling.rules.try_end import TryOutcome
from asynsched.serialization.schema import CallbackEvent
from asynsched.states import TaskInstanceState
from asynsched.store.runs.changes import (
    AssetEventRow,
    Batch,
    CallbackRow,
    ExpandedRow,
    ForgottenRow,
    HistoryRow,
    RunRow,
    TaskRow,
    XComRow,
)

SKIPMIXIN_KEY = "skipmixin_key"
"""XCom key under which a branch's or short circuit's decision is kept (Airflow's name)."""
COMPANY = timedelta(milliseconds=20)
"""How long the news that a try has begun waits for something else to be stored with."""


class TryResult(NamedTuple):
    """How a try has ended, and what was decided about its task instance, which may have gone on since."""

    task: ActiveTask
    try_number: int
    ended: Ended
    outcome: TryOutcome


@dataclass(slots=True)
class PendingBatch:
    """Gathers changes. A task that changes several times before it is stored is written once.

    Attributes:
        ends: The ends of tries that these changes follow from, each with its task; None: nobody waited for it.
        results: What was decided about those that somebody waited for, and about triggers that ended a task.
    """

    scheduler_id: str
    lease_epoch: int
    tasks: dict[int, ActiveTask] = field(default_factory=dict)
    runs: dict[int, ActiveRun] = field(default_factory=dict)
    expanded: list[ExpandedRow] = field(default_factory=list)
    history: list[HistoryRow] = field(default_factory=list)
    forgotten: list[ForgottenRow] = field(default_factory=list)
    xcoms: list[XComRow] = field(default_factory=list)
    callbacks: list[CallbackRow] = field(default_factory=list)
    asset_events: list[AssetEventRow] = field(default_factory=list)
    granted: list[ActiveTask] = field(default_factory=list)
    ended_runs: list[ActiveRun] = field(default_factory=list)
    ends: list[tuple[Ended, ActiveTask | None]] = field(default_factory=list)
    results: list[TryResult] = field(default_factory=list)
    unwanted: list[tuple[str, str]] = field(default_factory=list)
    triggers: list[TriggerWanted | TriggerUnwanted] = field(default_factory=list)
    n_stale: int = 0
    held_since: datetime | None = None

    def touch(self, task: ActiveTask) -> None:
        """Note that a task instance is new or about to change."""
        self.tasks[id(task)] = task

    def expand(self, unexpanded: ActiveTask | None, instances: Iterable[ActiveTask]) -> None:
        """Note that instances are new, and that the unexpanded one, if there was one, is no more."""
        if unexpanded is not None:
            self.tasks.pop(id(unexpanded), None)
            if unexpanded.is_stored:
                run, state = unexpanded.run, unexpanded.stored_state
                self.expanded.append(ExpandedRow(run.id, unexpanded.task_id, unexpanded.map_index, state))
        for task in instances:
            self.touch(task)

    def touch_run(self, run: ActiveRun) -> None:
        """Note that a run is about to change."""
        self.runs[run.id] = run

    def count_stale(self, n: int = 1) -> None:
        """Note that messages came too late to mean anything, or changes that the database has refused for that."""
        self.n_stale += n

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for this to be stored; that a try has begun can wait for company."""
        if self.runs or self.granted or self.callbacks or self.unwanted or self.ends or self.triggers:
            return True
        return any(task.state is not TaskInstanceState.RUNNING for task in self.tasks.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store or say."""
        return not (self.tasks or self.runs or self.ends or self.unwanted or self.callbacks or self.triggers)

    def waits_for_company(self, now: datetime) -> bool:
        """Whether this is not to be stored yet: it is but the news that tries have begun, and young."""
        if self.is_empty or self.is_urgent:
            return False
        self.held_since = self.held_since or now
        # Not what lies in the future either: the clock may have been set back.
        return self.held_since <= now < self.held_since + COMPANY

    @property
    def due_at(self) -> datetime | None:
        """When that has waited long enough."""
        return None if self.held_since is None else self.held_since + COMPANY

    def keep_try(self, task: ActiveTask, reason: str) -> None:
        """Put a failed try that will be followed by another one into the history."""
        self.history.append(
            HistoryRow(
                task.run.id, task.task_id, task.map_index, task.try_number, TaskInstanceState.FAILED, reason,
                task.token, task.scheduled_at, task.queued_at, task.started_at, task.ended_at,
            )
        )  # fmt: skip

    def forget_xcoms(self, task: ActiveTask) -> None:
        """Delete what a task instance has pushed, and push nothing of it that is gathered."""
        self.xcoms = [
            row for row in self.xcoms if (row.dag_run_id, row.task_id, row.map_index) != (task.run.id, *task.key[2:])
        ]
        self.forgotten.append(ForgottenRow(task.run.id, task.task_id, task.map_index))

    def xcom(self, task: ActiveTask, key: str, value: str, now: datetime) -> None:
        """Store a value, given as JSON."""
        self.xcoms.append(XComRow(task.run.id, task.task_id, task.map_index, key, value, now))

    def skips(self, task: ActiveTask, skipped: list[str], now: datetime) -> None:
        """Keep a branch's or short circuit's decision, so that it holds when a skipped task is cleared."""
        self.xcom(task, SKIPMIXIN_KEY, msgspec.json.encode({"skipped": skipped}).decode(), now)

    def callback(
        self, task: ActiveTask, event: CallbackEvent, now: datetime, raised: RaisedException | None = None
    ) -> None:
        """Request a callback of a task instance, about the try that has just ended."""
        caused_by = msgspec.json.encode(CausingTry(task.max_tries, task.started_at, task.ended_at, raised)).decode()
        self.callbacks.append(
            CallbackRow(task.run.id, task.task_id, task.map_index, task.try_number, event, task.reason, now, caused_by)
        )

    def run_callback(self, run: ActiveRun, event: CallbackEvent, cause: RunEndCause, now: datetime) -> None:
        """Request a callback of a run."""
        self.callbacks.append(CallbackRow(run.id, "", -1, 0, event, cause, now))

    def update_assets(self, task: ActiveTask, told: Iterable[OutletEvent], now: datetime) -> None:
        """Store the updates of assets that follow from the success of a task instance."""
        for ordinal, update in enumerate(updates_of(task.task.outlets, told)):
            self.asset_events.append(
                AssetEventRow(
                    update.name, update.uri, update.extra, now, update.aliases, update.group, update.asset_extra,
                    task.run.id, *task.key, task.token, ordinal,
                )
            )  # fmt: skip

    def task_rows(self) -> Iterator[tuple[ActiveTask, TaskRow]]:
        """Yield what is to be written of task instances, in key order."""
        for task in sorted(self.tasks.values(), key=lambda task: (task.run.id, task.task_id, task.map_index)):
            yield task, _task_row(task)

    def batch(self, task_rows: Iterable[tuple[ActiveTask, TaskRow]] | None = None) -> Batch:
        """Return what is to be written, in key order, with the rows of task instances if they were made before."""
        rows = list(self.task_rows() if task_rows is None else task_rows)
        return Batch(
            lease_epoch=self.lease_epoch,
            runs=[self._run_row(self.runs[run_id]) for run_id in sorted(self.runs)],
            expanded=self.expanded,
            new_tasks=[row for task, row in rows if not task.is_stored],
            tasks=[row for task, row in rows if task.is_stored],
            history=self.history,
            forgotten=self.forgotten,
            xcoms=self.xcoms,
            callbacks=self.callbacks,
            asset_events=self.asset_events,
        )

    def mark_stored(self) -> None:
        """Remember that the database has what was gathered."""
        for task in self.tasks.values():
            task.stored_state, task.stored_try, task.is_stored = task.state, task.try_number, True
        for run in self.runs.values():
            run.stored_state = run.state
            run.stored_epoch = self.lease_epoch

    def clear(self) -> None:
        """Begin to gather the next moment's changes."""
        for gathered in (
            self.tasks, self.runs, self.expanded, self.history, self.forgotten, self.xcoms, self.callbacks,
            self.asset_events, self.granted, self.ended_runs, self.ends, self.results, self.unwanted, self.triggers,
        ):  # fmt: skip
            gathered.clear()
        self.held_since = None

    def _run_row(self, run: ActiveRun) -> RunRow:
        return RunRow(
            run.id, run.stored_state, run.stored_epoch, run.state, run.reason, run.started_at, run.ended_at,
            run.version_id, self.scheduler_id, self.lease_epoch, run.queued_at, encoded_stop(run.stop),
        )  # fmt: skip


def _task_row(task: ActiveTask) -> TaskRow:
    return TaskRow(
        task.run.id, task.task_id, task.map_index, task.stored_state, task.stored_try, task.state, task.reason,
        task.try_number, task.max_tries, task.machine_kills, task.token, task.scheduled_at, task.queued_at,
        task.started_at, task.ended_at, task.next_try_at, task.rendered_map_index, task.result_length,
        task.priority_weight, task.task.pool, task.task.pool_slots, task.task.queue, task.task.executor,
        encoded(task.deferral), " ".join(sorted(task.ignored)) or None,
    )  # fmt: skip
