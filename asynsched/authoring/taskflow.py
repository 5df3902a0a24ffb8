"""Operators made of a decorated function: what `@task` and its kin create when the function is called."""

from __future__ import annotations

from asynsched.authoring import active
from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import AsynschedSkipException
from asynsched.authoring.mapping import (
    BASE_ARGUMENTS,
    ExpandInput,
    ExpandKwargs,
    ExpandProduct,
    MappedArgument,
    MappedOperator,
    check_names,
    parameters_of,
    refuse_repeated,
    refuse_unknown,
)
from asynsched.authoring.node import flatten
from asynsched.authoring.operators.arguments import task_owner
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
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import ResultArg, XComArg
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


def run_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[Any], Any]:
    """Skip the task below unless `condition`, called with its context, is true.

    Args:
        condition: Returns a bool, or a bool and a message.
        skip_message: Message when it is skipped, if the condition gives none.
    """
    return _guard(condition, skip_message, runs_when=True)


def skip_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[Any], Any]:
    """Skip the task below if `condition`, called with its context, is true; arguments as for `run_if`."""
    return _guard(condition, skip_message, runs_when=False)


def _guard(condition: Callable[[Context], Any], skip_message: str | None, *, runs_when: bool) -> Callable[[Any], Any]:
    def decorate(task_function: Any) -> Any:
        if not hasattr(task_function, "override"):
            raise DagError("@task.run_if and @task.skip_if must be written above @task")
        earlier = task_function.kwargs.get("pre_execute")

        def pre_execute(context: Context) -> None:
            answer = condition(context)
            is_true, message = answer if isinstance(answer, tuple) else (answer, None)
            if bool(is_true) is not runs_when:
                raise AsynschedSkipException(
                    message or skip_message or f"the condition says {'not to run' if runs_when else 'to skip'}"
                )
            if earlier is not None:
                earlier(context)

        return task_function.override(pre_execute=pre_execute)

    return decorate


class TaskGroupFunction(DecoratedFunction):
    """A function decorated with `@task_group`: each call makes a group with the tasks that the function makes."""

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        super().__init__(function, {"group_id": function.__name__, **kwargs})
        if function.__doc__:
            self.kwargs.setdefault("tooltip", function.__doc__.strip())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_call()
        with TaskGroup(**{"add_suffix_on_collision": True, **self.kwargs}) as group:
            made = self.function(*args, **kwargs)
        return group if made is None else made

    def override(self, **kwargs: Any) -> TaskGroupFunction:
        """Return the same, with other arguments of the task group."""
        other = TaskGroupFunction(self.function, {**self.kwargs, **kwargs})
        other.shared = self.shared
        return other

    def expand(self, **kwargs: Any) -> Any:
        """Make a mapped group: an instance of its tasks for each combination of the arguments' values.

        Raises:
            TypeError: There are no arguments, or the function has no such one, or it cannot be mapped over.
        """
        self._check_given("expand", kwargs)
        return self._mapped(ExpandProduct(self._who, kwargs), list(kwargs))

    def expand_kwargs(self, kwargs: Any) -> Any:
        """Make a mapped group: an instance of its tasks for each dict of arguments.

        Raises:
            TypeError: `kwargs` is neither a list of dicts nor the result of a task, or the function takes any arguments
                (`*` or `**`).
        """
        names, takes_any = parameters_of(self.function)
        if takes_any:
            raise TypeError(f"{self._who}: expand_kwargs() needs a function without * and **")
        return self._mapped(ExpandKwargs(self._who, kwargs), [name for name in names if name not in self.shared])

    @property
    def _who(self) -> str:
        return f"task group {self.kwargs['group_id']!r}"

    def _mapped(self, expand_input: ExpandInput, names: list[str]) -> Any:
        arguments = {name: MappedArgument(expand_input, name) for name in names}
        with MappedTaskGroup(expand_input, **{"add_suffix_on_collision": True, **self.kwargs}) as group:
            made = self.function(**self.shared, **arguments)
        return group if made is None else made


