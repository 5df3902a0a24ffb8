"""Assets of DAGs, as their authors made them, to the serialized form; and what the types of that form cannot say."""

from collections.abc import Iterable
from typing import Any

from asynsched.authoring.assets.asset import BaseAsset
from asynsched.errors import DagError, SerializationError
from asynsched.serialization.schema import SerializedDag
from asynsched.timetables.asset_condition import AssetCondition, check_condition, read_condition
from asynsched.timetables.assets import asset_part
from asynsched.timetables.base import Timetable


def schedule_condition(who: str, timetable: Timetable) -> AssetCondition | None:
    """Return the condition on assets that a schedule has; None when it has none. Raises SerializationError."""
    expression = asset_part(timetable)
    return None if expression is None else _read(who, expression)


def task_assets(who: str, assets: Iterable[BaseAsset]) -> tuple[AssetCondition, ...]:
    """Return the inlets or outlets of a task, each once; of an expression, what it is made of."""
    leaves = {leaf.key(): leaf for asset in assets for leaf in asset.iter_leaves()}
    return tuple(_read(who, leaf.as_expression()) for leaf in leaves.values())


def check_assets(who: str, dag: SerializedDag) -> None:
    """Raise SerializationError when a DAG has a condition that is no good, or an expression as inlet or outlet."""
    try:
        if dag.asset_condition is not None:
            check_condition(dag.asset_condition)
    except DagError as exc:
        raise SerializationError(f"{who}: {exc}") from exc
    for task in dag.tasks:
        if not all(asset.is_leaf for asset in (*task.inlets, *task.outlets)):
            raise SerializationError(f"{who}, task {task.task_id!r}: inlets and outlets are assets, not expressions")


def _read(who: str, expression: dict[str, Any]) -> AssetCondition:
    try:
        return read_condition(expression)
    except DagError as exc:
        raise SerializationError(f"{who}: {exc}") from exc
