"""The decorators of DAG files: `@task` and its variants, `@task_group`, `@dag`, `@setup` and `@teardown`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from asynsched.authoring import active
from asynsched.authoring.airflow_2 import OLD_VALUES, renewed_of_operator, trigger_rule
from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import AsynschedFailException, AsynschedSkipException
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
from asynsched.authoring.operators.arguments import BaseOperatorMeta, arguments_of, date, task_owner
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
    parameters_of_call,
    telling_code,
)
from asynsched.authoring.running.context import CONTEXT_KEYS
from asynsched.authoring.sensors.base import PythonSensor
from asynsched.authoring.task_group import TaskGroup, unique_id
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import ResultArg, XComArg, is_return_value
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, ClassVar, ParamSpec, Self, TypeVar, Unpack, overload

    from asynsched.authoring.keywords import DagKeywords, TaskGroupKeywords
    from asynsched.authoring.running.context import Context

    P = ParamSpec("P")
    T = TypeVar("T")
    AnyFunction = Callable[..., Any]


class DecoratedOperator(BaseOperator):
    """An operator for a function and the arguments that it was called with.

    Providers derive the operators of their decorators, such as `@task.sql`, from this class and another operator.
    """

    template_fields: Collection[str] = ("op_args", "op_kwargs")
    template_fields_renderers: ClassVar[Mapping[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

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
        op_args = tuple(op_args or ())
        if self.is_sensor:  # in Airflow, its operator is no DecoratedOperator
            op_kwargs = dict(op_kwargs or {})
        else:
            op_kwargs = _from_defaults(python_callable, op_args, op_kwargs or {}, kwargs)
        call = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        # The other operator's constructor may read them, and PythonOperator's replaces them.
        vars(self).update(call)
        super().__init__(task_id=task_id, **(kwargs_to_upstream or {}), **kwargs)
        vars(self).update(call)
        _check_call(self.task_id, python_callable, self.op_args, self.op_kwargs)

    python_callable: Callable[..., Any]

    def get_python_source(self) -> str:
        """Return the source of the function, without its decorators."""
        from asynsched.authoring.operators.foreign_python import function_source

        return function_source(self.python_callable)

    op_args: Collection[Any]
    op_kwargs: Mapping[str, Any]


class _PythonCall(DecoratedOperator):
    """Passes the function on to an operator that calls it."""

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(
            python_callable=python_callable, kwargs_to_upstream={"python_callable": python_callable}, **kwargs
        )


class _StubOperator(DecoratedOperator):
    """`@task.stub`: a task that only a runtime of another language could run. Its function must be empty."""

    custom_operator_name = "@task.stub"

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        if self.retry_policy is not None:
            raise DagError(f"task {self.task_id!r}: @task.stub takes no retry_policy; use retries")
        if not _is_empty(python_callable):
            raise DagError(f"task {self.task_id!r}: the function of @task.stub must be empty: only `pass` or `...`")

    def execute(self, context: Context) -> Any:
        raise AsynschedFailException("asynsched runs no task of @task.stub: it has no runtimes of other languages")


def _is_empty(function: Callable[..., Any]) -> bool:
    from dis import get_instructions

    def nothing() -> None:
        pass

    done, empty = ([(step.opname, step.argval) for step in get_instructions(one)] for one in (function, nothing))
    return done == empty


def _calling(name: str, class_name: str, operator_class: type[BaseOperator]) -> type[BaseOperator]:
    """Return the operator of a decorator such as `@task.short_circuit`."""
    decorator = "@task" if name == "python" else f"@task.{name}"
    namespace = {
        "__module__": __name__, "__doc__": f"`{decorator}`.", "custom_operator_name": decorator,
        "template_fields": operator_class.template_fields,
        "template_fields_renderers": operator_class.template_fields_renderers,
    }  # fmt: skip
    made: Any = BaseOperatorMeta(class_name, (_PythonCall, operator_class), namespace)
    operator: type[BaseOperator] = made
    return operator


class _BashDecoratedOperator(DecoratedOperator, BashOperator):
    """`@task.bash`: the function returns the command."""

    template_fields: Collection[str] = ("op_args", "op_kwargs", "bash_command", "env", "cwd")
    template_fields_renderers: ClassVar[Mapping[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    custom_operator_name = "@task.bash"
    overwrite_rtif_after_execution = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(kwargs_to_upstream={"bash_command": ""}, **kwargs)

    def execute(self, context: Context) -> Any:
        command = call_with_context(self.python_callable, self.op_args, self.op_kwargs, context)
        if not isinstance(command, str) or not command.strip():
            raise TypeError(f"task {self.task_id!r}: the function must return the command as a string, not {command!r}")
        self.bash_command = self.render_template(command, context)
        return BashOperator.execute(self, context)


_CALLED: dict[str, tuple[str, type[BaseOperator]]] = {
    "python": ("_PythonDecoratedOperator", PythonOperator),
    "branch": ("_BranchPythonDecoratedOperator", BranchPythonOperator),
    "short_circuit": ("_ShortCircuitDecoratedOperator", ShortCircuitOperator),
    "sensor": ("DecoratedSensorOperator", PythonSensor),
    "virtualenv": ("_PythonVirtualenvDecoratedOperator", PythonVirtualenvOperator),
    "external_python": ("_PythonExternalDecoratedOperator", ExternalPythonOperator),
    "branch_virtualenv": ("_BranchPythonVirtualenvDecoratedOperator", BranchPythonVirtualenvOperator),
    "branch_external_python": ("_BranchExternalPythonDecoratedOperator", BranchExternalPythonOperator),
}
"""Airflow's name of the operator's class, and the operator that calls the function, by the decorator."""
_OPERATORS = {name: _calling(name, *called) for name, called in _CALLED.items()} | {
    "bash": _BashDecoratedOperator,
    "stub": _StubOperator,
}
"""The operator of each variant of `@task`."""


def _from_defaults(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], of_task: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a call, with those of the task's `default_args` that the call does not give.

    Source: Apache Airflow's DecoratedOperator.
    """
    default_args = of_task.get("default_args")
    if not default_args:
        return dict(kwargs)
    positional, others, _ = parameters_of_call(function) or ((), (), False)
    names = (*positional[len(args) :], *others)
    found = {**{name: default_args[name] for name in names if name in default_args}, **kwargs}
    dag = of_task.get("dag") or active.current_dag()
    for name in ("start_date", "end_date"):
        if name in found and name not in kwargs and found[name] is not None:
            # A DAG in Airflow makes these two of its `default_args` aware.
            from asynsched.authoring import timezone

            zone = timezone.default_timezone() if dag is None else dag.timezone
            instant = date(function.__name__, f"default_args[{name!r}]", found[name], zone)
            found[name] = timezone.coerce_datetime(instant)
    return found


