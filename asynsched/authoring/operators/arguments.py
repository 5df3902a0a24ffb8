"""The arguments of DAGs and operators: types checked, values converted, default arguments filled in, mistakes named.

Every message names the task or DAG, and the argument.
"""

from __future__ import annotations

import datetime as dt
from abc import ABCMeta

from asynsched.authoring import active
from asynsched.authoring.airflow_2 import OLD_OF_OPERATORS, renewed_of_operator
from asynsched.authoring.defaults import of_tasks
from asynsched.authoring.params import ParamsDict
from asynsched.authoring.timezone import coerce_datetime, to_utc
from asynsched.authoring.xcom_arg import ResolveMixin
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.retry_policy import RetryPolicy
    from asynsched.authoring.task_group import TaskGroup

    Check = Callable[[Any], bool]

_LISTS = ("list", "Collection", "Sequence", "Iterable", "set", "tuple")
_DICTS = ("dict", "Mapping")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) and not _is_dict(value)


def _is_dict(value: Any) -> bool:
    return hasattr(value, "keys") and hasattr(value, "__getitem__")


def _is_length(value: Any) -> bool:
    # A `dateutil.relativedelta` too: as in Airflow, an `execution_delta` may be a month.
    return isinstance(value, dt.timedelta) or (hasattr(value, "months") and hasattr(value, "__rsub__"))


_CHECKS: dict[str, tuple[str, Check]] = {
    "bool": ("True or False", lambda value: value is None or isinstance(value, bool)),
    "str": ("a string", _is_text),
    **dict.fromkeys(_LISTS, ("a list", _is_list)),
    **dict.fromkeys(_DICTS, ("a dict", _is_dict)),
    "Callable": ("a function", callable),
    "dt.timedelta": ("a timedelta", _is_length),
    "None": ("None", lambda value: value is None),
}
"""The name of each type in messages, and its check, by the type's name in an annotation."""


class ArgumentTypes:
    """The types of a constructor's arguments, read from annotations that are strings (`from __future__ import …`)."""

    def __init__(self, init: Callable[..., None]) -> None:
        self._kinds = {name: kinds for name, text in init.__annotations__.items() if (kinds := _kinds_of(text))}

    def check(self, owner: str, given: Mapping[str, Any], template_fields: Collection[str] = ()) -> None:
        """Raise DagError for an argument of the wrong type.

        Placeholders for later values pass: the result of a task, and a string with a template.
        """
        for name, value in given.items():
            kinds = self._kinds.get(name)
            if kinds is None or any(_CHECKS[kind][1](value) for kind in kinds) or isinstance(value, ResolveMixin):
                continue
            if name in template_fields and isinstance(value, str) and "{" in value:
                continue
            wanted = " or ".join(dict.fromkeys(_CHECKS[kind][0] for kind in kinds))
            # Only flags are shown: other values may be secret, such as an environment.
            shown = f"{value!r:.100}" if "bool" in kinds else f"a value of type {type(value).__name__}"
            raise DagError(f"{owner}: {name} must be {wanted}, not {shown}")


def _kinds_of(annotation: Any) -> tuple[str, ...]:
    """Return the kinds that an annotation such as `Collection[str] | None` allows; nothing if it is not checked."""
    if not isinstance(annotation, str):
        return ()
    kinds = tuple(alternative.partition("[")[0] for alternative in _alternatives(annotation))
    return kinds if all(kind in _CHECKS for kind in kinds) else ()


def _alternatives(annotation: str) -> list[str]:
    """Split a union at its bars, except within brackets."""
    parts, depth = [""], 0
    for letter in annotation:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def explained(names: Iterable[str], known: Iterable[str]) -> str:
    """Return the unknown names, each with near names. Values are not shown: they may be secret."""
    from difflib import get_close_matches

    taken, said = sorted(known), []
    for name in sorted(names):
        near = get_close_matches(name[:100], taken, n=2, cutoff=0.75)
        said.append(f"{name!r} (did you mean {' or '.join(near)}?)" if near else repr(name))
    return ", ".join(said)


MAX_POOL_LENGTH = 256
MAX_PRIORITY_WEIGHT = 2**31 - 1
LARGEST_COUNT = 10**9
LONGEST_LENGTH = dt.timedelta(days=36_525)
"""The longest length of time of an argument: longer ones may leave the range of dates."""


