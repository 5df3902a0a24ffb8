"""Operators that call a Python function: PythonOperator, BranchPythonOperator, ShortCircuitOperator."""

from __future__ import annotations

from asynsched.authoring.airflow_2 import OLD_VALUES
from asynsched.authoring.operators.arguments import TAKES_KEYWORDS
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.branch import BaseBranchOperator, SkipMixin
from asynsched.authoring.running.context import Context
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from types import CodeType
    from typing import Any, ClassVar, Unpack

    from asynsched.authoring.keywords import PythonKeywords, TaskKeywords


class PythonOperator(BaseOperator):
    """Calls a function, which may be `async def`, and returns its result.

    Args:
        python_callable: The function. Its parameters also receive the values of the same name in the task's context.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        templates_dict: A dict passed as `templates_dict`. (templated)
        templates_exts: Suffixes of strings that name template files.
        show_return_value_in_logs: Log the result.
    """

    template_fields: Collection[str] = ("templates_dict", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[Mapping[str, str]] = {
        "templates_dict": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")
    ui_color = "#ffefeb"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        templates_dict: dict[str, Any] | None = None,
        templates_exts: Sequence[str] | None = None,
        show_return_value_in_logs: bool = True,
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        if not callable(python_callable):
            raise DagError(f"task {self.task_id!r}: python_callable must be a function, not {python_callable!r}")
        self.python_callable = python_callable
        self.op_args: Collection[Any] = op_args or ()
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.templates_dict = templates_dict
        if templates_exts:
            self.template_ext = templates_exts
        self.show_return_value_in_logs = show_return_value_in_logs

    def execute(self, context: Context) -> Any:
        offer_arguments(self.op_kwargs, self.templates_dict, context)
        value = self.call_function(context)
        if self.show_return_value_in_logs and value is not None:
            self.log.info("Done. Returned value was: %s", _shown(value))
        return value

    def call_function(self, context: Context) -> Any:
        """Call the function with its arguments and values of the context, and return its result."""
        # An assignment would look for references to other tasks in all values of the context.
        given, own = self.op_kwargs, vars(self)
        own["op_kwargs"] = self.determine_kwargs(context)
        try:
            value = self.execute_callable()
        finally:
            own["op_kwargs"] = given
        return result_of(self.python_callable, value, context)

    def determine_kwargs(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keyword arguments of the call: those of `op_kwargs` and of the context that are parameters."""
        return keyword_arguments(self.python_callable, self.op_args, self.op_kwargs, context)

    def execute_callable(self) -> Any:
        """Call the function with `op_args` and `op_kwargs`, and await a coroutine. Subclasses may do more around it.

        Operators that call the function in another interpreter use neither this nor `determine_kwargs`.
        """
        return finished(self.python_callable(*self.op_args, **self.op_kwargs))


OWN_VALUES = frozenset({"dag", "dag_run", "outlet_events", "task", "task_instance", "ti"})
"""The values of a context that asynsched reads after the function; arguments of these names do not replace them."""


def offer_arguments(op_kwargs: Mapping[str, Any], templates_dict: dict[str, Any] | None, context: Context) -> None:
    """Add a function's arguments to the context, in which other code of the task finds them too."""
    if op_kwargs:
        context.update({name: value for name, value in op_kwargs.items() if name not in OWN_VALUES})
    context["templates_dict"] = templates_dict


def _shown(value: Any) -> str:
    """Return a value as a string. A value that cannot be shown, such as a list nested too deeply, fails no task."""
    try:
        return str(value)
    except Exception as exc:  # noqa: BLE001 - its class may be the user's
        return f"of type {type(value).__name__}, which cannot be shown ({type(exc).__name__})"


class BranchByFunction(BaseBranchOperator):
    """Follows the branches that a function returns, which the next base class calls."""

    def choose_branch(self, context: Context) -> Any:
        return super(BaseBranchOperator, self).execute(context)


class BranchPythonOperator(BranchByFunction, PythonOperator):
    """Calls a function that returns the task_ids and group_ids to run: one, several, or None."""


class ShortCircuitOperator(PythonOperator, SkipMixin):
    """Calls a function, and skips downstream tasks if its result is false.

    Args:
        ignore_downstream_trigger_rules: Skip all downstream tasks. If False, skip only the direct ones; the others
            follow their trigger rules.
    """

    is_short_circuit = True

    def __init__(self, *, ignore_downstream_trigger_rules: bool = True, **kwargs: Unpack[PythonKeywords]) -> None:
        super().__init__(**kwargs)
        self.ignore_downstream_trigger_rules = ignore_downstream_trigger_rules

    def execute(self, context: Context) -> Any:
        condition = super().execute(context)
        if not condition:
            self.cut_short(context["ti"], ignore_trigger_rules=bool(self.ignore_downstream_trigger_rules))
        return condition


def call_with_context(
    function: Callable[..., Any], op_args: Collection[Any], op_kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> Any:
    """Call a function with its arguments and the context's values for its other parameters; await a coroutine.

    A generator is run to its end: the values it yields describe asset events, and its return value is returned.
    """
    value = function(*op_args, **keyword_arguments(function, op_args, op_kwargs, context))
    return result_of(function, value, context)


def result_of(function: Callable[..., Any], value: Any, context: Mapping[str, Any]) -> Any:
    """Return the result of a function that returned `value`: await a coroutine, and run a generator of its own."""
    value = finished(value)
    if not hasattr(value, "gi_frame"):
        return value
    import inspect

    is_own = inspect.isgenerator(value) and inspect.isgeneratorfunction(function)
    return describe_outlets(value, context) if is_own else value


def describe_outlets(described: Generator[Any, None, Any], context: Mapping[str, Any]) -> Any:
    """Run a generator, record the Metadata that it yields for the task's outlets, and return its return value."""
    from asynsched.authoring.assets import Metadata

    while True:
        try:
            item = next(described)
        except StopIteration as end:
            return end.value
        if not isinstance(item, Metadata):
            context["task"].log.warning("A task may only yield Metadata; ignored: %r", item)
            continue
        context["outlet_events"][item.asset].extra.update(item.extra)
        if item.alias is not None:
            context["outlet_events"][item.alias].add(item.asset, item.extra)


def finished(value: Any) -> Any:
    """Return a value; run a coroutine and return its result."""
    if hasattr(value, "__await__") and hasattr(value, "send"):
        import asyncio

        return asyncio.run(value)
    return value


def keyword_arguments(
    function: Callable[..., Any], op_args: Collection[Any], op_kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a call: those of `op_kwargs` and of the context that are parameters.

    Source: Apache Airflow's `KeywordParameters`.
    """
    parameters = parameters_of_call(function)
    if parameters is None:
        return dict(op_kwargs)
    positional, others, takes_any = parameters
    # Names first: reading a value of the context may ask the scheduler.
    taken, named = positional[: len(op_args)], {*positional, *others}
    available = {*context, *op_kwargs}.difference(taken)
    if not takes_any:
        available &= named
    values = {name: op_kwargs[name] if name in op_kwargs else context[name] for name in sorted(available)}
    if isinstance(context, Context) and (takes_any or not named.isdisjoint(OLD_VALUES)):
        values = {**context.old_values(named, takes_any=takes_any, without=taken), **values}
    return values


def telling_code(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function if that is enough to know its parameters; None if only `inspect` knows them.

    `inspect.signature` would be the longest step of a task that does nothing, and of the parse of a file.
    """
    if type(function) is not type(telling_code) or function.__dict__.keys() & {"__wrapped__", "__signature__"}:
        return None
    return function.__code__


def parameters_of_call(function: Callable[..., Any]) -> tuple[Sequence[str], Sequence[str], bool] | None:
    """Return the names of positional parameters and of the others, and whether any keyword fits; None if unknown."""
    code = telling_code(function)
    if code is not None:
        end = code.co_argcount + code.co_kwonlyargcount
        positional, others = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount : end]
        return positional, others, bool(code.co_flags & TAKES_KEYWORDS)
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        [parameter.name for parameter in parameters if parameter.kind in by_position],
        [parameter.name for parameter in parameters if parameter.kind not in by_position],
        any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    )
