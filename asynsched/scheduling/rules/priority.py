"""Total priority weights, which decide which of two ready tasks starts first.

Source: Apache Airflow's weight rules. The total is a task's own `priority_weight`, plus the weights of all tasks
downstream (`downstream`, the default) or upstream of it (`upstream`), or nothing (`absolute`).
"""

from collections import Counter
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from itertools import chain

from asynsched.scheduling.rules.branching import reversed_edges
from asynsched.serialization.schema import SerializedTask

MAX_WEIGHT = 2**31 - 1
MIN_WEIGHT = -(2**31)
"""Bounds of a task's own weight, as in Airflow; totals may be larger."""


def total_weights(tasks: tuple[SerializedTask, ...]) -> Mapping[str, int]:
    """Return the total priority weight of each task, by task_id."""
    own = {task.task_id: max(MIN_WEIGHT, min(MAX_WEIGHT, task.priority_weight)) for task in tasks}
    downstream = {task.task_id: task.downstream_task_ids for task in tasks}
    rules = {task.weight_rule for task in tasks}
    beyond = {
        "downstream": _weights_beyond(own, downstream) if "downstream" in rules else {},
        "upstream": _weights_beyond(own, reversed_edges(downstream)) if "upstream" in rules else {},
    }
    return {task.task_id: own[task.task_id] + beyond.get(task.weight_rule, {}).get(task.task_id, 0) for task in tasks}


def _weights_beyond(own: Mapping[str, int], targets: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return, for each task, the sum of the weights of all tasks that its edges lead to, directly or not.

    A task that several paths lead to counts once, so sums of sums would be wrong: sets are needed. Each set is an
    integer with one bit per task: with sets of task_ids, a chain of three thousand tasks takes more than a second.
    """
    order = tuple(TopologicalSorter(targets).static_order())  # an edge's target comes before its source
    planes = _planes(own, order)
    n_needing = Counter(chain.from_iterable(targets.values()))
    with_itself: dict[str, int] = {}
    totals = {}
    for place, task_id in enumerate(order):
        beyond = 0
        for target in targets[task_id]:
            beyond |= with_itself[target]
            n_needing[target] -= 1
            if not n_needing[target]:
                del with_itself[target]  # in a large DAG these sets are the memory that matters
        totals[task_id] = sum(worth * (beyond & members).bit_count() for worth, members in planes.items())
        if n_needing[task_id]:
            with_itself[task_id] = beyond | 1 << place
    return totals


def _planes(own: Mapping[str, int], order: tuple[str, ...]) -> dict[int, int]:
    """Return, for each positive or negative power of two, the set of tasks whose weight contains it."""
    planes: dict[int, int] = {}
    for place, task_id in enumerate(order):
        sign, size = (-1 if own[task_id] < 0 else 1), abs(own[task_id])
        for power in range(size.bit_length()):
            if size >> power & 1:
                worth = sign << power
                planes[worth] = planes.get(worth, 0) | 1 << place
    return planes
