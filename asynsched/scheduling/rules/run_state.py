"""How a DagRun ends.

Source: Apache Airflow's `DagRun.update_state`. A run ends when none of its task instances can change any more: failed
if a leaf failed (or an upstream of it did), else successful. Teardowns decide only when they ask to; while some wait
for one another with nothing running, the run is deadlocked and fails.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from asynsched.states import FAILED_TASK_STATES, FINISHED_TASK_STATES, DagRunState, TaskInstanceState

RunEndCause = Literal["success", "task_failure", "all_tasks_deadlocked", "timed_out"]
"""What a DAG's callbacks are told as `reason`, in Airflow's words. `timed_out`: over before its tasks were."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """What the end of a run depends on, of one task instance.

    `decides`: it is a leaf, or a leaf once the teardowns are left out; `is_waiting`: it can start only when another
    task instance of this run ends, not when one of the run before does.
    """

    task_id: str
    state: TaskInstanceState | None
    decides: bool
    is_waiting: bool


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The state that a run is in now, and why."""

    state: DagRunState
    reason: str
    cause: RunEndCause


def decide_run_state(tasks: Iterable[TaskEnd]) -> RunVerdict | None:
    """Return how a running DagRun ends, or None while it goes on."""
    tasks = list(tasks)
    unfinished = [task for task in tasks if task.state not in FINISHED_TASK_STATES]
    failed = sorted(task.task_id for task in tasks if task.decides and task.state in FAILED_TASK_STATES)
    if not unfinished:
        if failed:
            return RunVerdict(DagRunState.FAILED, f"because of {_shortened(failed)}", "task_failure")
        return RunVerdict(DagRunState.SUCCESS, "all tasks have ended", "success")
    if all(task.is_waiting for task in unfinished):
        names = sorted(task.task_id for task in unfinished)
        reason = f"deadlock: nothing runs, and these wait for ever: {_shortened(names)}"
        return RunVerdict(DagRunState.FAILED, reason, "all_tasks_deadlocked")
    return None


def _shortened(names: list[str], at_most: int = 5) -> str:
    rest = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + rest
