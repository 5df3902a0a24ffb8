"""Task groups: tasks with a common prefix, common default arguments and common arrows."""

from __future__ import annotations

from asynsched.authoring import active
from asynsched.authoring.airflow_2 import renewed_defaults
from asynsched.authoring.exceptions import DuplicateTaskIdFound, TaskNotFound
from asynsched.authoring.node import DAGNode, DependencyMixin, check_group_key
from asynsched.authoring.operators.arguments import ArgumentTypes
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.mapping import ExpandInput
    from asynsched.authoring.operators.base import BaseOperator


class TaskGroup(DAGNode):
    """A named set of tasks and task groups within a DAG.

    Args:
        group_id: Letters, digits, `-` and `_`. None only for the root group of each DAG.
        prefix_group_id: Whether the ids of the tasks and groups inside begin with this group's id.
        parent_group: The enclosing group; by default that of the `with` block.
        dag: The DAG; by default that of the `with` block.
        default_args: Default arguments for the tasks inside; they override the DAG's.
        tooltip: A line of text shown for the group.
        doc_md: A text about the group, which no view shows.
        add_suffix_on_collision: Append `__1`, `__2`, … if the group_id is taken, instead of failing.

    Attributes:
        expand_input: The values that the group is mapped over; None if it is not mapped.
    """

    expand_input: ExpandInput | None = None

    def __init__(
        self,
        group_id: str | None,
        prefix_group_id: bool = True,
        parent_group: TaskGroup | None = None,
        dag: DAG | None = None,
        default_args: dict[str, Any] | None = None,
        tooltip: str = "",
        ui_color: str = "CornflowerBlue",
        ui_fgcolor: str = "#000",
        add_suffix_on_collision: bool = False,
        group_display_name: str = "",
        doc_md: str | None = None,
    ) -> None:
        _TYPES.check(f"task group {group_id!r}", dict(locals()))
        if dag is None:
            dag = parent_group.dag if parent_group is not None else active.current_dag()
        if dag is None:
            raise DagError(f"task group {group_id!r} is in no DAG: write it inside `with DAG(...)`, or pass `dag=`")
        self.dag: DAG = dag
        self.prefix_group_id = prefix_group_id
        self.default_args: dict[str, Any] = renewed_defaults(dict(default_args or {}))
        self.tooltip = tooltip
        self.doc_md = doc_md
        self.ui_color = ui_color
        self.ui_fgcolor = ui_fgcolor
        self.group_display_name = group_display_name
        self.children: dict[str, DAGNode] = {}
        self._relatives: dict[bool, list[DependencyMixin]] = {True: [], False: []}
        self.task_group = None
        self._group_id: str | None = None
        if group_id is not None:
            self._join(check_group_key(group_id), parent_group or active.current_group(dag), add_suffix_on_collision)

    def _join(self, group_id: str, parent: TaskGroup | None, add_suffix: bool) -> None:
        assert parent is not None
        if parent.dag is not self.dag:
            raise DagError(f"task group {group_id!r} is in DAG {self.dag.dag_id!r}, but its parent is in another")
        if parent.child_id(group_id) in self.dag.used_ids:
            if not add_suffix:
                raise DuplicateTaskIdFound(
                    f"DAG {self.dag.dag_id!r}: the id {parent.child_id(group_id)!r} of a task group is used twice"
                )
            group_id = unique_id(group_id, parent)
        self._group_id = parent.child_id(group_id)
        self.task_group = parent
        self.default_args = {**parent.default_args, **self.default_args}
        self.dag.used_ids.add(self._group_id)
        parent.children[self._group_id] = self

    @property
    def dag_id(self) -> str:
        """The DAG's id."""
        return self.dag.dag_id

    def has_dag(self) -> bool:
        """Return True: a group is always in a DAG."""
        return True

    def get_dag(self) -> DAG:
        """Return the group's DAG."""
        return self.dag

    @property
    def parent_group(self) -> TaskGroup | None:
        """The enclosing group; None for a DAG's root group."""
        return self.task_group

    @property
    def group_id(self) -> str | None:
        """The id with the prefixes of the enclosing groups; None for a DAG's root group."""
        return self._group_id

    node_id = group_id

    @property
    def is_root(self) -> bool:
        """Whether this is a DAG's root group."""
        return self._group_id is None

    def child_id(self, label: str) -> str:
        """Return the full id of the child with this name."""
        return f"{self._group_id}.{label}" if self._group_id is not None and self.prefix_group_id else label

    def add(self, node: DAGNode) -> DAGNode:
        """Put a task into this group."""
        name = node.node_id
        assert name is not None
        if self.children.setdefault(name, node) is not node:
            raise DuplicateTaskIdFound(f"DAG {self.dag.dag_id!r}: the id {name!r} is used twice")
        node.task_group = self
        return node

    def __iter__(self) -> Iterator[BaseOperator]:
        """Yield every task inside, at any depth."""
        for child in self.children.values():
            if isinstance(child, TaskGroup):
                yield from child
            else:
                yield child  # type: ignore[misc]

    iter_tasks = __iter__

    def has_task(self, task: BaseOperator) -> bool:
        """Return whether the task is inside, at any depth."""
        return any(task is inside for inside in self)

    def get_child_by_label(self, label: str) -> DAGNode:
        """Return the child, a task or group, with this name. Raises TaskNotFound."""
        try:
            return self.children[self.child_id(label)]
        except KeyError:
            raise TaskNotFound(f"task group {self.group_id!r} has no task or group {label!r}") from None

    __getitem__ = get_child_by_label

    def get_task_group_dict(self) -> dict[str | None, TaskGroup]:
        """Return this group and all groups inside by their ids, outer ones first."""
        groups: dict[str | None, TaskGroup] = {self.group_id: self}
        for child in self.children.values():
            if isinstance(child, TaskGroup):
                groups.update(child.get_task_group_dict())
        return groups

    @property
    def roots(self) -> list[BaseOperator]:
        tasks = list(self)
        inside = {task.task_id for task in tasks}
        return [task for task in tasks if task.upstream_task_ids.isdisjoint(inside)] or self._beyond(upstream=False)

    @property
    def leaves(self) -> list[BaseOperator]:
        """The last tasks inside; in place of a teardown that comes last, the tasks before it."""
        tasks = {task.task_id: task for task in self}
        found: dict[str, BaseOperator] = {}
        for task in tasks.values():
            if task.downstream_task_ids.isdisjoint(tasks):
                for leaf in _before_teardowns(task, tasks):
                    found[leaf.task_id] = leaf
        return list(found.values()) or ([] if tasks else self._beyond(upstream=True))

    @property
    def upstream_task_ids(self) -> set[str]:
        """The ids of the tasks that this group as a whole was put after; groups are not among them."""
        return self._related_tasks(upstream=True)

    @property
    def downstream_task_ids(self) -> set[str]:
        """The ids of the tasks that were put after this group as a whole; groups are not among them."""
        return self._related_tasks(upstream=False)

    @property
    def upstream_group_ids(self) -> set[str | None]:
        """The ids of the groups that this group was put after."""
        return {node.group_id for node in self._relatives[True] if isinstance(node, TaskGroup)}

    @property
    def downstream_group_ids(self) -> set[str | None]:
        """The ids of the groups that were put after this group."""
        return {node.group_id for node in self._relatives[False] if isinstance(node, TaskGroup)}

    def _related_tasks(self, *, upstream: bool) -> set[str]:
        nodes = [node for node in self._relatives[upstream] if not isinstance(node, TaskGroup)]
        return {task.task_id for node in nodes for task in (node.leaves if upstream else node.roots)}

    def get_roots(self) -> Iterator[BaseOperator]:
        """Yield the first tasks inside."""
        return iter(self.roots)

    def get_leaves(self) -> Iterator[BaseOperator]:
        """Yield the last tasks inside."""
        return iter(self.leaves)

    def _beyond(self, *, upstream: bool) -> list[BaseOperator]:
        """Return the tasks before or after an empty group: arrows go through it."""
        nodes = self._relatives[upstream]
        return [task for node in nodes for task in (node.leaves if upstream else node.roots)]

    def note_relative(self, other: DependencyMixin, *, upstream: bool) -> None:
        self._relatives[upstream].append(other)

    def __enter__(self) -> Self:
        active.enter(active.current_dag(), self)
        return self

    def __exit__(self, *_: object) -> None:
        active.leave()

    def __repr__(self) -> str:
        return f"<TaskGroup: {self.group_id}>"


