"""The states of DagRuns and TaskInstances, and the legal changes between them.

The values are Apache Airflow's strings. A new TaskInstance has no state: `None`.

    None ──▶ scheduled ──▶ queued ──▶ running ──▶ success | failed | skipped
      │          ▲            │          │
      │          │            ▼          ├──▶ up_for_retry ─────────▶ scheduled
      │          └── (handed back)       ├──▶ up_for_reschedule ────▶ scheduled
      │                                  ├──▶ deferred ─────────────▶ scheduled
      │                                  └──▶ awaiting_input ───────▶ scheduled
      └──▶ upstream_failed | skipped | removed      (ended by a rule, never run)
"""

from enum import StrEnum

from asynsched.errors import InvalidTransition


class DagRunState(StrEnum):
    """The states of a DagRun."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


class TaskInstanceState(StrEnum):
    """The states of a TaskInstance."""

    REMOVED = "removed"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    RESTARTING = "restarting"
    FAILED = "failed"
    UP_FOR_RETRY = "up_for_retry"
    UP_FOR_RESCHEDULE = "up_for_reschedule"
    UPSTREAM_FAILED = "upstream_failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    AWAITING_INPUT = "awaiting_input"


class DagRunType(StrEnum):
    """The origins of a DagRun."""

    MANUAL = "manual"
    SCHEDULED = "scheduled"
    BACKFILL = "backfill"
    ASSET_TRIGGERED = "asset_triggered"
    OPERATOR_TRIGGERED = "operator_triggered"
    ASSET_MATERIALIZATION = "asset_materialization"
    BACKFILL_JOB = BACKFILL  # its name in Airflow

    def generate_run_id(self, *, suffix: str) -> str:
        """Return the run id of a run of this type."""
        return f"{self}__{suffix}"

    @staticmethod
    def from_run_id(run_id: str) -> "DagRunType":
        """Return the type that the beginning of a run id names, and otherwise `manual`."""
        known = (run_type for run_type in DagRunType if run_id.startswith(f"{run_type}__"))
        return next(known, DagRunType.MANUAL)


RUN_TYPES_ON_REQUEST = frozenset({DagRunType.MANUAL, DagRunType.OPERATOR_TRIGGERED, DagRunType.ASSET_MATERIALIZATION})
"""The types of runs that a person, a program or a task requests; the scheduler creates the others."""


_T = TaskInstanceState
_R = DagRunState

FINISHED_TASK_STATES = frozenset({_T.SUCCESS, _T.FAILED, _T.SKIPPED, _T.UPSTREAM_FAILED, _T.REMOVED})
FAILED_TASK_STATES = frozenset({_T.FAILED, _T.UPSTREAM_FAILED})
SLOT_TASK_STATES = frozenset({_T.QUEUED, _T.RUNNING, _T.RESTARTING})
"""The states in which a TaskInstance has a try in the executor, and so takes slots of its pool and counts against every
limit. A restarting one does until its process has ended."""
TIMED_TASK_STATES = frozenset({_T.UP_FOR_RETRY, _T.UP_FOR_RESCHEDULE})
"""The states in which a TaskInstance waits for a point in time."""
PARKED_TASK_STATES = frozenset({_T.DEFERRED, _T.AWAITING_INPUT})
"""The states in which a TaskInstance waits for a trigger or for a person's answer."""
COUNTED_TASK_STATES = SLOT_TASK_STATES | PARKED_TASK_STATES
"""The states in which a TaskInstance counts against some limit."""
PAUSED_TASK_STATES = PARKED_TASK_STATES | {_T.UP_FOR_RESCHEDULE}
"""The states from which a TaskInstance goes on with its try: its try number does not count that try yet."""
FINISHED_RUN_STATES = frozenset({_R.SUCCESS, _R.FAILED})


