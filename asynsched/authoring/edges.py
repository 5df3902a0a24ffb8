"""Arrows between tasks: labels on them, and functions that draw many."""

from __future__ import annotations

from asynsched.authoring.node import DependencyMixin, flatten, relate
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator


class EdgeModifier(DependencyMixin):
    """A label between two sides: `a >> Label("when it rains") >> b`."""

    def __init__(self, label: str | None = None) -> None:
        self.label = label
        self._before: list[DependencyMixin] = []
        self._after: list[DependencyMixin] = []

    @property
    def roots(self) -> list[BaseOperator]:
        return [task for node in self._after for task in node.roots]

    @property
    def leaves(self) -> list[BaseOperator]:
        return [task for node in self._before for task in node.leaves]

    def set_upstream(self, task_or_task_list: Any, edge_modifier: EdgeModifier | None = None) -> None:
        for node in flatten(task_or_task_list):
            self.follow(node, edge_modifier)

    def set_downstream(self, task_or_task_list: Any, edge_modifier: EdgeModifier | None = None) -> None:
        for node in flatten(task_or_task_list):
            self.precede(node, edge_modifier)

    def follow(self, node: DependencyMixin, label: EdgeModifier | None) -> None:
        if isinstance(node, EdgeModifier):
            raise DagError("two labels in a row: an arrow has one")
        self._before.append(node)
        for after in self._after:
            relate(node, after, self)

    def precede(self, node: DependencyMixin, label: EdgeModifier | None) -> None:
        if isinstance(node, EdgeModifier):
            raise DagError("two labels in a row: an arrow has one")
        self._after.append(node)
        for before in self._before:
            relate(before, node, self)


def Label(label: str) -> EdgeModifier:  # noqa: N802 - Airflow's name, used like a class
    """Return a label for the arrow between two tasks."""
    return EdgeModifier(label=label)


def chain(*tasks: Any) -> None:
    """Let each argument follow the one before it; two lists in a row, of one length, are joined pair by pair.

    Raises:
        DagError: Two lists in a row have different lengths.
    """
    for before, after in zip(tasks, tasks[1:], strict=False):  # noqa: RUF007 - itertools is not worth its import
        if isinstance(before, DependencyMixin):
            before.set_downstream(after)
        elif isinstance(after, DependencyMixin):
            after.set_upstream(before)
        else:
            _chain_pairwise(list(before), list(after))


def _chain_pairwise(before: Sequence[Any], after: Sequence[Any]) -> None:
    if len(before) != len(after):
        raise DagError(
            f"chain() joins two lists pair by pair, but they have {len(before)} and {len(after)} tasks;"
            " use cross_downstream() or chain_linear() to join each with each"
        )
    for up_task, down_task in zip(before, after, strict=True):
        up_task.set_downstream(down_task)


def chain_linear(*elements: Any) -> None:
    """Let every task of each argument follow every task of the one before it.

    Raises:
        DagError: Fewer than two arguments have tasks.
    """
    levels = [list(flatten(element)) for element in elements]
    levels = [level for level in levels if level]
    if len(levels) < 2:
        raise DagError("chain_linear() needs two arguments that have tasks")
    for before, after in zip(levels, levels[1:], strict=False):  # noqa: RUF007 - itertools is not worth its import
        cross_downstream(before, after)


def cross_downstream(from_tasks: Any, to_tasks: Any) -> None:
    """Let every task of `to_tasks` follow every task of `from_tasks`."""
    for task in flatten(from_tasks):
        task.set_downstream(to_tasks)