def whole_number(owner: str, name: str, value: Any, *, at_least: int | None = None) -> int:
    """Return an int, also from a string such as "3". This and the other conversions raise DagError."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise DagError(f"{owner}: {name} must be a whole number, not {value!r}")
    if at_least is not None and number < at_least:
        raise DagError(f"{owner}: {name} must be at least {at_least}, not {number}")
    if at_least is not None and number > LARGEST_COUNT:
        raise DagError(f"{owner}: {name} must be at most {LARGEST_COUNT:,}")
    return number


def optional_count(owner: str, name: str, value: Any) -> int | None:
    """Return a count of at least 1, or None."""
    return None if value is None else whole_number(owner, name, value, at_least=1)


def duration(owner: str, name: str, value: Any) -> dt.timedelta:
    """Return a length of time, from a timedelta or seconds; it must not be negative."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            value = dt.timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise DagError(f"{owner}: {name} is out of range: {value!r}") from None
    if not isinstance(value, dt.timedelta):
        raise DagError(f"{owner}: {name} must be a timedelta or a number of seconds, not {value!r}")
    if value < dt.timedelta():
        raise DagError(f"{owner}: {name} must not be negative, but is {value}")
    if value > LONGEST_LENGTH:
        raise DagError(f"{owner}: {name} must be at most 100 years, but is {value}")
    return value


def optional_duration(owner: str, name: str, value: Any) -> dt.timedelta | None:
    """Return a length of time, or None."""
    return None if value is None else duration(owner, name, value)


def limit(owner: str, name: str, value: Any) -> dt.timedelta | None:
    """Return the longest time that something may take, or None for any; as in Airflow, 0 means any, too."""
    return optional_duration(owner, name, value) or None


def instant(owner: str, name: str, value: Any, zone: dt.tzinfo | None) -> dt.datetime | None:
    """Return an instant in UTC, or None; a naive date is wall-clock time in `zone`."""
    try:
        return to_utc(value, zone)
    except (TypeError, ValueError, OverflowError) as exc:
        raise DagError(f"{owner}: {name} must be a date: {exc}") from exc


def date(owner: str, name: str, value: Any, zone: dt.tzinfo | None) -> dt.datetime | None:
    """Return an instant in UTC, or None. Without a zone, a string is in `zone`, a date in the default zone.

    Source: Airflow's `DAG`, whose zone applies only to the strings in its `default_args`.
    """
    return instant(owner, name, value, zone if isinstance(value, str) else None)


class DateAttribute:
    """A date of a DAG or a task. It is kept as `own_<name>`, a datetime or None, and read as a pendulum DateTime.

    Args:
        choose: For tasks: which of the own date and that of the DAG is in force, where both are given.
    """

    def __init__(self, choose: Callable[[dt.datetime, dt.datetime], dt.datetime] | None = None) -> None:
        self._choose = choose

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._own = name, f"own_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        found, dag = getattr(instance, self._own), None if self._choose is None else instance.get_dag()
        of_dag = None if dag is None else getattr(dag, self._own)
        if found is not None and of_dag is not None and self._choose is not None:
            found = self._choose(found, of_dag)
        return coerce_datetime(found or of_dag)

    def __set__(self, instance: Any, value: Any) -> None:
        # Not its repr: a subclass may set the date before it has an id.
        setattr(instance, self._own, date(type(instance).__name__, self._name, value, None))


def backoff(owner: str, value: Any) -> float:
    """Return the multiplier of `retry_exponential_backoff`: 0 for none, 2 for True."""
    if isinstance(value, bool):
        return 2.0 if value else 0.0
    if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise DagError(
            f"{owner}: retry_exponential_backoff must be a multiplier of at least 0, or a bool, not {value!r}"
        )
    return float(value)


def retry_policy(owner: str, value: Any) -> RetryPolicy | None:
    """Return a retry policy, or None; a class in place of an object is an error."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, "evaluate", None))):
        raise DagError(f"{owner}: retry_policy must be a RetryPolicy, such as ExceptionRetryPolicy(…), not {value!r}")
    policy: RetryPolicy | None = value
    return policy


def one_of(owner: str, name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return a string if it is allowed; the error lists the allowed ones."""
    text = str(getattr(value, "value", value))
    if text not in allowed:
        raise DagError(f"{owner}: {name} {text!r} is unknown; use one of {', '.join(allowed)}")
    return text