_TYPES = ArgumentTypes(TaskGroup.__init__)


def _before_teardowns(task: BaseOperator, inside: dict[str, BaseOperator]) -> Iterator[BaseOperator]:
    """Yield the task, or for a teardown the tasks before it: an arrow from a group does not wait for its teardowns.

    Source: Apache Airflow's `TaskGroup.get_leaves`.
    """
    if not task.is_teardown:
        yield task
        return
    for name in sorted(task.upstream_task_ids & inside.keys()):
        before = inside[name]
        if before.is_teardown:
            yield from _before_teardowns(before, inside)
        elif not before.is_setup and all(
            inside[after].is_teardown for after in before.downstream_task_ids & inside.keys()
        ):
            yield before


def unique_id(label: str, group: TaskGroup) -> str:
    """Return `label`, or `label__1`, `label__2` and so on if it is taken in the group."""
    used = group.dag.used_ids
    if group.child_id(label) not in used:
        return label
    stem, _, number = label.rpartition("__")
    if not stem or not number.isdecimal():
        stem = label
    prefix = group.child_id(stem) + "__"
    suffixes = (used_id[len(prefix) :] for used_id in used if used_id.startswith(prefix))
    return f"{stem}__{max((int(suffix) for suffix in suffixes if suffix.isdecimal()), default=0) + 1}"