class MappedTaskGroup(TaskGroup):
    """A task group of whose tasks there are as many instances as values to map over."""

    def __init__(self, expand_input: ExpandInput, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expand_input: ExpandInput = expand_input

    def __exit__(self, *exc_info: object) -> None:
        for operator, _ in self.expand_input.iter_references():
            operator.is_mapped_over = True
            self.set_upstream(operator)
        super().__exit__(*exc_info)


class TaskFunction(DecoratedFunction):
    """A decorated function: calling it makes a task, and returns that task's result, to be passed on.

    Args:
        function: The function.
        operator_class: Operator that the tasks are of.
        kwargs: Arguments of the operator.
    """

    def __init__(
        self, function: Callable[..., Any], operator_class: type[BaseOperator], kwargs: dict[str, Any]
    ) -> None:
        if not callable(function):
            raise DagError(f"@task decorates functions, not {function!r}")
        super().__init__(function, {"task_id": function.__name__, **kwargs})
        self.operator_class = operator_class
        self.is_setup = False
        self.is_teardown = False
        self.teardown_setups: Any = None
        self.on_failure_fail_dagrun: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg:
        self._refuse_call()
        task = self.operator_class(
            python_callable=self.function, op_args=args, op_kwargs=kwargs, **self._operator_arguments()
        )
        return self._made(task)

    def override(self, **kwargs: Any) -> TaskFunction:
        """Return the same, with other arguments of the operator."""
        other = TaskFunction(self.function, self.operator_class, {**self.kwargs, **kwargs})
        other.is_setup, other.is_teardown = self.is_setup, self.is_teardown
        other.teardown_setups, other.on_failure_fail_dagrun = self.teardown_setups, self.on_failure_fail_dagrun
        other.shared = self.shared
        return other

    def expand(self, **kwargs: Any) -> XComArg:
        """Make a mapped task: an instance for each combination of the arguments' values.

        Raises:
            TypeError: There are no arguments, or the function has no such one, or it cannot be mapped over.
            DagError: Its trigger rule does not let it wait for what it is mapped over.
        """
        self._check_given("expand", kwargs)
        if any(isinstance(value, ResultArg) for value in kwargs.values()):
            self._refuse_always("expand")
        return self._mapped(ExpandProduct(self._who, kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg:
        """Make a mapped task: an instance for each dict of arguments.

        Args:
            kwargs: A list of dicts, or the result of a task that returns such a list.
            strict: Whether an instance fails when a dict has an argument that `partial` has given; False lets the
                dict's win.

        Raises:
            TypeError: `kwargs` is something else.
            DagError: Its trigger rule does not let it wait for what it is mapped over.
        """
        expand_input = ExpandKwargs(self._who, kwargs)
        if not isinstance(kwargs, ResultArg) and any(True for _ in expand_input.iter_references()):
            self._refuse_always("expand_kwargs")
        return self._mapped(expand_input, strict=strict)

    @property
    def _who(self) -> str:
        return task_owner(self.kwargs["task_id"], None)

    def _refuse_always(self, method: str) -> None:
        if self.kwargs.get("trigger_rule") == TriggerRule.ALWAYS:
            raise DagError(f"{self._who}: {method}() over results of tasks is not allowed with the trigger_rule always")

    def _operator_arguments(self) -> dict[str, Any]:
        arguments = dict(self.kwargs)
        if "multiple_outputs" not in arguments and issubclass(self.operator_class, RETURNING_DICTS):
            arguments["multiple_outputs"] = _returns_mapping(self.function)
        return arguments

    def _mapped(self, expand_input: ExpandInput, *, strict: bool = False) -> XComArg:
        arguments = self._operator_arguments()
        refuse_unknown(self.operator_class, "expand", arguments)
        dag = arguments.get("dag") or active.current_dag()
        group = arguments.get("task_group") or active.current_group(dag)
        if group is not None:
            arguments["task_id"] = unique_id(arguments["task_id"], group)
        base = {name: value for name, value in arguments.items() if name in BASE_ARGUMENTS}
        shared = {**arguments, "python_callable": self.function, "op_kwargs": self.shared}
        mapped = MappedOperator(
            operator_class=self.operator_class,
            expand_input=expand_input,
            shared=shared,
            strict=strict,
            op_kwargs_expand=True,
            **base,
        )
        return self._made(mapped)

    def _made(self, task: BaseOperator) -> XComArg:
        """Return the result of a task that was just made, having marked and documented it."""
        if self.function.__doc__ and not any((task.doc, task.doc_md, task.doc_json, task.doc_rst, task.doc_yaml)):
            task.doc_md = self.function.__doc__
        if self.is_setup:
            task.as_setup()
        if self.is_teardown:
            if "trigger_rule" in self.kwargs:
                raise DagError(f"task {task.task_id!r} is a teardown, so it cannot have a trigger_rule")
            task.as_teardown(setups=self.teardown_setups, on_failure_fail_dagrun=self.on_failure_fail_dagrun)
        return XComArg(task)


class TaskDecorator:
    """One of the decorators: `@task`, `@task(...)`, `@task.bash(...)` and so on."""

    def __init__(self, operator_class: type[BaseOperator], dag: DAG | None = None) -> None:
        self._operator_class = operator_class
        self._bound = {} if dag is None else {"dag": dag}

    def __call__(self, python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        """Decorate a function; the keyword arguments are the operator's.

        Without a function, as in `@task(retries=3)`, returns what decorates one.
        """
        if python_callable is None:
            return lambda function: self(function, **kwargs)
        if isinstance(python_callable, TaskFunction):
            raise DagError(f"{python_callable.__name__}() is decorated twice")  # type: ignore[attr-defined]
        return TaskFunction(python_callable, self._operator_class, {**self._bound, **kwargs})


class TaskDecorators(TaskDecorator):
    """`task`: a decorator, and the namespace of the others; as `dag.task`, their tasks belong to that DAG."""

    def __init__(self, dag: DAG | None = None) -> None:
        super().__init__(PythonDecoratedOperator, dag)
        self.python = TaskDecorator(PythonDecoratedOperator, dag)
        self.bash = TaskDecorator(BashDecoratedOperator, dag)
        self.branch = TaskDecorator(BranchDecoratedOperator, dag)
        self.short_circuit = TaskDecorator(ShortCircuitDecoratedOperator, dag)
        self.sensor = TaskDecorator(SensorDecoratedOperator, dag)
        self.virtualenv = TaskDecorator(VirtualenvDecoratedOperator, dag)
        self.external_python = TaskDecorator(ExternalPythonDecoratedOperator, dag)
        self.branch_virtualenv = TaskDecorator(BranchVirtualenvDecoratedOperator, dag)
        self.branch_external_python = TaskDecorator(BranchExternalPythonDecoratedOperator, dag)
        self.run_if = run_if
        self.skip_if = skip_if


task = TaskDecorators()


def setup(function: Any) -> TaskFunction:
    """Make a setup task of a function, or of a `@task` function."""
    made = _as_task_function(function, "@setup")
    made.is_setup = True
    return made


def teardown(function: Any = None, *, setups: Any = None, on_failure_fail_dagrun: bool = False) -> Any:
    """Make a teardown task of a function, or of a `@task` function.

    Args:
        function: The function.
        setups: Setup tasks that it tears down.
        on_failure_fail_dagrun: Whether the run fails when it fails.
    """
    if function is None:
        return lambda inner: teardown(inner, setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
    made = _as_task_function(function, "@teardown")
    made.is_teardown = True
    made.teardown_setups = None if setups is None else [*flatten(setups)]
    made.on_failure_fail_dagrun = on_failure_fail_dagrun
    return made


def _as_task_function(function: Any, decorator: str) -> TaskFunction:
    if isinstance(function, TaskGroupFunction):
        raise DagError(f"{decorator} marks tasks, not task groups")
    if isinstance(function, TaskFunction):
        return function.override()
    made: TaskFunction = task(function)
    return made


def task_group(group_id: Any = None, **kwargs: Any) -> Any:
    """Decorate a function that makes the tasks of a group: `@task_group`, or `@task_group(group_id=..., ...)`."""
    if callable(group_id):
        return TaskGroupFunction(group_id, kwargs)
    if group_id is not None:
        kwargs["group_id"] = group_id
    return lambda function: TaskGroupFunction(function, kwargs)


def dag(dag_id: Any = "", **kwargs: Any) -> Any:
    """Decorate a function that makes the tasks of a DAG: `@dag`, or `@dag(dag_id=..., schedule=..., ...)`.

    Calling it makes the DAG; its arguments become params, whose values tasks get.
    """
    if callable(dag_id):
        return _dag_function(dag_id, {"dag_id": dag_id.__name__, **kwargs})
    return lambda function: _dag_function(function, {"dag_id": dag_id or function.__name__, **kwargs})


def _dag_function(function: Any, dag_kwargs: dict[str, Any]) -> Callable[..., DAG]:
    from functools import wraps
    from inspect import signature

    @wraps(function)
    def make_dag(*args: Any, **kwargs: Any) -> DAG:
        active.note_dag_function(function, is_called=True)
        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        with DAG(**{"doc_md": function.__doc__, **dag_kwargs}) as made:
            made.fileloc = function.__code__.co_filename
            params = {name: made.param(name, value) for name, value in bound.arguments.items()}
            function(**params)
        return made

    active.note_dag_function(function, is_called=False)
    return make_dag


def _returns_mapping(function: Callable[..., Any]) -> bool:
    """Return whether a function says that it returns a dict: its items become XComs of their own."""
    annotation = getattr(function, "__annotations__", {}).get("return")  # a built-in function has none
    if annotation is None:
        return False
    from collections.abc import Mapping

    if isinstance(annotation, str):
        from typing import get_type_hints

        try:
            scope = {"return": annotation}
            annotation = get_type_hints(type("_", (), {"__annotations__": scope}), function.__globals__)["return"]
        except Exception:  # noqa: BLE001 - an annotation may name what exists for type checkers only
            return False
    origin = getattr(annotation, "__origin__", annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)
