"""What becomes of the task instances of a run that is stopped: cancelled, out of time, or failing fast.

What waits is skipped at once, what runs is killed. Teardowns have their turn, unless the run is over.

Source: Apache Airflow's `_stop_remaining_tasks` (`fail_fast`), its handling of `dagrun_timeout`, and of runs that are
marked as failed.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from asynsched.protocol.messages import Ended
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FINISHED_TASK_STATES, SLOT_TASK_STATES, TaskInstanceState


@dataclass(frozen=True, slots=True)
class RunStop:
    """Why a run is stopped, and how.

    Attributes:
        reason: Why, for a person.
        killed_as: How a task instance ends that is killed.
        fails_run: Whether the run is failed, however its tasks ended.
        spares_teardowns: Whether teardowns are left alone.
    """

    reason: str
    killed_as: Literal["failed", "skipped"] = "failed"
    fails_run: bool = True
    spares_teardowns: bool = False


def encoded(stop: RunStop | None) -> str | None:
    """Return what is written into the row of a run."""
    return None if stop is None else msgspec.json.encode(stop).decode()


def decoded(text: str | None) -> RunStop | None:
    """Return what was written into the row of a run."""
    return None if text is None else msgspec.json.decode(text, type=RunStop)


def cancelled(reason: str) -> RunStop:
    """Return the stop of a run that somebody does not want any more: its teardowns have no turn either."""
    return RunStop(reason)


def marked_failed(reason: str) -> RunStop:
    """Return the stop of a run that somebody marks as failed: its teardowns still have their turn."""
    return RunStop(reason, spares_teardowns=True)


def timed_out(timeout: object) -> RunStop:
    """Return the stop of a run that takes too long: what is left of it counts as skipped, as in Airflow."""
    return RunStop(f"the run took longer than its dagrun_timeout of {timeout}", killed_as="skipped")


def failing_fast(task_id: str) -> RunStop:
    """Return the stop that the failure of a task brings about in a DAG with `fail_fast`."""
    return RunStop(f"fail_fast: task {task_id} has failed", fails_run=False, spares_teardowns=True)


def on_stop(stop: RunStop, task: SerializedTask, state: TaskInstanceState | None) -> Literal["nothing", "skip", "kill"]:
    """Return what is done with a task instance when its run is stopped."""
    if state in FINISHED_TASK_STATES or (stop.spares_teardowns and task.is_teardown):
        return "nothing"
    return "kill" if state in SLOT_TASK_STATES else "skip"


def stopped_try(stop: RunStop, task: SerializedTask, ended: Ended, *, has_begun: bool) -> Ended:
    """Return how a try ended whose run is being stopped.

    One that has still ended by itself, well or by skipping itself, is left as it is. Any other is not retried, and one
    that had not begun is skipped.
    """
    if ended.state in ("success", "skipped") or (stop.spares_teardowns and task.is_teardown):
        return ended
    if not has_begun or stop.killed_as == "skipped":
        return Ended(ended.token, "skipped", ended.ended_at, ended.started_at, stop.reason, cause="machine")
    reason = stop.reason if stop.fails_run else ended.reason or stop.reason
    return Ended(
        ended.token,
        "failed",
        ended.ended_at,
        ended.started_at,
        reason,
        retry=False,
        exception=ended.exception,
    )
