"""Operators made of a decorated function: what `@task` and its kin create when the function is called."""

from __future__ import annotations

from asynsched.authoring import active
from asynsched.authoring.mapping.expand_input import check_names, refuse_repeated
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.bash import BashOperator
from asynsched.authoring.operators.foreign_python import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
)
from asynsched.authoring.operators.python import (
    BranchPythonOperator,
    PythonOperator,
    ShortCircuitOperator,
    call_with_context,
    telling_code,
)
from asynsched.authoring.running.context import CONTEXT_KEYS
from asynsched.authoring.sensors.python import PythonSensor
from asynsched.authoring.task_group import TaskGroup, unique_id
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, ClassVar, Self

    from asynsched.authoring.running.context import Context


class DecoratedFunction:
    """A decorated function. It looks like the function itself.

    Args:
        function: The function.
        kwargs: Arguments of what a call makes.

    Attributes:
        shared: Arguments of the function that all instances of what is mapped share.
    """

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        from functools import update_wrapper

        self.function = function
        self.kwargs = kwargs
        self.shared: dict[str, Any] = {}
        likeness: Any = self
        update_wrapper(likeness, function)

    def override(self, **kwargs: Any) -> Self:
        """Return the same, with other arguments of what a call makes."""
        raise NotImplementedError

    def partial(self, **kwargs: Any) -> Self:
        """Return the same, with arguments of the function that all instances share.

        Raises:
            TypeError: The function has no such argument, or it was given before.
        """
        self._check_given("partial", kwargs)
        other = self.override()
        other.shared = {**self.shared, **kwargs}
        return other

    @property
    def _who(self) -> str:
        """What messages call it."""
        raise NotImplementedError

    def _check_given(self, method: str, arguments: Mapping[str, Any]) -> None:
        check_names(self.function, method, arguments)
        refuse_repeated(self._who, self.shared, arguments)

    def _refuse_call(self) -> None:
        """Raise DagError for a call of what is to be mapped."""
        if self.shared:
            raise DagError(f"{self._who}: partial() is followed by expand() or expand_kwargs()")


class DecoratedOperator(BaseOperator):
    """An operator around a function and the arguments that it was called with.

    Raises:
        DagError: The function cannot be called with these arguments.
    """

    template_fields: Collection[str] = ("op_args", "op_kwargs")
    template_fields_renderers: ClassVar[Mapping[str, str]] = {"op_args": "py", "op_kwargs": "py"}

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        kwargs_to_upstream: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        group = kwargs.get("task_group") or active.current_group(kwargs.get("dag") or active.current_dag())
        if group is not None and self.mapped_from is None:
            task_id = unique_id(task_id, group)
        super().__init__(task_id=task_id, **(kwargs_to_upstream or {}), **kwargs)
        self.python_callable = python_callable
        self.op_args: Collection[Any] = tuple(op_args or ())
        self.op_kwargs: Mapping[str, Any] = dict(op_kwargs or {})
        _check_call(self.task_id, python_callable, self.op_args, self.op_kwargs)


class _PythonCall(DecoratedOperator):
    """Passes the function on to an operator that calls it.

    Subclasses name that operator's template fields: those of DecoratedOperator would come before them.
    """

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(
            python_callable=python_callable, kwargs_to_upstream={"python_callable": python_callable}, **kwargs
        )


class PythonDecoratedOperator(_PythonCall, PythonOperator):
    """`@task`."""

    template_fields: Collection[str] = PythonOperator.template_fields
    custom_operator_name = "@task"


class BranchDecoratedOperator(_PythonCall, BranchPythonOperator):
    """`@task.branch`."""

    template_fields: Collection[str] = PythonOperator.template_fields
    custom_operator_name = "@task.branch"


class ShortCircuitDecoratedOperator(_PythonCall, ShortCircuitOperator):
    """`@task.short_circuit`."""

    template_fields: Collection[str] = PythonOperator.template_fields
    custom_operator_name = "@task.short_circuit"


