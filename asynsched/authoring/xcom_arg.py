"""Results of tasks before they exist, as calling a `@task` function returns them; and which belong to an instance."""

from __future__ import annotations

from asynsched.authoring.exceptions import XComNotFound
from asynsched.authoring.node import DependencyMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from asynsched.authoring.active import SetupTeardownContext
    from asynsched.authoring.mapping import ExpandInput
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.task_group import TaskGroup

XCOM_RETURN_KEY = "return_value"


if TYPE_CHECKING:

    class OfAnyType(Any):  # type: ignore[misc]
        """For type checkers, a value that is known only later may stand in the place of any other."""
else:
    OfAnyType = object


class ResolveMixin(OfAnyType):
    """A value that is known only when a task runs."""

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        """Yield the tasks, with XCom keys, that the value comes from."""
        return iter(())

    def resolve(self, context: Context) -> Any:
        raise NotImplementedError


class ResultArg(ResolveMixin, DependencyMixin):
    """Results of tasks to be mapped over: a task's return value, or the result of its `map`, `zip` or `concat`."""

    @property
    def roots(self) -> list[BaseOperator]:
        return [operator for operator, _ in self.iter_references()]

    leaves = roots

    def map(self, f: Callable[[Any], Any]) -> ResultArg:
        """Apply a function to each value.

        The function is called in the task that receives the value; it may raise AsynschedSkipException to skip that
        task. Raises TypeError if `f` is a task, or not a function; and DagError if these are not return values: nothing
        else can be mapped over.
        """
        from asynsched.authoring.mapped_results import TransformedArg

        return TransformedArg(self, f)

    def zip(self, *others: ResultArg, **fill: Any) -> ResultArg:
        """Pair the values of several results as tuples; the shortest result sets the length.

        Args:
            fill: `fillvalue=`: the longest result sets the length, and this value fills the gaps.

        Raises the errors of `concat`.
        """
        from asynsched.authoring.mapped_results import ZippedArg

        return ZippedArg([self, *others], **fill)

    def concat(self, *others: ResultArg) -> ResultArg:
        """Append the values of other results.

        Raises TypeError if one of them is not the result of a task, and DagError if one of them is not a return value:
        nothing else can be mapped over.
        """
        from asynsched.authoring.mapped_results import ConcatenatedArg

        return ConcatenatedArg([self, *others])


class XComArg(ResultArg):
    """The XCom that a task pushes under a key.

    Passed to another task as an argument, it makes that task follow, and becomes the value when that task runs. In an
    f-string it becomes a template that pulls the value.
    """

    def __init__(self, operator: BaseOperator, key: str = XCOM_RETURN_KEY) -> None:
        self.operator = operator
        self.key = key

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        yield self.operator, self.key

    def resolve(self, context: Context) -> Any:
        """Return the task's XCom; None for a task that returned nothing.

        For a mapped task, this is the sequence of its instances' XComs; for a task in a mapped group that does not also
        enclose the running task, it is their list. Raises XComNotFound if the task pushed nothing under this key.
        """
        task_id = self.operator.task_id
        share: int | tuple[int, int] | None = None
        if self.operator.is_mapped or mapped_groups(self.operator):
            share = map_share(context, self.operator)
            if not isinstance(share, int):
                from asynsched.authoring.mapped_results import LazyXComSequence  # not needed to read a DAG file

                values = LazyXComSequence(task_id, self.key, share)
                return values if self.operator.is_mapped else list(values)
        value = context["ti"].xcom_pull(task_ids=task_id, key=self.key, default=_MISSING, map_indexes=share)
        if value is not _MISSING:
            return value
        if self.key == XCOM_RETURN_KEY or self.operator.multiple_outputs:
            return None
        raise XComNotFound(f"task {task_id!r} pushed no XCom {self.key!r}")

    def __getitem__(self, item: str) -> XComArg:
        if not isinstance(item, str):
            raise TypeError(f"the result of task {self.operator.task_id!r} takes a string as index, not {item!r}")
        return XComArg(self.operator, item)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            f"the result of task {self.operator.task_id!r} is known only when it has run: it cannot be iterated here"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, XComArg):
            return NotImplemented
        return self.operator is other.operator and self.key == other.key

    def __hash__(self) -> int:
        return hash((id(self.operator), self.key))

    def __str__(self) -> str:
        task_id, dag_id = self.operator.task_id, self.operator.dag_id
        return f"{{{{ task_instance.xcom_pull(task_ids='{task_id}', dag_id='{dag_id}', key='{self.key}') }}}}"

    def __repr__(self) -> str:
        return f"XComArg({self.operator!r}, {self.key!r})"

    def as_setup(self) -> XComArg:
        self.operator.as_setup()
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> XComArg:
        self.operator.as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    @property
    def is_setup(self) -> bool:
        return self.operator.is_setup

    @property
    def is_teardown(self) -> bool:
        return self.operator.is_teardown

    def __enter__(self) -> SetupTeardownContext:
        return self.operator.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self.operator.__exit__(*exc_info)


def is_return_value(value: object) -> bool:
    """Return whether a value stands for the whole return value of a task."""
    return isinstance(value, XComArg) and value.key == XCOM_RETURN_KEY


_MISSING = object()
"""The default of an `xcom_pull` here: an XCom may be None."""


class literal(ResolveMixin):  # noqa: N801 - Airflow's name, used like a function
    """A value that is passed to a task unchanged, without templating."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def resolve(self, context: Context) -> Any:
        return self.value


def references(value: Any) -> Iterator[BaseOperator]:
    """Yield the tasks whose results are in a value, at any depth of lists, dicts and objects with `template_fields`."""
    if isinstance(value, ResolveMixin):
        for operator, _ in value.iter_references():
            yield operator
    elif isinstance(value, (list, tuple, set, frozenset)):
        for element in value:
            yield from references(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from references(element)
    elif hasattr(type(value), "template_fields"):
        for field in value.template_fields:
            yield from references(getattr(value, field, None))


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
    """Return the map indexes of another task's instances that belong to the running instance.

    They are the instances in the same instance of the mapped groups around both tasks. Instances are numbered with the
    innermost mapped group running fastest.

    Returns:
        One index; the first and one past the last; or None for all.

    Source: Apache Airflow's `get_relevant_upstream_map_indexes`.
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
    """Return the arguments of a mapped task group for the running instance."""
    groups = mapped_groups(context["ti"].task)
    depth = next(depth for depth, group in enumerate(groups) if group.expand_input is expand_input)
    index = context["ti"].map_index // _product(context, groups[depth + 1 :])
    if depth:
        # The index of the instance within the groups around; the outermost group needs no reduction.
        index %= expand_input.length(context)
    values, _ = expand_input.values_at(index, context)
    return values


def instance_count(context: Context) -> int | None:
    """Return the number of instances of the running task; None if it is not mapped."""
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
