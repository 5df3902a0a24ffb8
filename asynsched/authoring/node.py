"""The nodes that `>>` and `<<` join: tasks, task groups, their results and labels; and the rules for their ids."""

from __future__ import annotations

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.task_group import TaskGroup


class DependencyMixin:
    """Something that stands for tasks: arrows start at its `leaves` and end at its `roots`."""

    @property
    def roots(self) -> list[BaseOperator]:
        """The tasks that an arrow to this node points to."""
        raise NotImplementedError

    @property
    def leaves(self) -> list[BaseOperator]:
        """The tasks that an arrow from this node starts at."""
        raise NotImplementedError

    def set_upstream(self, task_or_task_list: Any, edge_modifier: EdgeModifier | None = None) -> None:
        """Make this run after the given tasks."""
        for other in flatten(task_or_task_list):
            other.precede(self, edge_modifier)

    def set_downstream(self, task_or_task_list: Any, edge_modifier: EdgeModifier | None = None) -> None:
        """Make the given tasks run after this."""
        for other in flatten(task_or_task_list):
            other.follow(self, edge_modifier)

    def precede(self, node: DependencyMixin, label: EdgeModifier | None) -> None:
        """Draw an arrow from this node to another."""
        relate(self, node, label)

    def follow(self, node: DependencyMixin, label: EdgeModifier | None) -> None:
        """Draw an arrow from another node to this."""
        relate(node, self, label)

    def note_relative(self, other: DependencyMixin, *, upstream: bool) -> None:
        """Hook: called with every neighbour."""

    def as_setup(self) -> DependencyMixin:
        """Mark this as a setup, and return it."""
        raise DagError(f"{self!r} cannot be marked as a setup; only tasks can")

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> DependencyMixin:
        """Mark this as the teardown of the given setups, and return it."""
        raise DagError(f"{self!r} cannot be marked as a teardown; only tasks can")

    def __rshift__(self, other: Any) -> Any:
        self.set_downstream(other)
        return other

    def __lshift__(self, other: Any) -> Any:
        self.set_upstream(other)
        return other

    def __rrshift__(self, other: Any) -> Any:
        self.set_upstream(other)
        return self

    def __rlshift__(self, other: Any) -> Any:
        self.set_downstream(other)
        return self


class DAGNode(DependencyMixin):
    """A task or a task group: something with a name in a DAG."""

    task_group: TaskGroup | None = None
    if TYPE_CHECKING:  # subclasses have attributes or properties

        @property
        def dag(self) -> DAG: ...
        @property
        def upstream_task_ids(self) -> set[str]: ...
        @property
        def downstream_task_ids(self) -> set[str]: ...

    @property
    def node_id(self) -> str | None:
        """The task_id or group_id; None for a DAG's root group."""
        raise NotImplementedError

    @property
    def label(self) -> str | None:
        """The name without the prefix of the group around it."""
        group = self.task_group
        name = self.node_id
        if name is not None and group is not None and group.node_id and group.prefix_group_id:
            return name.removeprefix(group.node_id + ".")
        return name

    # Its place in the DAG

    def get_direct_relative_ids(self, upstream: bool = False) -> set[str]:
        """Return the task_ids of the direct downstream or upstream tasks."""
        return self.upstream_task_ids if upstream else self.downstream_task_ids

    def get_direct_relatives(self, upstream: bool = False) -> list[BaseOperator]:
        """Return the direct downstream or upstream tasks."""
        return [self.dag.task_dict[name] for name in sorted(self.get_direct_relative_ids(upstream))]

    @property
    def upstream_list(self) -> list[BaseOperator]:
        """The direct upstream tasks."""
        return self.get_direct_relatives(upstream=True)

    @property
    def downstream_list(self) -> list[BaseOperator]:
        """The direct downstream tasks."""
        return self.get_direct_relatives(upstream=False)

    def get_flat_relative_ids(self, *, upstream: bool = False) -> set[str]:
        """Return the task_ids of all downstream or upstream tasks, direct or not."""
        found: set[str] = set()
        todo = list(self.get_direct_relative_ids(upstream))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo.extend(self.dag.task_dict[name].get_direct_relative_ids(upstream))
        return found

    def get_flat_relatives(self, upstream: bool = False) -> list[BaseOperator]:
        """Return all downstream or upstream tasks, direct or not."""
        return [self.dag.task_dict[name] for name in sorted(self.get_flat_relative_ids(upstream=upstream))]


