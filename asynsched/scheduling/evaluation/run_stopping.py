"""Stops active runs: what waits is skipped, what runs is to be killed. Why and how is in `rules/run_stop.py`."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.run_stop import RunStop, failing_fast, on_stop
from asynsched.states import TaskInstanceState


def stopping(run: ActiveRun, stop: RunStop, changes: StateChanges, now: datetime) -> Iterator[Iterable[ActiveTask]]:
    """Stop the task instances of a run in small steps; yield what is to be looked at because of each.

    The killed ones end when they do.
    """
    skipped = []
    for task in list(run.all_instances()):
        match on_stop(stop, task.task, task.state):
            case "kill":
                changes.pending.unwanted.append((task.token or "", stop.reason))
            case "skip":
                changes.set_state(task, TaskInstanceState.SKIPPED, stop.reason, now)
                skipped.append(task)
        yield ()
    # Only now: most of what depended on these was skipped, too. Teardowns that are spared may have their turn.
    for task in skipped:
        yield run.dependents(task)


def unwanted_try(task: ActiveTask) -> tuple[str, str] | None:
    """Return the try of a task instance that is to be ended because its run is being stopped, and why."""
    stop = task.run.stop
    if stop is None or task.token is None or on_stop(stop, task.task, task.state) != "kill":
        return None
    return task.token, stop.reason


def fail_fast(task: ActiveTask) -> RunStop | None:
    """Return how the rest of a run is given up that is to fail fast, when this task of it has failed."""
    run = task.run
    if task.state is not TaskInstanceState.FAILED or not run.structure.dag.fail_fast or run.stop is not None:
        return None
    return failing_fast(task.task_id)
