"""Why a try has no log: the task never started, has not started yet, or has no such try. Pure."""

from collections.abc import Collection
from pathlib import Path

from asynsched.states import FINISHED_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.runs.dag_runs import DagRunRow
from asynsched.store.runs.task_instances import TaskInstanceRow

_ENDED_AS = {
    TaskInstanceState.SUCCESS: "it succeeded without a process, since there is nothing in it to run",
    TaskInstanceState.FAILED: "it failed",
    TaskInstanceState.SKIPPED: "it was skipped",
    TaskInstanceState.UPSTREAM_FAILED: "a task before it failed",
    TaskInstanceState.REMOVED: "it was removed from its DAG",
}
_WAITS_AS = {
    TaskInstanceState.SCHEDULED: "it waits for room within the limits",
    TaskInstanceState.QUEUED: "it is queued, about to start",
    TaskInstanceState.UP_FOR_RETRY: "it waits for its next try",
    TaskInstanceState.UP_FOR_RESCHEDULE: "it waits for its next look",
    TaskInstanceState.DEFERRED: "it is deferred, and waits for its trigger",
}
_TASKS_BEFORE = "it waits for the tasks before it"


def why_no_log(task: TaskInstanceRow, run: DagRunRow, wanted: int | None, earlier: Collection[int], home: Path) -> str:
    """Return a sentence for the user who asked for a log that is not there.

    Args:
        task: The task instance.
        run: Its run.
        wanted: The try that was asked for, None for the newest.
        earlier: The numbers of its earlier tries.
        home: Where logs were looked for. A scheduler of another home has written its own there.
    """
    started = {*earlier, task.try_number} - {0}
    if task.state == TaskInstanceState.QUEUED:
        started.discard(task.try_number)
    number = wanted or task.try_number
    if number in started:
        return f"Try {number} of the task {task.task_id!r} has no log in the home {home}."
    if started and number != task.try_number:
        return f"The task {task.task_id!r} has no try {number}; it has {_listed(started)}."
    if task.state in FINISHED_TASK_STATES:
        return (
            f"The task {task.task_id!r} never started: {_with_reason(_ENDED_AS[TaskInstanceState(task.state)], task)}."
        )
    what = f"Try {number} of the task" if started else "The task"
    return f"{what} {task.task_id!r} has not started yet: {_waits(task, run)}."


def _waits(task: TaskInstanceRow, run: DagRunRow) -> str:
    if run.state == DagRunState.QUEUED:
        return f"its run is queued ({run.reason})" if run.reason else "its run is queued"
    if task.state is None:
        return _with_reason(_TASKS_BEFORE, task)
    return _with_reason(_WAITS_AS.get(TaskInstanceState(task.state), f"it is {task.state}"), task)


def _with_reason(what: str, task: TaskInstanceRow) -> str:
    return f"{what} ({task.reason})" if task.reason else what


def _listed(tries: Collection[int]) -> str:
    *others, last = sorted(tries)
    return f"the tries {', '.join(map(str, others))} and {last}" if others else f"try {last}"
