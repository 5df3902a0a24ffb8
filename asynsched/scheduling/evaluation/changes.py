"""The changes of runs and task instances: `decisions.py` decides on them, and only `Evaluation` applies them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from asynsched.protocol.messages import Deferral, Ended, TriggerOutcome
from asynsched.scheduling.rules.run_end import RunStop
from asynsched.scheduling.rules.try_end import TryOutcome
from asynsched.states import FINISHED_TASK_STATES, SLOT_TASK_STATES, TIMED_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.assets import AssetEventRow
from asynsched.store.runs.transitions import RenderedFieldsWrite, XComDeletion, XComWrite
from asynsched.store.schema import CallbackRequest, HistoryRow

if TYPE_CHECKING:
    from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask

Row = HistoryRow | XComDeletion | XComWrite | RenderedFieldsWrite | CallbackRequest | AssetEventRow
"""The rows written in the transaction that stores a change."""


class Holding(IntEnum):
    """What a task instance holds, which follows from its state alone (`HOLDINGS`)."""

    NOTHING = 0
    LANE = 1
    """A turn in the lane of its limits."""
    SLOTS = 2
    """Slots of each of its limits, while the end of its try is awaited."""
    TIMER = 3
    TRIGGER = 4
    """A trigger, with a timeout, a place under its task's limits, and slots of a pool that counts deferred tasks."""
    ANSWER = 5
    """A person's answer, with a timeout, and a place under its task's limits."""


HOLDINGS: dict[TaskInstanceState | None, Holding] = (
    dict.fromkeys((None, *TaskInstanceState), Holding.NOTHING)
    | {
        TaskInstanceState.SCHEDULED: Holding.LANE,
        TaskInstanceState.DEFERRED: Holding.TRIGGER,
        TaskInstanceState.AWAITING_INPUT: Holding.ANSWER,
    }
    | dict.fromkeys(SLOT_TASK_STATES, Holding.SLOTS)
    | dict.fromkeys(TIMED_TASK_STATES, Holding.TIMER)
)
PARKED = frozenset({Holding.TRIGGER, Holding.ANSWER})


class StoredDeferral(Struct, frozen=True, omit_defaults=True):
    """A deferral and the outcome of its trigger; None until there is one.

    The task instance keeps it until the try ends, so that a try that is handed back after resuming resumes again.
    """

    deferral: Deferral
    outcome: TriggerOutcome | None = None


class TryResult(NamedTuple):
    """How a try ended, and the decision about its task instance, whose state may have changed again since."""

    task: ActiveTask
    try_number: int
    ended: Ended
    outcome: TryOutcome


class TaskChange(Struct, frozen=True, gc=False):
    """A task instance goes from one state into another.

    Attributes:
        values: Its other fields that change, by name.
        token: Token of the try that the task instance had before.
        result: How that try ended, if its end caused the change.
    """

    task: ActiveTask
    before: TaskInstanceState | None
    token: str | None
    state: TaskInstanceState | None
    reason: str = ""
    values: Mapping[str, Any] = {}
    rows: tuple[Row, ...] = ()
    result: TryResult | None = None

    @property
    def run(self) -> ActiveRun:
        return self.task.run

    @property
    def is_kill(self) -> bool:
        """Whether the task instance is ended by neither a try nor a trigger."""
        return self.result is None and self.state in FINISHED_TASK_STATES


class NewInstances(Struct, frozen=True):
    """The set of a mapped task's instances changes.

    Attributes:
        new: The new instances; None: their number is not known, and the task keeps the instances that it has.
        gone: The unexpanded instance that the new ones replace, if there was one.
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
    """A run is to be stopped, in these steps: waiting task instances end at once, running ones are killed.

    `steps` is a generator that reads the run as each step is taken, in a later slice; so it can be taken only once.
    """

    run: ActiveRun
    stop: RunStop
    steps: Iterator[Change | None]


class Expanded(Struct, frozen=True):
    """An unexpanded task instance is to be replaced by the instances that these steps make.

    `steps` is a generator that reads the run as each step is taken, in a later slice; so it can be taken only once.
    """

    run: ActiveRun
    steps: Iterator[Change | None]


class Killed(Struct, frozen=True):
    """A try is to be ended, and its task instance waits for its end."""

    run: ActiveRun
    token: str
    reason: str


Change = TaskChange | NewInstances | RunChange | Stopped | Expanded | Killed
