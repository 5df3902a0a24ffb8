"""Total priority weights: which of two ready tasks goes first.

Source: Apache Airflow's weight rules. A task's own `priority_weight`, plus, with `downstream` (the default), those of
everything downstream of it; with `upstream`, of everything upstream; with `absolute`, none.
"""

from collections.abc import Mapping

from asynsched.scheduling.rules.branching import descendants
from asynsched.serialization.schema import SerializedTask

MAX_WEIGHT = 2**31 - 1
MIN_WEIGHT = -(2**31)
"""Bounds of a task's own weight, as in Airflow; totals may be larger."""


def total_weights(tasks: tuple[SerializedTask, ...]) -> Mapping[str, int]:
    """Return the total priority weight of each task, by task_id."""
    own = {task.task_id: max(MIN_WEIGHT, min(MAX_WEIGHT, task.priority_weight)) for task in tasks}
    downstream = {task.task_id: task.downstream_task_ids for task in tasks}
    upstream: dict[str, list[str]] = {task.task_id: [] for task in tasks}
    for task in tasks:
        for target in task.downstream_task_ids:
            upstream[target].append(task.task_id)
    totals = {}
    for task in tasks:
        counted: set[str] = set()
        if task.weight_rule == "downstream":
            counted = descendants([task.task_id], downstream)
        elif task.weight_rule == "upstream":
            counted = descendants([task.task_id], upstream)
        totals[task.task_id] = own[task.task_id] + sum(own[other] for other in counted)
    return totals
