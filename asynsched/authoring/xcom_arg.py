"""A task's result, before it exists: what calling a `@task` function, or `operator.output`, returns."""

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


class ResolveMixin:
    """A value that is known only when a task runs."""

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        """Yield the tasks, with XCom keys, that the value comes from."""
        return iter(())

    def resolve(self, context: Context) -> Any:
        """Return the value."""
        raise NotImplementedError


class ResultArg(ResolveMixin, DependencyMixin):
    """Results of tasks: what a task returns, or what `map`, `zip` and `concat` make of that, to be mapped over."""

    @property
    def roots(self) -> list[BaseOperator]:
        return [operator for operator, _ in self.iter_references()]

    @property
    def leaves(self) -> list[BaseOperator]:
        return [operator for operator, _ in self.iter_references()]

    def map(self, f: Callable[[Any], Any]) -> ResultArg:
        """Return the same values, each as a function makes it.

        The function is called when the task that gets a value runs; it may raise AsynschedSkipException to skip that.

        Raises:
            TypeError: It is a task, or no function.
            DagError: Only what a task returns can be mapped over.
        """
        from asynsched.authoring.mapped_results import TransformedArg

        return TransformedArg(self, [f])

    def zip(self, *others: ResultArg, **fill: Any) -> ResultArg:
        """Return the values side by side, as tuples: as many as the shortest has.

        Args:
            others: Other results.
            fill: `fillvalue=`: as many as the longest has, and this in the place of what is missing.

        Raises:
            TypeError: One of them is no result of a task.
            DagError: Only what a task returns can be mapped over.
        """
        from asynsched.authoring.mapped_results import ZippedArg

        return ZippedArg([self, *others], **fill)

    def concat(self, *others: ResultArg) -> ResultArg:
        """Return the values one after the other.

        Raises:
            TypeError: One of them is no result of a task.
            DagError: Only what a task returns can be mapped over.
        """
        from asynsched.authoring.mapped_results import ConcatenatedArg

        return ConcatenatedArg([self, *others])


class XComArg(ResultArg):
    """The XCom that a task pushes under a key.

    Given as an argument to another task, it makes that one follow, and is replaced by the value when it runs. Within a
    text it stands for a template that pulls it.
    """

    def __init__(self, operator: BaseOperator, key: str = XCOM_RETURN_KEY) -> None:
        self.operator = operator
        self.key = key

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        yield self.operator, self.key

    def resolve(self, context: Context) -> Any:
        """Return what the task pushed; None for a task that returned nothing. Raises XComNotFound for another key.

        Of a mapped task, or of one in a mapped group that is not around the running task, too: what its instances
        pushed, as a sequence.
        """
        task_id = self.operator.task_id
        share: int | tuple[int, int] | None = None
        if self.operator.is_mapped or mapped_groups(self.operator):
            share = map_share(context, self.operator)
            if not isinstance(share, int):
                from asynsched.authoring.mapped_results import LazyXComSequence

                return LazyXComSequence(task_id, self.key, share)
        value = context["ti"].xcom_pull(task_ids=task_id, key=self.key, default=_MISSING, map_indexes=share)
        if value is not _MISSING:
            return value
        if self.key == XCOM_RETURN_KEY or self.operator.multiple_outputs:
            return None
        raise XComNotFound(f"task {task_id!r} pushed no XCom {self.key!r}")

    def __getitem__(self, item: str) -> XComArg:
        if not isinstance(item, str):
            raise TypeError(f"the result of task {self.operator.task_id!r} can be indexed by a text only, got {item!r}")
        return XComArg(self.operator, item)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"the result of task {self.operator.task_id!r} is known only when it has run: do not iterate")

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
        """Whether the task is a setup."""
        return self.operator.is_setup

    @property
    def is_teardown(self) -> bool:
        """Whether the task is a teardown."""
        return self.operator.is_teardown

    def __enter__(self) -> SetupTeardownContext:
        return self.operator.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self.operator.__exit__(*exc_info)


class _Missing:
    """What xcom_pull returns here when there is no XCom; None may be one."""

    def __repr__(self) -> str:
        return "<missing>"


_MISSING = _Missing()


class literal(ResolveMixin):  # noqa: N801 - Airflow's name, used like a function
    """A value that is passed to a task as it is, without templating."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def resolve(self, context: Context) -> Any:
        return self.value


def references(value: Any) -> Iterator[BaseOperator]:
    """Yield the tasks whose results a value has, at any depth of lists, dicts and objects with `template_fields`."""
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
