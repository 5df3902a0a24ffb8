"""BaseBranchOperator: a task that decides which of those after it run."""

from __future__ import annotations

from asynsched.authoring.operators.base import BaseOperator
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.running.context import Context


class BaseBranchOperator(BaseOperator):
    """A task whose `choose_branch` names the tasks, or task groups, to follow; what else follows it is skipped."""

    is_branch = True

    def choose_branch(self, context: Context) -> str | Iterable[str] | None:
        """Return the task_ids and group_ids to follow: one, several, or none. Subclasses write this."""
        raise NotImplementedError(f"{self.task_type} has no choose_branch()")

    def execute(self, context: Context) -> Any:
        return self.choose_branch(context)


def followed_tasks(dag: DAG, task_id: str, chosen: Any) -> tuple[str, ...]:
    """Return the task_ids that a branch follows; a task group stands for its first tasks.

    Raises:
        DagError: Something chosen is neither a task nor a task group of the DAG, or no text at all.
    """
    names = [chosen] if isinstance(chosen, str) else [] if chosen is None else chosen
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise DagError(f"branch {task_id!r} must return a task_id, a list of them, or None, not {chosen!r}")
    groups = dag.task_group_dict
    unknown = [name for name in names if name not in dag.task_dict and name not in groups]
    if unknown:
        raise DagError(
            f"branch {task_id!r} chose {', '.join(map(repr, sorted(unknown)))}: no task and no task group of DAG"
            f" {dag.dag_id!r} has that id"
        )
    followed: dict[str, None] = {}
    for name in names:
        tasks = [dag.task_dict[name]] if name in dag.task_dict else groups[name].roots
        followed.update((task.task_id, None) for task in tasks)
    return tuple(followed)
