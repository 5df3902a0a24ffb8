"""How a DagRun ends: by its tasks, or because it is stopped (cancelled, out of time, failing fast)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Literal

from asynsched.protocol.messages import Ended
from asynsched.serialization.schema import SerializedTask
from asynsched.states import (
    FAILED_TASK_STATES,
    FINISHED_TASK_STATES,
    PAUSED_TASK_STATES,
    SLOT_TASK_STATES,
    DagRunState,
    TaskInstanceState,
)

RunEndCause = Literal["success", "task_failure", "all_tasks_deadlocked", "timed_out"]
"""The `reason` that a DAG's callbacks get, as in Airflow."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task instance's part in the end of its run.

    Attributes:
        decides: It is a leaf, or becomes one when the teardowns are left out.
        is_waiting: It can start only after another task instance of this run ends.
        name: Its task_id, with the map index of a mapped one.
        reason: Why it ended, for a person.
    """

    task_id: str
    state: TaskInstanceState | None
    decides: bool
    is_waiting: bool
    name: str = ""
    reason: str = ""
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The state in which a run ends, and why."""

    state: DagRunState
    reason: str
    cause: RunEndCause


def decide_run_state(
    tasks: Iterable[TaskEnd], upstream: Mapping[str, Iterable[str]] | None = None
) -> RunVerdict | None:
    """Return the end of a running DagRun, or None while it goes on.

    A run ends when none of its task instances can change any more. It fails if a leaf failed (or an upstream of the
    leaf did), and else succeeds; teardowns decide only when they ask to. If nothing runs and the rest wait for one
    another, the run is deadlocked and fails.

    Args:
        tasks: The task instances of the run; those that have ended well may be left out.
        upstream: The tasks that decide about each task: the reason for a failure is looked for there.

    Source:
        Apache Airflow's `DagRun.update_state`.
    """
    tasks = list(tasks)
    unfinished = [task for task in tasks if task.state not in FINISHED_TASK_STATES]
    if not unfinished:
        if any(task.decides and task.state in FAILED_TASK_STATES for task in tasks):
            return RunVerdict(DagRunState.FAILED, _reason_of(_causes(tasks, upstream or {})), "task_failure")
        return RunVerdict(DagRunState.SUCCESS, "all tasks have ended", "success")
    if all(task.is_waiting for task in unfinished):
        names = sorted(task.task_id for task in unfinished)
        reason = f"deadlock: nothing runs, and these tasks wait for one another: {_shortened(names)}"
        return RunVerdict(DagRunState.FAILED, reason, "all_tasks_deadlocked")
    return None


def _causes(tasks: Sequence[TaskEnd], upstream: Mapping[str, Iterable[str]]) -> list[TaskEnd]:
    """Return the task instances that caused a run to fail: those that failed by themselves.

    The failed leaves, or whatever failed above a leaf that is `upstream_failed`. A failure above a leaf that succeeded
    (`all_done`) is no cause.
    """
    failed = {task.task_id for task in tasks if task.state in FAILED_TASK_STATES}
    blocked = {task.task_id for task in tasks if task.state is TaskInstanceState.UPSTREAM_FAILED}
    to_visit = [task.task_id for task in tasks if task.decides and task.task_id in failed]
    seen = set(to_visit)
    roots = set()  # blocked by no failure above
    while to_visit:
        task_id = to_visit.pop()
        above = [other for other in upstream.get(task_id, ()) if other in failed] if task_id in blocked else []
        if not above:
            roots.add(task_id)
        to_visit += [other for other in above if other not in seen]
        seen.update(above)
    return [
        task
        for task in tasks
        if (task.task_id in seen and task.state is TaskInstanceState.FAILED)
        or (task.task_id in roots and task.state is TaskInstanceState.UPSTREAM_FAILED)
    ]


def _reason_of(causes: Sequence[TaskEnd]) -> str:
    """Return the first of the failures, and the number of the others."""
    first = min(causes, key=lambda end: inf if end.ended_at is None else end.ended_at.timestamp())
    more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
    return f"{first.name}: {first.reason or first.state}{more}"


MOST_NAMES = 5
"""Tasks that a reason names."""


def _shortened(names: list[str]) -> str:
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest


@dataclass(frozen=True, slots=True)
class RunStop:
    """Why and how a run is stopped: waiting task instances end at once, running ones are killed. See `on_stop`.

    Attributes:
        reason: Why, for a person.
        killed_as: How a killed task instance ends.
        fails_run: Whether the run fails, regardless of its tasks' ends.
        spares_teardowns: Whether teardowns still run.
        is_by_hand: Whether a person or a program stops the run: then no callback of its DAG is called, as in Airflow.

    Source:
        Apache Airflow's `_stop_remaining_tasks` (`fail_fast`), its handling of `dagrun_timeout`, and of runs that are
        marked as failed.
    """

    reason: str
    killed_as: Literal["failed", "skipped"] = "failed"
    fails_run: bool = True
    spares_teardowns: bool = False
    is_by_hand: bool = False


def cancelled(reason: str) -> RunStop:
    """Return the stop of a cancelled run; not even its teardowns run."""
    return RunStop(reason, is_by_hand=True)


def marked_failed(reason: str) -> RunStop:
    """Return the stop of a run that a user marks as failed; its teardowns still run."""
    return RunStop(reason, spares_teardowns=True, is_by_hand=True)


def marked_successful(reason: str) -> RunStop:
    """Return the stop of a running run that a user marks as successful; its teardowns still run, and may fail it."""
    return RunStop(reason, fails_run=False, spares_teardowns=True, is_by_hand=True)


def timed_out(timeout: object) -> RunStop:
    """Return the stop of a run that takes too long; its unfinished tasks count as skipped, as in Airflow."""
    return RunStop(f"the run took longer than its dagrun_timeout of {timeout}", killed_as="skipped")


def failing_fast(task_id: str) -> RunStop:
    """Return the stop that a task's failure causes in a DAG with `fail_fast`."""
    return RunStop(f"fail_fast: task {task_id} has failed", fails_run=False, spares_teardowns=True)


def on_stop(
    stop: RunStop, task: SerializedTask, state: TaskInstanceState | None
) -> Literal["nothing", "skip", "fail", "kill"]:
    """Decide how a task instance ends when its run is stopped: one that waits between two processes has begun."""
    if state in FINISHED_TASK_STATES or (stop.spares_teardowns and task.is_teardown):
        return "nothing"
    if state in SLOT_TASK_STATES:
        return "kill"
    return "fail" if stop.is_by_hand and state in PAUSED_TASK_STATES else "skip"


def stopped_try(stop: RunStop, task: SerializedTask, ended: Ended, *, has_begun: bool) -> Ended:
    """Return the end of a try whose run is being stopped.

    A try that succeeded or skipped itself keeps its end. Any other is not retried, and is skipped if it had not begun.
    """
    if ended.state in ("success", "skipped") or (stop.spares_teardowns and task.is_teardown):
        return ended
    if not has_begun or stop.killed_as == "skipped":
        return Ended(ended.token, "skipped", ended.ended_at, ended.started_at, stop.reason, cause="machine")
    reason = stop.reason if stop.fails_run else ended.reason or stop.reason
    return Ended(
        ended.token, "failed", ended.ended_at, ended.started_at, reason, retry=False, exception=ended.exception
    )
