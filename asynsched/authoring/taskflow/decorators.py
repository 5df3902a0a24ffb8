"""The decorators that DAG files use: `@task` and its kin, `@task_group`, `@dag`, `@setup`, `@teardown`."""

from __future__ import annotations

from asynsched.authoring import active
from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import AsynschedSkipException
from asynsched.authoring.mapping.expand_input import (
    ExpandInput,
    ExpandKwargs,
    ExpandProduct,
    MappedArgument,
    parameters_of,
)
from asynsched.authoring.node import flatten
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.mapped import BASE_ARGUMENTS, MappedOperator, refuse_unknown
from asynsched.authoring.operators.meta import task_owner
from asynsched.authoring.task_group import TaskGroup, unique_id
from asynsched.authoring.taskflow import decorated
from asynsched.authoring.taskflow.decorated import DecoratedFunction
from asynsched.authoring.trigger_rule import TriggerRule
from asynsched.authoring.xcom_arg import ResultArg, XComArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asynsched.authoring.running.context import Context


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
        if "multiple_outputs" not in arguments and issubclass(self.operator_class, decorated.RETURNING_DICTS):
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
        super().__init__(decorated.PythonDecoratedOperator, dag)
        self.python = TaskDecorator(decorated.PythonDecoratedOperator, dag)
        self.bash = TaskDecorator(decorated.BashDecoratedOperator, dag)
        self.branch = TaskDecorator(decorated.BranchDecoratedOperator, dag)
        self.short_circuit = TaskDecorator(decorated.ShortCircuitDecoratedOperator, dag)
        self.sensor = TaskDecorator(decorated.SensorDecoratedOperator, dag)
        self.virtualenv = TaskDecorator(decorated.VirtualenvDecoratedOperator, dag)
        self.external_python = TaskDecorator(decorated.ExternalPythonDecoratedOperator, dag)
        self.branch_virtualenv = TaskDecorator(decorated.BranchVirtualenvDecoratedOperator, dag)
        self.branch_external_python = TaskDecorator(decorated.BranchExternalPythonDecoratedOperator, dag)
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
