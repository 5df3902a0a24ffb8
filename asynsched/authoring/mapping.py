"""Dynamic task mapping: tasks with as many instances as there are values to map over.

Source: Apache Airflow's `OperatorPartial`, `MappedOperator`, `MappedArgument`, `DictOfListsExpandInput` and
`ListOfDictsExpandInput`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from asynsched.authoring.airflow_2 import renewed_of_operator
from asynsched.authoring.mapped_results import element, is_mappable, refuse_other_keys
from asynsched.authoring.operators.arguments import (
    arguments_of,
    check_types,
    explained,
    task_owner,
)
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.params import params_of_run, resolve_params
from asynsched.authoring.running.context import CONTEXT_KEYS
from asynsched.authoring.xcom_arg import ResolveMixin, ResultArg, group_values, mapped_groups
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from asynsched.authoring.running.context import Context


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a function's parameters, and whether it also takes others (`*` or `**`)."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in variadic]
    return names, len(names) < len(parameters)


def check_names(function: Callable[..., Any], method: str, given: Iterable[str]) -> None:
    """Raise TypeError for arguments that `partial` or `expand` cannot pass to a decorated function."""
    names, takes_any = parameters_of(function)
    name = getattr(function, "__name__", "function")
    for key in given:
        if key in CONTEXT_KEYS:
            raise TypeError(f"{name}.{method}(): {key!r} comes from the task's context and cannot be set")
        if key not in names and not takes_any:
            raise TypeError(f"{name}.{method}(): the function has no argument {key!r}")


def refuse_repeated(who: str, given: Iterable[str], mapped: Iterable[str]) -> None:
    """Raise TypeError for mapped arguments that are also given otherwise, or that all instances must share."""
    repeated = sorted(set(given).intersection(mapped))
    if repeated:
        raise TypeError(f"{who}: already given, or not mappable: {', '.join(repeated)}")


class ExpandInput(ResolveMixin, ABC):
    """Values to map over.

    Attributes:
        owner: The name of the task or task group in messages.
    """

    owner: str

    @abstractmethod
    def length(self, context: Context) -> int:
        """Return the number of instances."""

    @abstractmethod
    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        """Return the arguments of one instance, and the names of those that come from other tasks.

        Raises TypeError if the values to map over have the wrong type, and IndexError if there is no value for this
        instance.
        """

    def _mapped_over(self, value: Any, name: str, context: Context) -> Any:
        """Return the values to map over; results of tasks are requested once per try."""
        if not isinstance(value, ResolveMixin):
            return value
        known = context["ti"].mapped_over
        if id(value) not in known:
            found = value.resolve(context)
            if not is_mappable(found):
                raise TypeError(
                    f"{self.owner} is mapped over {name}, which must be a list or a dict, but is {type(found).__name__}"
                )
            known[id(value)] = found
        return known[id(value)]


class ExpandProduct(ExpandInput):
    """Every combination of the arguments' values, the last argument running fastest: `expand(x=…, y=…)`.

    Raises:
        TypeError: There is no argument, or one cannot be mapped over.
        DagError: An argument is an XCom other than a task's return value.
    """

    def __init__(self, owner: str, arguments: dict[str, Any]) -> None:
        if not arguments:
            raise TypeError(f"{owner}: expand() has no arguments to map over")
        for name, value in arguments.items():
            if isinstance(value, MappedArgument):
                raise DagError(
                    f"{owner}: expand() over {value.name!r}, an argument of a mapped task group, is not supported"
                )
            is_result = isinstance(value, ResultArg)
            if not is_result and (isinstance(value, ResolveMixin) or not is_mappable(value)):
                raise TypeError(
                    f"{owner}: expand() maps {name!r} over a list, a dict or the result of a task, not over"
                    f" {type(value).__name__}: {value!r:.100}"
                )
            refuse_other_keys(_references(value), f"{owner}: expand() over {name!r}")
        self.owner = owner
        self.arguments = arguments

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        for value in self.arguments.values():
            yield from _references(value)

    def length(self, context: Context) -> int:
        count = 1
        for name, value in self.arguments.items():
            count *= len(self._mapped_over(value, name, context))
        return count

    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        chosen = {}
        first = next(iter(self.arguments))
        for name, value in reversed(self.arguments.items()):
            values = self._mapped_over(value, name, context)
            if name == first:
                place = index
            else:
                index, place = divmod(index, len(values))
            try:
                chosen[name] = element(values, place)
            except IndexError:
                raise IndexError(f"{self.owner} is mapped over {name}, which no longer has a value {place}") from None
        from_results = {name for name, value in self.arguments.items() if isinstance(value, ResolveMixin)}
        return {name: chosen[name] for name in self.arguments}, from_results


class ExpandKwargs(ExpandInput):
    """One dict of arguments for each instance: `expand_kwargs(…)`.

    Raises:
        TypeError: `kwargs` is neither the result of a task nor a list of dicts and results.
        DagError: `kwargs` contains an XCom other than a task's return value.
    """

    def __init__(self, owner: str, kwargs: Any) -> None:
        if isinstance(kwargs, Sequence) and not isinstance(kwargs, (str, bytes)):
            wrong = next((item for item in kwargs if not isinstance(item, (ResultArg, Mapping))), None)
        else:
            wrong = None if isinstance(kwargs, ResultArg) else kwargs
        if wrong is not None:
            raise TypeError(
                f"{owner}: expand_kwargs() takes a list of dicts or the result of a task, not"
                f" {type(wrong).__name__}: {wrong!r:.100}"
            )
        refuse_other_keys(_references(kwargs), f"{owner}: expand_kwargs()")
        self.owner = owner
        self.kwargs = kwargs

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        yield from _references(self.kwargs)

    def length(self, context: Context) -> int:
        return len(self._mapped_over(self.kwargs, "dicts", context))

    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        try:
            found = self._mapped_over(self.kwargs, "dicts", context)[index]
        except (IndexError, KeyError):
            raise IndexError(f"{self.owner} is mapped over dicts, and there is no dict {index}") from None
        is_result = isinstance(self.kwargs, ResolveMixin) or isinstance(found, ResolveMixin)
        if isinstance(found, ResolveMixin):
            found = found.resolve(context)
        if not isinstance(found, Mapping):
            raise TypeError(f"{self.owner}: expand_kwargs() needs a list of dicts, not of {type(found).__name__}")
        for key in found:
            if not isinstance(key, str):
                raise TypeError(f"{self.owner}: expand_kwargs() needs dicts with strings as keys, not {key!r}")
        return dict(found), set(found) if is_result else set()


class MappedArgument(ResolveMixin):
    """An argument of a mapped task group, as the group's function receives it: its value is known when a task runs."""

    def __init__(self, expand_input: ExpandInput, name: str) -> None:
        self.expand_input = expand_input
        self.name = name

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        return self.expand_input.iter_references()

    def resolve(self, context: Context) -> Any:
        values = group_values(context, self.expand_input)
        if self.name not in values:
            raise TypeError(f"{self.expand_input.owner}: instance {context['ti'].map_index} has no {self.name!r}")
        value = values[self.name]
        return value.resolve(context) if isinstance(value, ResolveMixin) else value

    def __repr__(self) -> str:
        return f"<argument {self.name!r} of {self.expand_input.owner}>"