def flatten(nodes: Any) -> Iterator[DependencyMixin]:
    """Yield the nodes in a node or in lists of nodes, however nested. Raises DagError for anything else."""
    if isinstance(nodes, DependencyMixin):
        yield nodes
    elif isinstance(nodes, (list, tuple, set, frozenset)):
        for node in nodes:
            yield from flatten(node)
    else:
        raise DagError(f"only tasks and task groups can be related by >> and <<, not {type(nodes).__name__}: {nodes!r}")


def relate(upstream: DependencyMixin, downstream: DependencyMixin, label: EdgeModifier | None = None) -> None:
    """Make every root of `downstream` follow every leaf of `upstream`. Raises DagError if they cannot share a DAG."""
    upstream.note_relative(downstream, upstream=False)
    downstream.note_relative(upstream, upstream=True)
    for before in upstream.leaves:
        for after in downstream.roots:
            _share_dag(before, after)
            before.downstream_task_ids.add(after.task_id)
            after.upstream_task_ids.add(before.task_id)
            if label is not None:
                before.dag.set_edge_info(before.task_id, after.task_id, {"label": label.label})


def _share_dag(before: BaseOperator, after: BaseOperator) -> None:
    if before.has_dag() and after.has_dag():
        if before.dag is not after.dag:
            raise DagError(
                f"task {before.task_id!r} is in DAG {before.dag.dag_id!r}, and task {after.task_id!r} is in DAG"
                f" {after.dag.dag_id!r}: only tasks of the same DAG can depend on each other"
            )
    elif before.has_dag():
        before.dag.add_task(after)
    elif after.has_dag():
        after.dag.add_task(before)
    else:
        raise DagError(f"tasks {before.task_id!r} and {after.task_id!r} belong to no DAG: give one of them `dag=`")


def topological_order(tasks: Iterable[BaseOperator]) -> tuple[list[BaseOperator], list[str]]:
    """Return the tasks with each after those it depends on, and the task_ids of a cycle, if there is one.

    The order is breadth first, then by the order in which the tasks were made, so it is always the same.
    """
    by_id = {task.task_id: task for task in tasks}
    waiting = {name: len(task.upstream_task_ids & by_id.keys()) for name, task in by_id.items()}
    position = {name: place for place, name in enumerate(by_id)}
    ready = [name for name, count in waiting.items() if not count]
    ordered: list[BaseOperator] = []
    for name in ready:
        task = by_id[name]
        ordered.append(task)
        for after in sorted(task.downstream_task_ids & by_id.keys(), key=position.__getitem__):
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    stuck = {name: task for name, task in by_id.items() if waiting[name]}
    return ordered, _cycle(stuck)


def _cycle(stuck: dict[str, BaseOperator]) -> list[str]:
    """Return a cycle among tasks that all wait: each has an upstream among them, so walking up must come back."""
    if not stuck:
        return []
    name = next(iter(stuck))
    path: dict[str, int] = {}
    while name not in path:
        path[name] = len(path)
        name = min(stuck[name].upstream_task_ids & stuck.keys())
    cycle = list(path)[path[name] :][::-1]
    start = min(range(len(cycle)), key=cycle.__getitem__)
    return [*cycle[start:], *cycle[:start]]


