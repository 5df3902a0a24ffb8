"""Stops active runs: what waits is skipped, what runs is to be killed. Why and how is in `rules/run_stop.py`."""

from datetime import datetime

from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.run_stop import RunStop, failing_fast, on_stop
from asynsched.states import TaskInstanceState


def stop_tasks(run: ActiveRun, stop: RunStop, changes: StateChanges, now: datetime) -> list[ActiveTask]:
    """Stop the task instances of a run, and return those that were skipped; the killed ones end when they do."""
    changes.pending.touch_run(run)
    run.stop = stop
    skipped = []
    for task in run.all_instances():
        match on_stop(stop, task.task, task.state):
            case "kill":
                changes.pending.unwanted.append((task.token or "", stop.reason))
            case "skip":
                changes.set_state(task, TaskInstanceState.SKIPPED, stop.reason, now)
                skipped.append(task)
    return skipped


def unwanted_try(task: ActiveTask) -> tuple[str, str] | None:
    """Return the try of a task instance that is to be ended because its run is being stopped, and why."""
    stop = task.run.stop
    if stop is None or task.token is None or on_stop(stop, task.task, task.state) != "kill":
        return None
    return task.token, stop.reason


def fail_fast(task: ActiveTask, changes: StateChanges, now: datetime) -> list[ActiveTask]:
    """Give up the rest of a run that is to fail fast and has a failed task, and return what was skipped."""
    run = task.run
    if task.state is not TaskInstanceState.FAILED or not run.structure.dag.fail_fast or run.stop is not None:
        return []
    return stop_tasks(run, failing_fast(task.task_id), changes, now)