def priority_weight(owner: str, value: Any) -> int:
    """Return a weight, limited to 32 bits as in Airflow."""
    number = whole_number(owner, "priority_weight", value)
    return max(-MAX_PRIORITY_WEIGHT - 1, min(MAX_PRIORITY_WEIGHT, number))


def text(owner: str, name: str, value: Any, *, max_length: int | None = None) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise DagError(f"{owner}: {name} must be a string, not {value!r}")
    if max_length is not None and len(value) > max_length:
        raise DagError(f"{owner}: {name} has {len(value)} characters; at most {max_length} are allowed")
    return value


def addresses(who: str, value: Any) -> str | list[str] | None:
    """Return the argument `email`, addresses in a text or a list, checked."""
    if not value or isinstance(value, str):
        return value or None
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(one, str) for one in value):
        raise DagError(f"{who}: email must be an address or a list of addresses, not {value!r:.100}")
    return list(value)


def callbacks(owner: str, name: str, value: Any) -> list[Callable[..., Any]]:
    """Return a list of callables, from one, from several, or from None; among several, None is left out."""
    found = as_list(value or None)
    if None in found:
        found = [callback for callback in found if callback is not None]
    for callback in found:
        if not callable(callback):
            raise DagError(f"{owner}: {name} must be a function or a list of functions, not {callback!r}")
    return found


def assets(owner: str, name: str, value: Any) -> list[Any]:
    """Return a list of assets, from one, from several, or from None."""
    found = as_list(value)
    for item in found:
        if not hasattr(item, "as_expression"):
            raise DagError(f"{owner}: {name} must be an Asset, an AssetAlias or a list of them, not {item!r:.100}")
    return found


def exit_codes(owner: str, value: Any) -> tuple[int, ...]:
    """Return the values of `skip_on_exit_code`, from one, from several, or from None."""
    return tuple(whole_number(owner, "skip_on_exit_code", code) for code in as_list(value))


def as_list(value: Any) -> list[Any]:
    """Return a list from one value, from several, or from None."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set, frozenset, range)) else [value]


NONE_IS_DEFAULT = ("owner", "queue", "retry_delay", "retry_exponential_backoff", "weight_rule")
"""Arguments of BaseOperator for which None and an empty string mean their default, as in Airflow."""
TAKES_KEYWORDS = 0x08
"""CO_VARKEYWORDS of `inspect`, which is not worth its import."""


class BaseOperatorMeta(ABCMeta):
    """The metaclass of BaseOperator: fills in default arguments, and turns results among the arguments into arrows.

    The `__init__` of every operator class is wrapped: each level of a class hierarchy may fix arguments of the level
    above, and default arguments must fill only those that were not passed.

    Source: Apache Airflow's `BaseOperatorMeta`.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> BaseOperatorMeta:
        init = namespace.get("__init__")
        if init is not None:
            namespace["__init__"] = apply_defaults(init)
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    if not TYPE_CHECKING:  # for type checkers, the arguments of a call are those of `__init__`

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if args:
                raise TypeError(f"{cls.__name__}: operators take only keyword arguments, as in task_id={args[0]!r}")
            task = super().__call__(**kwargs)
            task.finish_construction()
            return task

    def instance_of(cls: Any, mapped: Any, arguments: dict[str, Any]) -> Any:
        """Return the operator of one instance of a mapped task; it joins no DAG and draws no arrows."""
        task = cls.__new__(cls)
        task.mapped_from = mapped
        cls.__init__(task, **arguments)
        for name in ("is_setup", "is_teardown", "on_failure_fail_dagrun", "trigger_rule"):
            setattr(task, name, getattr(mapped, name))
        return task


