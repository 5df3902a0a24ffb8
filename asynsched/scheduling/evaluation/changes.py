"""What may become of runs and task instances: `decisions.py` decides it, and `Evaluation` alone applies it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from msgspec import Struct

from asynsched.protocol.messages import Ended
from asynsched.scheduling.rules.run_end import RunStop
from asynsched.scheduling.rules.try_end import TryOutcome
from asynsched.states import SLOT_TASK_STATES, TIMED_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.runs.changes import AssetEventRow, ForgottenRow, XComRow
from asynsched.store.schema import CallbackRequest, HistoryRow

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.deferral import StoredDeferral
    from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask

Row = HistoryRow | ForgottenRow | XComRow | CallbackRequest | AssetEventRow
"""What is written in the transaction that stores a change."""
NOTHING, PLACE, SLOTS, TIMER, TRIGGER = range(5)
HOLDS: dict[TaskInstanceState | None, int] = (
    dict.fromkeys((None, *TaskInstanceState), NOTHING)
    | {TaskInstanceState.SCHEDULED: PLACE, TaskInstanceState.DEFERRED: TRIGGER}
    | dict.fromkeys(SLOT_TASK_STATES, SLOTS)
    | dict.fromkeys(TIMED_TASK_STATES, TIMER)
)
"""What a task instance holds, which follows from its state alone: a place in the queue of its limits; slots of each of
them, while the end of its try is awaited; a timer; or a trigger, with a timeout, and slots of a pool that counts it."""


class TaskValues(TypedDict, total=False):
    """The fields of a task instance that a change sets, beside its state and the reason."""

    try_number: int
    max_tries: int
    machine_kills: int
    token: str | None
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    next_try_at: datetime | None
    rendered_map_index: str | None
    result_length: int | None
    deferral: StoredDeferral | None
    skips: frozenset[str]


class TryResult(NamedTuple):
    """How a try has ended, and what was decided about its task instance, which may have gone on since."""

    task: ActiveTask
    try_number: int
    ended: Ended
    outcome: TryOutcome


class TaskChange(Struct, frozen=True, gc=False):
    """A task instance goes from one state into another.

    Attributes:
        token: Of the try that it had before.
        result: How its try has ended, if that is why.
    """

    task: ActiveTask
    before: TaskInstanceState | None
    token: str | None
    state: TaskInstanceState | None
    reason: str = ""
    values: TaskValues = {}
    rows: tuple[Row, ...] = ()
    result: TryResult | None = None

    @property
    def run(self) -> ActiveRun:
        """The run that it belongs to."""
        return self.task.run


class NewInstances(Struct, frozen=True):
    """A mapped task has other instances.

    Attributes:
        new: Those that are new; None: it is not known how many there should be, and the task keeps those that it has.
        gone: The unexpanded one that these take the place of, if there was one.
    """

    run: ActiveRun
    task_id: str
    new: list[ActiveTask] | None
    gone: ActiveTask | None = None


class RunChange(Struct, frozen=True):
    """A run begins, is taken up as it is stored (`before` is then `state`), or ends."""

    run: ActiveRun
    before: DagRunState
    state: DagRunState
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    rows: tuple[Row, ...] = ()


class Stopped(Struct, frozen=True):
    """A run is to be stopped, in these steps: what waits is skipped, what runs is killed."""

    run: ActiveRun
    stop: RunStop
    steps: Iterator[Change | None]


class Expanded(Struct, frozen=True):
    """An unexpanded task instance is to become others, which these steps make."""

    run: ActiveRun
    steps: Iterator[Change | None]


class Killed(Struct, frozen=True):
    """A try is to be ended, and its task instance waits for its end."""

    run: ActiveRun
    token: str
    reason: str


Change = TaskChange | NewInstances | RunChange | Stopped | Expanded | Killed
