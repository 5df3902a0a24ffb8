"""Whether active runs go on by themselves, or wait for somebody."""

from collections.abc import Collection

from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.states import SLOT_TASK_STATES, TaskInstanceState

_GOING_ON = SLOT_TASK_STATES | {
    TaskInstanceState.UP_FOR_RETRY,
    TaskInstanceState.UP_FOR_RESCHEDULE,
    TaskInstanceState.DEFERRED,
}


def stand_still(runs: Collection[ActiveRun]) -> bool:
    """Return whether there are runs, and nothing happens to any of them unless somebody does something.

    Ask it when all that may start has been started: what is ready then, though nothing runs, never has room.
    """
    return bool(runs) and not any(_goes_on(run) for run in runs)


def _goes_on(run: ActiveRun) -> bool:
    will_time_out = run.structure.dag.dagrun_timeout is not None
    return will_time_out or any(task.state in _GOING_ON for task in run.all_instances())