def apply_defaults(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of operators that fills in default arguments and checks the others."""
    code = init.__code__
    named = argument_names(init)
    n_defaults = len(init.__defaults__ or ())
    optional = {*code.co_varnames[code.co_argcount - n_defaults : code.co_argcount], *(init.__kwdefaults__ or ())}
    required = [name for name in named if name not in optional]
    # The annotations of users' own constructors are not enforced.
    types = ArgumentTypes(init) if init.__module__.startswith("asynsched.") else None
    is_base = init.__qualname__ == "BaseOperator.__init__"

    def with_defaults(self: Any, **kwargs: Any) -> None:
        if not OLD_OF_OPERATORS.isdisjoint(kwargs):
            kwargs = renewed_of_operator(f"task {kwargs.get('task_id', '?')!r}", kwargs, arguments_of(type(self), init))
        dag = kwargs.get("dag") or active.current_dag()
        group = kwargs.get("task_group") or active.current_group(dag)
        dag = dag or (None if group is None else group.dag)
        kwargs["default_args"] = defaults = _default_args(dag, group, kwargs)
        for name in named:
            if name in defaults and name not in kwargs:
                kwargs[name] = defaults[name]
        if is_base:
            kwargs = {**self.class_defaults, **kwargs}
            _drop_unset(kwargs)
            kwargs = {**of_tasks, **kwargs}
        missing = [name for name in required if name not in kwargs]
        task_id = kwargs.get("task_id", "?")
        if missing:
            who = f"{type(self).__name__} (task_id: {task_id})"
            raise TypeError(f"{who}: missing keyword argument {', '.join(map(repr, missing))}")
        if "default_args" not in named and not code.co_flags & TAKES_KEYWORDS:
            del kwargs["default_args"]
            if unknown := [name for name in kwargs if name not in named]:
                raise invalid_arguments(type(self), task_id, unknown)
        if types is not None:
            types.check(task_owner(task_id, None if dag is None else dag.dag_id), kwargs, self.template_fields)
        init(self, **kwargs)

    with_defaults.__wrapped__ = init  # type: ignore[attr-defined]
    with_defaults.types = types  # type: ignore[attr-defined]
    with_defaults.__doc__ = init.__doc__
    return with_defaults


def _drop_unset(kwargs: dict[str, Any]) -> None:
    for name in NONE_IS_DEFAULT:
        if name in kwargs and kwargs[name] in (None, ""):
            del kwargs[name]


def _default_args(dag: DAG | None, group: TaskGroup | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the default arguments in force for an operator; its own `default_args` win, over its `params` too.

    Source: Apache Airflow's `get_merged_defaults`, in which params of a group's `default_args` win, too.
    """
    own = kwargs.get("default_args") or {}
    if "params" in kwargs and kwargs["params"] is None:
        del kwargs["params"]
    defaults = {
        **({} if dag is None else dag.default_args),
        **({} if group is None else group.default_args),
        **own,
    }
    if kwargs.get("params"):
        if own.get("params"):
            kwargs["params"] = ParamsDict(kwargs["params"])
            kwargs["params"].update(ParamsDict(own["params"]))
        # The constructor of the next level would take those of the group for the operator's own.
        defaults.pop("params", None)
    return defaults


def arguments_of(operator_class: type, first: Callable[..., None] | None = None) -> set[str]:
    """Return the names of all arguments of an operator, at any level of its class hierarchy.

    Args:
        first: The constructor of the level to begin with; by default the operator's own.
    """
    # The constructors of operators are wrapped; other base classes have plain ones.
    given = [level.__dict__.get("__init__") for level in operator_class.__mro__]
    inits = [getattr(init, "__wrapped__", init if hasattr(init, "__code__") else None) for init in given]
    found = inits if first is None else inits[inits.index(first) :]
    return {name for init in found if init is not None for name in argument_names(init)}


def check_types(operator_class: Any, owner: str, given: dict[str, Any]) -> None:
    """Raise DagError for an argument of the wrong type, at any level of an operator's class hierarchy."""
    for level in operator_class.__mro__:
        types = getattr(level.__dict__.get("__init__"), "types", None)
        if types is not None:
            types.check(owner, given, operator_class.template_fields)


def argument_names(init: Callable[..., None]) -> tuple[str, ...]:
    """Return the names of a constructor's arguments, without `self`."""
    code = init.__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


def invalid_arguments(operator_class: type, task_id: Any, names: list[str]) -> TypeError:
    """Return the error for arguments that an operator does not have."""
    said = explained(names, arguments_of(operator_class))
    return TypeError(f"invalid arguments were passed to {operator_class.__name__} (task_id: {task_id}): {said}")


def task_owner(task_id: str, dag_id: str | None) -> str:
    """Return a task's name in messages."""
    return f"task {task_id!r}" if dag_id is None else f"DAG {dag_id!r}, task {task_id!r}"


def check_template_fields(owner: str, fields: Any) -> tuple[str, ...]:
    """Return the names of `template_fields`; a string counts as one name."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not all(isinstance(name, str) for name in names):
        raise DagError(f"{owner}: template_fields must be names of attributes, not {fields!r}")
    return names
