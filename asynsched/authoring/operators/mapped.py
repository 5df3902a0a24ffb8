"""Mapped operators: tasks that become as many instances as there are values to map over.

Source: Apache Airflow's OperatorPartial and MappedOperator.
"""

from __future__ import annotations

from asynsched.authoring.mapping.expand_input import refuse_repeated
from asynsched.authoring.mapping.map_position import mapped_groups
from asynsched.authoring.operators.arguments import RENAMED_OF_OPERATORS, explained
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.meta import arguments_of, check_types, task_owner
from asynsched.authoring.params import resolve_params
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from asynsched.authoring.mapping.expand_input import ExpandInput
    from asynsched.authoring.running.context import Context

BASE_ARGUMENTS = frozenset(arguments_of(BaseOperator))
"""Arguments of every task."""
UNMAPPABLE = BASE_ARGUMENTS - {"params"}
"""The scheduler goes by them: they are the same for all instances. Params are added to those that all share."""


class OperatorPartial:
    """An operator with the arguments that all instances share: what `Operator.partial()` returns.

    Raises:
        TypeError: The operator has no such argument.
        DagError: An argument is of a wrong type.
    """

    def __init__(self, operator_class: type[BaseOperator], kwargs: dict[str, Any]) -> None:
        self.operator_class = operator_class
        self.kwargs = kwargs
        refuse_unknown(operator_class, "partial", kwargs)
        check_types(operator_class, task_owner(kwargs.get("task_id", "?"), None), kwargs)

    def expand(self, **arguments: Any) -> MappedOperator:
        """Make the task, with an instance for each combination of the arguments' values.

        Raises:
            TypeError: There are no arguments, or the operator has no such one, or it cannot be mapped over.
        """
        from asynsched.authoring.mapping.expand_input import ExpandProduct

        refuse_unknown(self.operator_class, "expand", arguments)
        who = f"{self.operator_class.__name__} (task_id: {self.kwargs['task_id']})"
        refuse_repeated(who, {*self.kwargs, *UNMAPPABLE} - {"params"}, arguments)
        return self._mapped(ExpandProduct(self._owner, arguments))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Make the task, with an instance for each dict of arguments.

        Args:
            kwargs: A list of dicts, or the result of a task that returns such a list.
            strict: Whether an instance fails when a dict has an argument that `partial` has given; False lets the
                dict's win.

        Raises:
            TypeError: `kwargs` is something else.
        """
        from asynsched.authoring.mapping.expand_input import ExpandKwargs

        return self._mapped(ExpandKwargs(self._owner, kwargs), strict=strict)

    def _mapped(self, expand_input: ExpandInput, *, strict: bool = False) -> MappedOperator:
        base = {name: value for name, value in self.kwargs.items() if name in BASE_ARGUMENTS}
        return MappedOperator(
            operator_class=self.operator_class, expand_input=expand_input, shared=self.kwargs, strict=strict, **base
        )

    @property
    def _owner(self) -> str:
        return task_owner(self.kwargs["task_id"], None)

    def __repr__(self) -> str:
        return f"<{self.operator_class.__name__}.partial({self.kwargs.get('task_id')!r})>"


class MappedOperator(BaseOperator):
    """A mapped task. The arguments that every task has are its own; each instance is made when its try runs.

    Attributes:
        operator_class: The operator that the instances are of.
        expand_input: What is mapped over.
        shared: The arguments that all instances share.
        op_kwargs_expand: Whether what is mapped over are the arguments of a decorated function, not the operator's.

    Raises:
        DagError: It is inside a mapped task group.
    """

    is_mapped = True

    def __init__(
        self,
        *,
        operator_class: type[BaseOperator],
        expand_input: ExpandInput,
        shared: dict[str, Any],
        strict: bool,
        op_kwargs_expand: bool = False,
        **kwargs: Any,
    ) -> None:
        self.operator_class = operator_class
        self.expand_input = expand_input
        self.shared = shared
        self.op_kwargs_expand = op_kwargs_expand
        self._strict = strict
        self.is_branch, self.is_short_circuit = operator_class.is_branch, operator_class.is_short_circuit
        self.is_sensor = operator_class.is_sensor
        self.template_fields = operator_class.template_fields
        super().__init__(**kwargs)
        groups = mapped_groups(self)
        if groups:
            raise DagError(
                f"{task_owner(self.task_id, self.dag_id)}: expand() inside the mapped task group"
                f" {groups[-1].group_id!r} is not supported"
            )

    def finish_construction(self) -> None:
        """Draw the arrows from what is mapped over, and from results among the shared arguments."""
        for operator, _ in self.expand_input.iter_references():
            operator.is_mapped_over = True
        self._follow_references(self.expand_input)
        for field in self.template_fields:
            self._follow_references(self.shared.get(field))

    @property
    def task_type(self) -> str:
        return self.operator_class.__name__

    @property
    def operator_name(self) -> str:
        return self.operator_class.custom_operator_name or self.task_type

    @property
    def partial_kwargs(self) -> dict[str, Any]:
        """The arguments that all instances share, under Airflow's name."""
        return self.shared

    def for_try(self, context: Context) -> BaseOperator:
        """Return the operator of the running instance, made with the values that it is mapped to.

        Raises:
            TypeError: What it is mapped over is no list or dict of what is needed.
            IndexError: It has no value for this instance any more.
            DagError: The operator refuses its arguments.
        """
        values, from_results = self.expand_input.values_at(context["ti"].map_index, context)
        task: BaseOperator = self.operator_class.instance_of(self, self._arguments(values))
        # Templates are rendered in what the DAG file says, not in what comes from other tasks.
        task.kept_as_is = [values[name] for name in from_results]
        context.update(task=task, inlets=task.inlets, outlets=task.outlets)
        if "params" in values and not self.op_kwargs_expand:
            run = context["dag_run"]
            context["params"] = resolve_params(self.dag.params, task.params, run.conf, owner=f"run {run.run_id!r}")
        return task

    def _arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        who = task_owner(self.task_id, self.dag_id)
        arguments = {**self.shared, "task_id": self.task_id, "dag": self.dag, "task_group": self.task_group}
        if self.op_kwargs_expand:
            fixed = self.shared.get("op_kwargs") or {}
            if self._strict:
                refuse_repeated(who, fixed, values)
            return {**arguments, "op_kwargs": {**fixed, **values}}
        if self._strict:
            refuse_repeated(who, {*self.shared, *UNMAPPABLE} - {"params"}, values)
        if "params" in values:
            return {**arguments, **values, "params": {**(self.shared.get("params") or {}), **values["params"]}}
        return {**arguments, **values}

    def __repr__(self) -> str:
        return f"<Mapped({self.task_type}): {self.task_id}>"


def refuse_unknown(operator_class: type[BaseOperator], method: str, kwargs: Iterable[str]) -> None:
    """Raise TypeError for arguments that an operator does not have."""
    known = arguments_of(operator_class)
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        said = explained(unknown, known, RENAMED_OF_OPERATORS)
        raise TypeError(f"{operator_class.__name__}.{method}() has no argument {said}")
