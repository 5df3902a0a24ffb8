"""How many instances mapped tasks and task groups expand to, as far as the scheduler needs to know."""

from typing import Any

from asynsched.authoring.mapping.expand_input import ExpandInput, ExpandKwargs, ExpandProduct
from asynsched.authoring.mapping.xcom_forms import ConcatenatedArg, TransformedArg, ZippedArg
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.mapped import MappedOperator
from asynsched.authoring.task_group import TaskGroup
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import XComArg
from asynsched.errors import DagError, SerializationError
from asynsched.serialization.schema import MapConcat, MapLength, MapLiteral, MapProduct, MapResult, MapZip


def task_map_length(task: BaseOperator) -> MapLength | None:
    """Return how many instances a mapped task has; None for one that is not mapped."""
    return _of_input(task.expand_input) if isinstance(task, MappedOperator) else None


def group_map_length(group: TaskGroup) -> MapLength | None:
    """Return how many instances a mapped task group has; None for one that is not mapped.

    Raises:
        DagError: A task inside would not wait for what the group is mapped over.
    """
    if group.expand_input is None:
        return None
    for task in group:
        if task.trigger_rule == TriggerRule.ALWAYS:
            raise DagError(
                f"task {task.task_id!r} is in the mapped task group {group.group_id!r}, where the trigger_rule always"
                " is not allowed"
            )
    return _of_input(group.expand_input)


def operator_class(task: BaseOperator) -> type[BaseOperator]:
    """Return the operator that a task's tries are of."""
    return task.operator_class if isinstance(task, MappedOperator) else type(task)


def _of_input(expand_input: ExpandInput) -> MapLength:
    if isinstance(expand_input, ExpandKwargs):
        return _of_value(expand_input.kwargs)
    assert isinstance(expand_input, ExpandProduct)
    lengths = tuple(_of_value(value) for value in expand_input.arguments.values())
    return lengths[0] if len(lengths) == 1 else MapProduct(lengths)


def _of_value(value: Any) -> MapLength:
    if isinstance(value, XComArg):
        return MapResult(value.operator.task_id)
    if isinstance(value, TransformedArg):
        return _of_value(value.sources[0])
    if isinstance(value, ZippedArg):
        return MapZip(tuple(map(_of_value, value.sources)), value.is_filled)
    if isinstance(value, ConcatenatedArg):
        return MapConcat(tuple(map(_of_value, value.sources)))
    try:
        return MapLiteral(len(value))
    except TypeError:
        raise SerializationError(f"{value!r:.100} cannot be mapped over") from None
