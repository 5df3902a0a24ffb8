"""A DagRun that is running, as its scheduler holds it in memory under its lease: the cache of its rows.

Counters of upstream ends are kept up by every state change, so that examining a task costs the same however many
tasks its DAG has. Nothing here decides or stores.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.scheduling.rules.run_state import TaskEnd
from asynsched.scheduling.rules.trigger_rule import UpstreamCounts
from asynsched.scheduling.structure import DagStructure
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FINISHED_TASK_STATES, DagRunState, TaskInstanceState
from sandbox.protocol import CodeVersion

WAITING: frozenset[TaskInstanceState | None] = frozenset({None})
"""States in which a task instance starts only when another one of its run ends."""


@dataclass(slots=True, eq=False)
class ActiveTask:
    """One task instance of an active run. `stored_state` and `stored_try` are what the database has."""

    run: "ActiveRun"
    task: SerializedTask
    map_index: int = -1
    state: TaskInstanceState | None = None
    reason: str = ""
    try_number: int = 0
    max_tries: int = 0
    machine_kills: int = 0
    token: str | None = None
    scheduled_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_try_at: datetime | None = None
    rendered_map_index: str | None = None
    upstream: UpstreamCounts = field(default_factory=UpstreamCounts)
    stored_state: TaskInstanceState | None = None
    stored_try: int = 0
    is_stored: bool = False

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.task_id

    @property
    def key(self) -> TaskInstanceKey:
        """What identifies the task instance."""
        return TaskInstanceKey(*self.run.key, self.task.task_id, self.map_index)

    @property
    def priority_weight(self) -> int:
        """The total weight."""
        return self.run.structure.weights[self.task.task_id]

    @property
    def is_finished(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINISHED_TASK_STATES


@dataclass(slots=True, eq=False)
class ActiveRun:
    """One DagRun and its task instances."""

    id: int
    key: DagRunKey
    structure: DagStructure
    code: CodeVersion
    version_id: int
    run_type: str
    run_after: datetime
    queued_at: datetime
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    conf: dict[str, Any] = field(default_factory=dict)
    state: DagRunState = DagRunState.QUEUED
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stored_state: DagRunState = DagRunState.QUEUED
    stored_epoch: int = 0
    tasks: dict[str, ActiveTask] = field(default_factory=dict)
    n_unfinished: int = 0
    n_waiting: int = 0
    cancel_reason: str = ""

    def add_tasks(self, tasks: Iterable[ActiveTask]) -> None:
        """Take up the task instances, stored or new, and count their upstream ends."""
        self.tasks = {task.task_id: task for task in tasks}
        for task in self.tasks.values():
            self.n_unfinished += not task.is_finished
            self.n_waiting += task.state in WAITING
            upstream_ids = self.structure.upstream[task.task_id]
            setups = sum(self.structure.tasks[task_id].is_setup for task_id in upstream_ids)
            task.upstream = UpstreamCounts(total=len(upstream_ids), n_setups=setups)
            for task_id in upstream_ids:
                state = self.tasks[task_id].state
                if state in FINISHED_TASK_STATES:
                    task.upstream.add(state, is_setup=self.structure.tasks[task_id].is_setup)

    def count_change(self, task: ActiveTask, before: TaskInstanceState | None) -> None:
        """Keep the counters up after `task` went from `before` to its state."""
        after = task.state
        self.n_waiting += (after in WAITING) - (before in WAITING)
        was_finished = before in FINISHED_TASK_STATES
        self.n_unfinished += was_finished - (after in FINISHED_TASK_STATES)
        is_setup = task.task.is_setup
        for target in task.task.downstream_task_ids:
            counts = self.tasks[target].upstream
            if before in FINISHED_TASK_STATES:
                counts.add(before, is_setup=is_setup, times=-1)
            if after in FINISHED_TASK_STATES:
                counts.add(after, is_setup=is_setup)

    @property
    def may_have_ended(self) -> bool:
        """Whether every unfinished task instance waits for another one, or none is left."""
        return self.n_unfinished == self.n_waiting

    def ends(self) -> list[TaskEnd]:
        """Return what the run's state depends on."""
        deciding = self.structure.deciding
        return [
            TaskEnd(task.task_id, task.state, task.task_id in deciding, task.state in WAITING)
            for task in self.tasks.values()
        ]
