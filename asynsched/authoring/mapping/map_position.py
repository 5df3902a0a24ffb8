"""Which values belong to one instance of a mapped task, or of a task in mapped task groups.

Instances are numbered with the innermost mapped group running fastest.

Source: Apache Airflow's `get_relevant_upstream_map_indexes`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from asynsched.authoring.mapping.expand_input import ExpandInput
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.task_group import TaskGroup


def mapped_groups(task: BaseOperator) -> list[TaskGroup]:
    """Return the mapped task groups that a task is in, outermost first."""
    found = []
    group = task.task_group
    while group is not None:
        if group.expand_input is not None:
            found.append(group)
        group = group.parent_group
    return found[::-1]


def map_share(context: Context, other: BaseOperator) -> int | tuple[int, int] | None:
    """Return the map indexes of another task that belong to the running instance: one, from and to, or None for all.

    These are the instances in the same instance of the mapped groups around both.
    """
    own, others = mapped_groups(context["ti"].task), mapped_groups(other)
    n_common = sum(1 for mine, its in zip(own, others, strict=False) if mine is its)
    if not n_common or context["ti"].map_index < 0:
        return None
    place = context["ti"].map_index // _product(context, own[n_common:])
    if len(others) == n_common:
        return int(place)
    n_each = _product(context, others[n_common:])
    return place * n_each, (place + 1) * n_each


def group_values(context: Context, expand_input: ExpandInput) -> dict[str, Any]:
    """Return the arguments that a mapped task group has in the running instance."""
    groups = mapped_groups(context["ti"].task)
    depth = next(depth for depth, group in enumerate(groups) if group.expand_input is expand_input)
    index = context["ti"].map_index // _product(context, groups[depth + 1 :])
    if depth:
        # Without a group around, the index is that of the group's own instance.
        index %= expand_input.length(context)
    values, _ = expand_input.values_at(index, context)
    return values


def instance_count(context: Context) -> int | None:
    """Return how many instances the running task has been expanded to; None for one that is not mapped."""
    task = context["ti"].task
    groups = mapped_groups(task)
    mapped = task if task.is_mapped else task.mapped_from
    own = None if mapped is None else mapped.expand_input
    if context["ti"].map_index < 0 or not (groups or own):
        return None
    count = _product(context, groups)
    return count if own is None else count * own.length(context)


def _product(context: Context, groups: Iterable[TaskGroup]) -> int:
    n_instances = 1
    for group in groups:
        assert group.expand_input is not None
        n_instances *= group.expand_input.length(context)
    return n_instances