def _references(value: Any) -> Iterator[tuple[BaseOperator, str]]:
    """Yield the tasks, with XCom keys, in a value to map over, at any depth of lists and dicts."""
    if isinstance(value, ResolveMixin):
        yield from value.iter_references()
    elif isinstance(value, (list, tuple, Mapping)):
        inside: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for item in inside:
            yield from _references(item)


BASE_ARGUMENTS = frozenset(arguments_of(BaseOperator))
"""Arguments of every task."""
UNMAPPABLE = BASE_ARGUMENTS - {"params"}
"""The scheduler reads these, so all instances share them. Mapped params are merged with the shared ones."""
_OF_CLASSES = frozenset({
    "allow_nested_operators", "depends_on_past", "email_on_failure", "email_on_retry", "execution_timeout",
    "executor_config", "ignore_first_depends_on_past", "inlets", "map_index_template", "on_execute_callback",
    "on_failure_callback", "on_retry_callback", "on_skipped_callback", "on_success_callback", "outlets", "owner",
    "pool_slots", "priority_weight", "queue", "retries", "retry_delay", "retry_exponential_backoff", "retry_policy",
    "trigger_rule", "wait_for_downstream", "wait_for_past_depends_before_skipping", "weight_rule",
})  # fmt: skip
"""Arguments for which an operator's classes may have another default than BaseOperator, as in Airflow."""