class EdgeModifier(DependencyMixin):
    """The label of an arrow: `a >> Label("when it rains") >> b`."""

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
            raise DagError("two labels in a row: an arrow has one label only")
        self._before.append(node)
        for after in self._after:
            relate(node, after, self)

    def precede(self, node: DependencyMixin, label: EdgeModifier | None) -> None:
        if isinstance(node, EdgeModifier):
            raise DagError("two labels in a row: an arrow has one label only")
        self._after.append(node)
        for before in self._before:
            relate(before, node, self)


def Label(label: str) -> EdgeModifier:  # noqa: N802 - Airflow's name, used like a class
    """Return a label for the arrow between two tasks."""
    return EdgeModifier(label=label)


def chain(*tasks: Any) -> None:
    """Make each argument follow the one before it. Two adjacent lists of the same length are joined pair by pair.

    Raises DagError if two adjacent lists have different lengths.
    """
    for before, after in zip(tasks, tasks[1:], strict=False):  # noqa: RUF007 - itertools is not worth its import
        if isinstance(before, DependencyMixin):
            before.set_downstream(after)
        elif isinstance(after, DependencyMixin):
            after.set_upstream(before)
        else:
            if len(before) != len(after):
                raise DagError(
                    f"chain() joins two lists pair by pair, but they have {len(before)} and {len(after)} tasks;"
                    " use cross_downstream() or chain_linear() to join each with each"
                )
            for up_task, down_task in zip(before, after, strict=True):
                up_task.set_downstream(down_task)


def chain_linear(*elements: Any) -> None:
    """Make every task of each argument follow every task of the argument before it.

    Raises DagError if fewer than two arguments have tasks.
    """
    levels = [list(flatten(element)) for element in elements]
    levels = [level for level in levels if level]
    if len(levels) < 2:
        raise DagError("chain_linear() needs at least two arguments with tasks")
    for before, after in zip(levels, levels[1:], strict=False):  # noqa: RUF007 - itertools is not worth its import
        cross_downstream(before, after)


def cross_downstream(from_tasks: Any, to_tasks: Any) -> None:
    """Make every task of `to_tasks` follow every task of `from_tasks`."""
    for task in flatten(from_tasks):
        task.set_downstream(to_tasks)


MAX_KEY_LENGTH = 250
MAX_GROUP_KEY_LENGTH = 200


def check_key(kind: str, key: object, max_length: int = MAX_KEY_LENGTH, punctuation: str = "-._") -> str:
    """Return a dag_id or task_id if it is valid; otherwise raise DagError with the reason.

    Source: Apache Airflow's `validate_key`: word characters, `.` and `-`, at most 250 of them.
    """
    if not isinstance(key, str):
        raise DagError(f"{kind} must be a string, not {type(key).__name__}: {key!r}")
    if not key:
        raise DagError(f"{kind} is empty")
    if len(key) > max_length:
        raise DagError(f"{kind} {key[:40]!r}… has {len(key)} characters; at most {max_length} are allowed")
    wrong = _wrong_character(key, punctuation)
    if wrong is not None:
        raise DagError(
            f"{kind} {key!r} has the character {wrong!r}; use letters, digits and {' '.join(punctuation)} only"
        )
    # A member of a StrEnum becomes a plain string.
    return str.__str__(key)


def check_group_key(key: object) -> str:
    """Return a group_id if it is valid; otherwise raise DagError with the reason.

    Source: Apache Airflow's `validate_group_key`: word characters and `-`, at most 200 of them.
    """
    return check_key("group_id", key, MAX_GROUP_KEY_LENGTH, "-_")


def is_key(key: str) -> bool:
    """Return whether a string has the characters and the length of a dag_id or task_id."""
    return 0 < len(key) <= MAX_KEY_LENGTH and _wrong_character(key, "-._") is None


def _wrong_character(key: str, punctuation: str) -> str | None:
    # The same set as the regular expression `\w` plus the punctuation, without importing `re`.
    return next((character for character in key if not character.isalnum() and character not in punctuation), None)