WITH_DEFAULTS = frozenset({"conf", "start_date"})
"""Values of the context whose parameters may have any default, as in Airflow."""


def _check_call(task_id: str, function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise DagError unless the function accepts the arguments; those that the task's context provides may be missing.

    Source: Apache Airflow's DecoratedOperator.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, TaskGroup):
            raise DagError(
                f"task {task_id!r}: {function.__name__}() receives the task group {value.group_id!r}, which has no"
                " result of its own; return the result of one of its tasks from the group's function"
            )
    if _fits(function, args, kwargs):
        return
    import inspect

    empty = inspect.Parameter.empty
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name in CONTEXT_KEYS - WITH_DEFAULTS and parameter.default not in (None, empty):
            raise DagError(
                f"task {task_id!r}: the parameter {parameter.name!r} comes from the task's context,"
                " so its only possible default is None"
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
        and name not in OLD_VALUES
    ]
    if missing:
        raise DagError(f"task {task_id!r}: {function.__name__}() lacks the argument {', '.join(map(repr, missing))}")


def _fits(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the function's code alone shows that it accepts the arguments and needs nothing of the context."""
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


class DecoratedFunction(ABC):
    """A decorated function, with the function's name and docstring.

    Args:
        kwargs: The arguments of the task, or task group, that a call makes.

    Attributes:
        shared: The function's arguments that all mapped instances share.
    """

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        from functools import update_wrapper

        self.function = function
        self.kwargs = kwargs
        self.shared: dict[str, Any] = {}
        wrapper: Any = self
        update_wrapper(wrapper, function)

    def override(self, **kwargs: Any) -> Self:
        """Return a copy with other arguments of the task or task group."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, kwargs={**self.kwargs, **kwargs})
        return other

    def partial(self, **kwargs: Any) -> Self:
        """Return a copy with arguments of the function that all mapped instances share.

        Raises TypeError if the function has no such argument, or it is already given.
        """
        self._check_given("partial", kwargs)
        other = self.override()
        other.shared = {**self.shared, **kwargs}
        return other

    @property
    @abstractmethod
    def _who(self) -> str: ...

    def _check_given(self, method: str, arguments: Mapping[str, Any]) -> None:
        check_names(self.function, method, arguments)
        refuse_repeated(self._who, self.shared, arguments)

    def _refuse_call(self) -> None:
        if self.shared:
            raise DagError(f"{self._who}: partial() must be followed by expand() or expand_kwargs()")


class TaskFunction(DecoratedFunction):
    """A function decorated with `@task`: each call makes a task, and returns its result, to pass to other tasks."""

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
        self.returns_dag_result = False

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg:
        self._refuse_call()
        arguments: dict[str, Any] = {"python_callable": self.function, "op_args": args, "op_kwargs": kwargs}
        return self._made(self.operator_class(**arguments, **self._operator_arguments()))

    def expand(self, **kwargs: Any) -> XComArg:
        """Make a mapped task, with one instance for each combination of the arguments' values.

        Raises TypeError if there is no argument, the function does not have it, or it cannot be mapped over; and
        DagError if its trigger rule does not wait for the values.
        """
        self._check_given("expand", kwargs)
        if any(isinstance(value, ResultArg) for value in kwargs.values()):
            self._refuse_always("expand")
        return self._mapped(ExpandProduct(self._who, kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg:
        """Make a mapped task, with one instance for each dict of arguments, like an operator's `expand_kwargs`.

        Raises also DagError if its trigger rule does not wait for the values.
        """
        expand_input = ExpandKwargs(self._who, kwargs)
        if not isinstance(kwargs, ResultArg) and any(True for _ in expand_input.iter_references()):
            self._refuse_always("expand_kwargs")
        return self._mapped(expand_input, strict=strict)

    @property
    def _who(self) -> str:
        return task_owner(self.kwargs["task_id"], None)

    def _refuse_always(self, method: str) -> None:
        if trigger_rule(self.kwargs.get("trigger_rule")) == TriggerRule.ALWAYS:
            raise DagError(f"{self._who}: {method}() over results of tasks is not allowed with the trigger_rule always")

    def _operator_arguments(self) -> dict[str, Any]:
        arguments = renewed_of_operator(self._who, self.kwargs, arguments_of(self.operator_class))
        if arguments.get("multiple_outputs") is None and self.operator_class is not _OPERATORS["sensor"]:
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
        """Document and mark a new task, and return its result."""
        if self.function.__doc__ and not any((task.doc, task.doc_md, task.doc_json, task.doc_rst, task.doc_yaml)):
            task.doc_md = self.function.__doc__
        if self.is_setup:
            task.as_setup()
        if self.is_teardown:
            if "trigger_rule" in self.kwargs:
                raise DagError(f"task {task.task_id!r} is a teardown, so it cannot have a trigger_rule")
            task.as_teardown(setups=self.teardown_setups, on_failure_fail_dagrun=self.on_failure_fail_dagrun)
        task.returns_dag_result = self.returns_dag_result
        return XComArg(task)


def _returns_mapping(function: Callable[..., Any]) -> bool:
    """Return whether a function's annotation says that it returns a dict."""
    annotation = getattr(function, "__annotations__", {}).get("return")  # a built-in function has none
    if annotation is None:
        return False
    from collections.abc import Mapping

    if isinstance(annotation, str):
        from typing import get_type_hints

        try:
            scope = {"return": annotation}
            annotation = get_type_hints(type("_", (), {"__annotations__": scope}), function.__globals__)["return"]
        except Exception:  # noqa: BLE001 - an annotation may name something that only type checkers see
            return False
    origin = getattr(annotation, "__origin__", annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


class TaskDecorator:
    """One of the decorators: `@task`, `@task(...)`, `@task.bash(...)` and so on."""

    def __init__(self, operator_class: type[BaseOperator], dag: DAG | None = None) -> None:
        self._operator_class = operator_class
        self._bound = {} if dag is None else {"dag": dag}

    if TYPE_CHECKING:

        @overload
        def __call__(self, python_callable: AnyFunction, **kwargs: Any) -> TaskFunction: ...
        @overload
        def __call__(self, python_callable: None = None, **kwargs: Any) -> Callable[[AnyFunction], TaskFunction]: ...

    def __call__(self, python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
        """Decorate a function, or, without one as in `@task(retries=3)`, return the decorator.

        The keyword arguments are the operator's.
        """
        if python_callable is None:
            return lambda function: self(function, **kwargs)
        if isinstance(python_callable, TaskFunction):
            raise DagError(f"{python_callable.__name__}() is decorated twice")  # type: ignore[attr-defined]
        return TaskFunction(python_callable, self._operator_class, {**self._bound, **kwargs})


def run_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[T], T]:
    """Skip the decorated task unless a condition is true.

    Args:
        condition: Called with the task's context; returns a bool, or a bool and a message.
        skip_message: The message of a skipped task if the condition returns none.
    """
    return _guard(condition, skip_message, runs_when=True)


def skip_if(condition: Callable[[Context], Any], skip_message: str | None = None) -> Callable[[T], T]:
    """Skip the decorated task if a condition is true. The arguments are those of `run_if`."""
    return _guard(condition, skip_message, runs_when=False)


def _guard(condition: Callable[[Context], Any], skip_message: str | None, *, runs_when: bool) -> Callable[[Any], Any]:
    def decorate(task_function: Any) -> Any:
        if not hasattr(task_function, "override"):
            raise DagError("@task.run_if and @task.skip_if must be written above @task")
        earlier = task_function.kwargs.get("pre_execute")

        def pre_execute(context: Context) -> None:
            if earlier is not None:
                earlier(context)
            answer = condition(context)
            is_true, message = answer if isinstance(answer, tuple) else (answer, None)
            if bool(is_true) is not runs_when:
                raise AsynschedSkipException(
                    message or skip_message or f"the condition is {'false' if runs_when else 'true'}"
                )

        return task_function.override(pre_execute=pre_execute)

    return decorate


PROVIDERS_OF_DECORATORS = {
    "docker": "docker",
    "kubernetes": "cncf-kubernetes",
    "kubernetes_cmd": "cncf-kubernetes",
    "pyspark": "apache-spark",
    "snowpark": "snowflake",
    "sql": "common-sql",
}
"""The provider of each variant of `@task` that is not a part of asynsched, for messages."""


class TaskDecorators(TaskDecorator):
    """`@task`, and the namespace of its variants. The tasks of `dag.task` belong to that DAG."""

    python: TaskDecorator
    bash: TaskDecorator
    branch: TaskDecorator
    short_circuit: TaskDecorator
    sensor: TaskDecorator
    virtualenv: TaskDecorator
    external_python: TaskDecorator
    branch_virtualenv: TaskDecorator
    branch_external_python: TaskDecorator
    stub: TaskDecorator
    run_if = staticmethod(run_if)
    skip_if = staticmethod(skip_if)

    def __init__(self, dag: DAG | None = None) -> None:
        super().__init__(_OPERATORS["python"], dag)
        for name, operator_class in _OPERATORS.items():
            setattr(self, name, TaskDecorator(operator_class, dag))

    def __getattr__(self, name: str) -> Any:
        """Return the decorator `@task.name` of an installed provider."""
        if name.startswith("_"):
            raise AttributeError(name)
        from asynsched.authoring.class_paths import imported
        from asynsched.authoring.providers import providers

        path = next((one.task_decorators[name] for one in providers() if name in one.task_decorators), None)
        if path is None:
            home = PROVIDERS_OF_DECORATORS.get(name)
            hint = f"run `asynsched providers install {home}`" if home else "no installed provider has it"
            raise AttributeError(f"there is no decorator @task.{name}: {hint}", name=name, obj=self)
        decorator = imported(path)
        if not self._bound:
            return decorator
        from functools import partial

        return partial(decorator, **self._bound)


task = TaskDecorators()


def setup(function: Any) -> TaskFunction:
    """Decorate a function, or a `@task` function, whose tasks are setups."""
    made = _as_task_function(function, "@setup")
    made.is_setup = True
    return made


if TYPE_CHECKING:

    @overload
    def teardown(
        function: AnyFunction, *, setups: Any = None, on_failure_fail_dagrun: bool = False
    ) -> TaskFunction: ...
    @overload
    def teardown(
        function: None = None, *, setups: Any = None, on_failure_fail_dagrun: bool = False
    ) -> Callable[[AnyFunction], TaskFunction]: ...


def teardown(function: Any = None, *, setups: Any = None, on_failure_fail_dagrun: bool = False) -> Any:
    """Decorate a function, or a `@task` function, whose tasks are teardowns.

    Args:
        setups: The setup tasks that it tears down.
        on_failure_fail_dagrun: Fail the run if the teardown fails.
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


class TaskGroupFunction(DecoratedFunction):
    """A function decorated with `@task_group`: each call makes a group of the tasks that the function makes."""

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        super().__init__(function, {"group_id": function.__name__, **kwargs})
        if function.__doc__:
            self.kwargs.setdefault("tooltip", function.__doc__.strip())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_call()
        with TaskGroup(**{"add_suffix_on_collision": True, **self.kwargs}) as group:
            made = self.function(*args, **kwargs)
        return group if made is None else made

    def expand(self, **kwargs: Any) -> Any:
        """Make a mapped group, with one instance of its tasks for each combination of the arguments' values.

        Raises TypeError if there is no argument, the function does not have it, or it cannot be mapped over.
        """
        self._check_given("expand", kwargs)
        return self._mapped(ExpandProduct(self._who, kwargs), list(kwargs))

    def expand_kwargs(self, kwargs: Any) -> Any:
        """Make a mapped group, with one instance of its tasks for each dict of arguments.

        Raises:
            TypeError: `kwargs` is neither a list of dicts nor the result of a task, or the function has `*` or `**`.
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
    """A task group whose tasks have one instance for each value to map over."""

    def __init__(self, expand_input: ExpandInput, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expand_input: ExpandInput = expand_input

    def __exit__(self, *exc_info: object) -> None:
        for operator, _ in self.expand_input.iter_references():
            operator.is_mapped_over = True
            self.set_upstream(operator)
        super().__exit__(*exc_info)


if TYPE_CHECKING:

    @overload
    def task_group(group_id: AnyFunction, /) -> TaskGroupFunction: ...
    @overload
    def task_group(
        group_id: str | None = None, **kwargs: Unpack[TaskGroupKeywords]
    ) -> Callable[[AnyFunction], TaskGroupFunction]: ...


def task_group(group_id: Any = None, **kwargs: Any) -> Any:
    """Decorate a function that makes the tasks of a group: `@task_group` or `@task_group(group_id=..., ...)`."""
    if callable(group_id):
        return TaskGroupFunction(group_id, kwargs)
    if group_id is not None:
        kwargs["group_id"] = group_id
    return lambda function: TaskGroupFunction(function, kwargs)


if TYPE_CHECKING:

    @overload
    def dag(dag_id: Callable[P, Any], /) -> Callable[P, DAG]: ...
    @overload
    def dag(dag_id: str = "", **kwargs: Unpack[DagKeywords]) -> Callable[[Callable[P, Any]], Callable[P, DAG]]: ...


def dag(dag_id: Any = "", **kwargs: Any) -> Any:
    """Decorate a function that makes the tasks of a DAG: `@dag` or `@dag(dag_id=..., schedule=..., ...)`.

    A call makes the DAG. The function's arguments become params, and tasks receive their values. What a task returns is
    a result of the DAG's runs if the function returns it.
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
            result = function(**params)
            if is_return_value(result):
                made.add_result(result)
        return made

    active.note_dag_function(function, is_called=False)
    return make_dag