class SensorDecoratedOperator(_PythonCall, PythonSensor):
    """`@task.sensor`."""

    template_fields: Collection[str] = PythonSensor.template_fields
    custom_operator_name = "@task.sensor"


class VirtualenvDecoratedOperator(_PythonCall, PythonVirtualenvOperator):
    """`@task.virtualenv`."""

    template_fields: Collection[str] = PythonVirtualenvOperator.template_fields
    custom_operator_name = "@task.virtualenv"


class BranchVirtualenvDecoratedOperator(_PythonCall, BranchPythonVirtualenvOperator):
    """`@task.branch_virtualenv`."""

    template_fields: Collection[str] = PythonVirtualenvOperator.template_fields
    custom_operator_name = "@task.branch_virtualenv"


class ExternalPythonDecoratedOperator(_PythonCall, ExternalPythonOperator):
    """`@task.external_python`."""

    template_fields: Collection[str] = ExternalPythonOperator.template_fields
    custom_operator_name = "@task.external_python"


class BranchExternalPythonDecoratedOperator(_PythonCall, BranchExternalPythonOperator):
    """`@task.branch_external_python`."""

    template_fields: Collection[str] = ExternalPythonOperator.template_fields
    custom_operator_name = "@task.branch_external_python"


class BashDecoratedOperator(DecoratedOperator, BashOperator):
    """`@task.bash`: the function returns the command."""

    template_fields: Collection[str] = (*DecoratedOperator.template_fields, "env", "cwd")
    custom_operator_name = "@task.bash"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(kwargs_to_upstream={"bash_command": ""}, **kwargs)

    def execute(self, context: Context) -> Any:
        command = call_with_context(self.python_callable, self.op_args, self.op_kwargs, context)
        if not isinstance(command, str) or not command.strip():
            raise TypeError(f"task {self.task_id!r}: the function must return the command, a text, not {command!r}")
        self.bash_command = self.render_template(command, context)
        return BashOperator.execute(self, context)


RETURNING_DICTS = (PythonDecoratedOperator, VirtualenvDecoratedOperator, ExternalPythonDecoratedOperator)
"""Operators whose function may say by its annotation that the items of what it returns are XComs of their own."""


def _check_call(task_id: str, function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise DagError unless the function can be called so; parameters named as the task's context may be left out.

    Source: Apache Airflow's DecoratedOperator.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, TaskGroup):
            raise DagError(
                f"task {task_id!r}: {function.__name__}() is given the task group {value.group_id!r}, which has no"
                " result of its own; let the function of the group return that of one of its tasks"
            )
    if _fits(function, args, kwargs):
        return
    import inspect

    empty = inspect.Parameter.empty
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name in CONTEXT_KEYS and parameter.default not in (None, empty):
            raise DagError(
                f"task {task_id!r}: the parameter {parameter.name!r} is given by the task's context,"
                " so None is the only default that it can have"
            )
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as exc:
        raise DagError(f"task {task_id!r}: {function.__name__}() cannot be called like this: {exc}") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is empty
        and parameter.kind not in variadic
        and name not in bound.arguments
        and name not in CONTEXT_KEYS
    ]
    if missing:
        raise DagError(f"task {task_id!r}: {function.__name__}() lacks {', '.join(map(repr, missing))}")


def _fits(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function's code alone shows that it can be called so, and needs nothing of the context."""
    code = telling_code(function)
    if code is None or code.co_posonlyargcount:
        return False
    parameters = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    by_position = code.co_varnames[: code.co_argcount]
    optional = by_position[len(by_position) - len(function.__defaults__ or ()) :]
    given = {*by_position[: len(args)], *kwargs}
    return (
        parameters.isdisjoint(CONTEXT_KEYS)
        and len(given) == len(args) + len(kwargs)
        and given <= parameters <= given.union(optional, function.__kwdefaults__ or ())
    )