class State:
    """The states of TaskInstances and DagRuns, and sets of them, with the names of Airflow's `State`."""

    NONE = None
    REMOVED = _T.REMOVED
    SCHEDULED = _T.SCHEDULED
    QUEUED = _T.QUEUED
    RUNNING = _T.RUNNING
    SUCCESS = _T.SUCCESS
    RESTARTING = _T.RESTARTING
    FAILED = _T.FAILED
    UP_FOR_RETRY = _T.UP_FOR_RETRY
    UP_FOR_RESCHEDULE = _T.UP_FOR_RESCHEDULE
    UPSTREAM_FAILED = _T.UPSTREAM_FAILED
    SKIPPED = _T.SKIPPED
    DEFERRED = _T.DEFERRED
    AWAITING_INPUT = _T.AWAITING_INPUT

    task_states: tuple[TaskInstanceState | None, ...] = (None, *_T)
    finished = FINISHED_TASK_STATES
    unfinished: frozenset[TaskInstanceState | None] = frozenset(task_states) - finished
    failed_states = FAILED_TASK_STATES
    success_states = frozenset({_T.SUCCESS, _T.SKIPPED})
    dag_states = tuple(_R)
    finished_dr_states = FINISHED_RUN_STATES
    unfinished_dr_states = frozenset(dag_states) - finished_dr_states


_ENDS = frozenset({_T.SUCCESS, _T.FAILED, _T.SKIPPED})
_PAUSES = PAUSED_TASK_STATES | {_T.UP_FOR_RETRY}
_ENDED_BY_RULE = frozenset({_T.UPSTREAM_FAILED, _T.SKIPPED, _T.REMOVED, _T.FAILED})

TASK_TRANSITIONS: dict[TaskInstanceState | None, frozenset[TaskInstanceState | None]] = {
    # An empty task succeeds without a process.
    None: _ENDED_BY_RULE | {_T.SCHEDULED, _T.SUCCESS},
    _T.SCHEDULED: _ENDED_BY_RULE | {_T.QUEUED, _T.SUCCESS, None},
    # The start and the end of a short try may arrive together, hence queued -> its ends.
    _T.QUEUED: _ENDS | _PAUSES | {_T.RUNNING, _T.RESTARTING, _T.SCHEDULED, _T.REMOVED, None},
    _T.RUNNING: _ENDS | _PAUSES | {_T.RESTARTING, _T.SCHEDULED, _T.REMOVED, None},
    # Cleared while it ran: when its process has ended, it waits like a new one.
    _T.RESTARTING: _ENDS | {_T.REMOVED, None},
    _T.UP_FOR_RETRY: _ENDED_BY_RULE | {_T.SCHEDULED, _T.SUCCESS, None},
    _T.UP_FOR_RESCHEDULE: _ENDED_BY_RULE | {_T.SCHEDULED, _T.SUCCESS, None},
    # A trigger may end its task without another process.
    _T.DEFERRED: _ENDED_BY_RULE | {_T.SCHEDULED, _T.SUCCESS, None},
    _T.AWAITING_INPUT: _ENDED_BY_RULE | {_T.SCHEDULED, _T.SUCCESS, None},
    # Finished states change only if a user clears or marks the task, or if the task no longer exists.
    _T.SUCCESS: frozenset({None, _T.FAILED, _T.SKIPPED, _T.REMOVED}),
    _T.FAILED: frozenset({None, _T.SUCCESS, _T.SKIPPED, _T.REMOVED}),
    _T.SKIPPED: frozenset({None, _T.SUCCESS, _T.FAILED, _T.REMOVED}),
    _T.UPSTREAM_FAILED: frozenset({None, _T.SUCCESS, _T.FAILED, _T.SKIPPED, _T.REMOVED}),
    _T.REMOVED: frozenset({None}),
}

RUN_TRANSITIONS: dict[DagRunState, frozenset[DagRunState]] = {
    _R.QUEUED: frozenset({_R.RUNNING, _R.SUCCESS, _R.FAILED}),
    _R.RUNNING: frozenset({_R.SUCCESS, _R.FAILED}),
    _R.SUCCESS: frozenset({_R.QUEUED, _R.FAILED}),
    _R.FAILED: frozenset({_R.QUEUED, _R.SUCCESS}),
}


def check_task_transition(before: TaskInstanceState | None, after: TaskInstanceState | None) -> None:
    """Raise InvalidTransition unless a TaskInstance may go from `before` to `after`."""
    if after not in TASK_TRANSITIONS[before]:
        raise InvalidTransition("task instance", before, after)


def check_run_transition(before: DagRunState, after: DagRunState) -> None:
    """Raise InvalidTransition unless a DagRun may go from `before` to `after`."""
    if after not in RUN_TRANSITIONS[before]:
        raise InvalidTransition("dag run", before, after)
