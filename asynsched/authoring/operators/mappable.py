"""What every operator knows of mapping: how a mapped task is made of it, and which one it is an instance of."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.operators.mapped import MappedOperator, OperatorPartial
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.task_group import TaskGroup


class Mappable:
    """The part of BaseOperator that mapped tasks are made by.

    Attributes:
        is_mapped: Whether this is a mapped task.
        is_mapped_over: Whether a task or a task group is mapped over what this task returns.
        mapped_from: The mapped task that this is the running instance of.
        kept_as_is: Values that have come from other tasks: no templates are rendered in them.
    """

    task_id: str
    task_group: TaskGroup | None
    upstream_task_ids: set[str]
    downstream_task_ids: set[str]
    is_mapped: bool = False
    is_mapped_over: bool = False
    mapped_from: MappedOperator | None = None
    kept_as_is: Sequence[Any] = ()
    _dag: DAG | None

    @classmethod
    def partial(cls, *, task_id: str, **kwargs: Any) -> OperatorPartial:
        """Return the operator with the arguments that all instances of a mapped task share.

        It is followed by `expand` or `expand_kwargs`, which make the task.

        Raises:
            TypeError: The operator has no such argument.
        """
        from asynsched.authoring.operators.mapped import OperatorPartial

        return OperatorPartial(cls, {"task_id": task_id, **kwargs})  # type: ignore[arg-type]

    def take_place_of(self, mapped: MappedOperator) -> None:
        """Take the place of a mapped task, for one try of an instance."""
        self.task_id, self.task_group, self._dag = mapped.task_id, mapped.task_group, mapped.dag
        self.upstream_task_ids, self.downstream_task_ids = mapped.upstream_task_ids, mapped.downstream_task_ids

    def for_try(self, context: Context) -> BaseOperator:
        """Return what runs in a try of this task: a copy, whose fields may be overwritten by what is rendered."""
        return self.prepare_for_execution()

    def prepare_for_execution(self) -> BaseOperator:
        """Return a copy whose fields may be overwritten by what is rendered, for one try."""
        task: BaseOperator = object.__new__(type(self))  # type: ignore[assignment]
        task.__dict__.update(self.__dict__)
        task.__dict__["_constructed"] = False
        return task
