"""An evaluation as the settings want it."""

import sys
from collections.abc import Callable, Mapping

from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.scheduling.evaluation.ready_queues import ReadyQueues
from asynsched.scheduling.evaluation.run_limits import RunLimits
from asynsched.settings import Settings


def evaluation_by_settings(
    settings: Settings,
    pending: PendingBatch,
    *,
    parallelism: int,
    executors: Mapping[str, int],
    new_token: Callable[[], str],
    at_once: int = sys.maxsize,
) -> Evaluation:
    """Return an evaluation without runs.

    Args:
        settings: Their `parallelism` is not looked at: the executor may have another one.
        pending: Takes every change.
        parallelism: How many tasks may run at once.
        executors: How many of them in each of several executors, by the names that tasks give.
        new_token: Gives an attempt token.
        at_once: How many task instances it decides about before it asks for a pause.
    """
    return Evaluation(
        queues=ReadyQueues(parallelism, settings.keep_slots),
        limits=RunLimits(settings.max_active_tasks_per_dag, executors),
        pending=pending,
        new_token=new_token,
        max_machine_kills=settings.max_machine_kills,
        at_once=at_once,
    )