def _class_defaults(operator_class: type[BaseOperator]) -> dict[str, Any]:
    """Return the defaults that an operator's classes, without BaseOperator, give to arguments of every task.

    Source: Apache Airflow's `_get_operator_defaults`.
    """
    import inspect

    levels = operator_class.__mro__[: operator_class.__mro__.index(BaseOperator)]
    inits = [init for level in reversed(levels) if (init := level.__dict__.get("__init__")) is not None]
    return {
        name: parameter.default
        for init in inits
        for name, parameter in inspect.signature(init).parameters.items()
        # None and an empty text mostly mean that nothing is given.
        if name in _OF_CLASSES and parameter.default not in (inspect.Parameter.empty, None, "")
    }


class OperatorPartial:
    """An operator with the arguments that all instances share: the result of `Operator.partial()`."""

    def __init__(self, operator_class: type[BaseOperator], kwargs: dict[str, Any]) -> None:
        self.operator_class = operator_class
        who = f"task {kwargs.get('task_id', '?')!r}"
        self.kwargs = kwargs = renewed_of_operator(who, kwargs, arguments_of(operator_class))
        refuse_unknown(operator_class, "partial", kwargs)
        check_types(operator_class, task_owner(kwargs.get("task_id", "?"), None), kwargs)

    def expand(self, **arguments: Any) -> MappedOperator:
        """Make the task, with one instance for each combination of the arguments' values.

        Raises TypeError if there is no argument, the operator does not have it, or it cannot be mapped over.
        """
        refuse_unknown(self.operator_class, "expand", arguments)
        who = f"{self.operator_class.__name__} (task_id: {self.kwargs['task_id']})"
        refuse_repeated(who, {*self.kwargs, *UNMAPPABLE} - {"params"}, arguments)
        return self._mapped(ExpandProduct(self._owner, arguments))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Make the task, with one instance for each dict of arguments.

        Args:
            kwargs: A list of dicts, or the result of a task that returns one.
            strict: Fail an instance whose dict repeats an argument of `partial`. If False, the dict overrides it.

        Raises:
            TypeError: `kwargs` is neither.
        """
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
    """A mapped task. It has the arguments of every task itself; the operator of an instance is made in its try.

    Attributes:
        op_kwargs_expand: Whether the mapped arguments are those of a decorated function, not of the operator.

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
        self.template_ext = operator_class.template_ext
        self.class_defaults = _class_defaults(operator_class)
        if not isinstance(operator_class.operator_extra_links, property):
            self.operator_extra_links = operator_class.operator_extra_links
        super().__init__(**kwargs)
        groups = mapped_groups(self)
        if groups:
            raise DagError(
                f"{task_owner(self.task_id, self.dag_id)}: expand() inside the mapped task group"
                f" {groups[-1].group_id!r} is not supported"
            )

    def finish_construction(self) -> None:
        """Draw the arrows from the tasks whose results are mapped over or among the shared arguments."""
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
        """Return the operator of the running instance, made with its values.

        Raises:
            TypeError: The values to map over have the wrong type.
            IndexError: There is no longer a value for this instance.
            DagError: The operator rejects its arguments.
        """
        values, from_results = self.expand_input.values_at(context["ti"].map_index, context)
        task: BaseOperator = self.operator_class.instance_of(self, self._arguments(values))
        # Templates are rendered in values from the DAG file, not in those from other tasks.
        task.kept_as_is = [values[name] for name in from_results]
        context.update(task=task, inlets=task.inlets, outlets=task.outlets)
        if "params" in values and not self.op_kwargs_expand:
            run = context["dag_run"]
            context["params"] = resolve_params(
                self.dag.params, params_of_run(task), run.conf, owner=f"run {run.run_id!r}"
            )
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
    """Raise TypeError for arguments that the operator does not have."""
    known = arguments_of(operator_class)
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        said = explained(unknown, known)
        raise TypeError(f"{operator_class.__name__}.{method}() has no argument {said}")
