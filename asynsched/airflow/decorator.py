"""Functions of providers' decorators and operators: they make tasks of functions, and call these with a context."""

from __future__ import annotations

from asynsched.authoring import active
from asynsched.authoring.operators.python import keyword_arguments
from asynsched.authoring.task_group import unique_id
from asynsched.authoring.taskflow import TaskDecorator, TaskFunction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.task_group import TaskGroup


def task_decorator_factory(
    python_callable: Callable[..., Any] | None = None,
    *,
    multiple_outputs: bool | None = None,
    decorated_operator_class: type[BaseOperator],
    **kwargs: Any,
) -> Any:
    """Return the decorated function, or, without a function, the decorator.

    Args:
        multiple_outputs: Whether the items of a returned dict become XComs of their own; None to go by the function's
            annotation.
        decorated_operator_class: The operator of the tasks, a DecoratedOperator.
        kwargs: The operator's arguments.
    """
    if multiple_outputs is not None:
        kwargs["multiple_outputs"] = multiple_outputs
    return TaskDecorator(decorated_operator_class)(python_callable, **kwargs)


def get_unique_task_id(task_id: str, dag: DAG | None = None, task_group: TaskGroup | None = None) -> str:
    """Return the task_id, with `__1`, `__2` and so on behind it if it is taken in the DAG, or the group."""
    group = task_group or active.current_group(dag or active.current_dag())
    return task_id if group is None else unique_id(task_id, group)


class KeywordParameters:
    """The given keyword arguments that a function takes."""

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        self._kwargs = kwargs

    @classmethod
    def determine(cls, func: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> KeywordParameters:
        """Choose the ones that the function has parameters for, all of them for `**kwargs`.

        Args:
            args: The positional arguments of the call.
            kwargs: The arguments to choose from, such as a task's context.

        Raises:
            ValueError: A parameter that has a positional argument would also get one by its name.
        """
        from inspect import signature
        from itertools import islice

        for name, parameter in islice(signature(func).parameters.items(), len(args)):
            if name in kwargs and parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
                raise ValueError(f"the positional argument for {name!r} has a name that the context gives a value to")
        return cls(keyword_arguments(func, args, {}, kwargs))

    def unpacking(self) -> Mapping[str, Any]:
        """Return them for `**`."""
        return self._kwargs


def determine_kwargs(func: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keyword arguments that the function takes: see `KeywordParameters.determine`."""
    return KeywordParameters.determine(func, args, kwargs).unpacking()


def result(function: TaskFunction) -> TaskFunction:
    """Mark the function of a task whose return value is a result of the DAG's runs.

    Raises:
        TypeError: The function is not decorated with `@task`.
    """
    if not isinstance(function, TaskFunction):
        raise TypeError("@result must be written above @task")
    function.returns_dag_result = True
    return function
