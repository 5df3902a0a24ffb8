"""How operators are constructed: default arguments filled in, mistakes named, results turned into arrows.

Each `__init__` of an operator class is wrapped, because each level of a class hierarchy may fix arguments of the one
above, and default arguments must fill only what nobody has given.

Source: Apache Airflow's BaseOperatorMeta.
"""

from __future__ import annotations

from abc import ABCMeta

from asynsched.authoring import active
from asynsched.authoring.operators.arguments import RENAMED_OF_OPERATORS, ArgumentTypes, explained
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TAKES_KEYWORDS = 0x08
"""CO_VARKEYWORDS of `inspect`, which is not worth its import."""


class BaseOperatorMeta(ABCMeta):
    """Metaclass of BaseOperator."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> BaseOperatorMeta:
        init = namespace.get("__init__")
        if init is not None:
            namespace["__init__"] = _apply_defaults(init)
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args:
            raise TypeError(f"{cls.__name__}: operators take keyword arguments only, as in task_id={args[0]!r}")
        task = super().__call__(**kwargs)
        task.finish_construction()
        return task

    def instance_of(cls: Any, mapped: Any, arguments: dict[str, Any]) -> Any:
        """Return an operator that stands for one instance of a mapped task: it joins no DAG, and draws no arrows."""
        task = cls.__new__(cls)
        task.mapped_from = mapped
        cls.__init__(task, **arguments)
        for name in ("is_setup", "is_teardown", "on_failure_fail_dagrun", "trigger_rule"):
            setattr(task, name, getattr(mapped, name))
        return task


def _apply_defaults(init: Callable[..., None]) -> Callable[..., None]:
    code = init.__code__
    named = _argument_names(init)
    n_defaults = len(init.__defaults__ or ())
    optional = {*code.co_varnames[code.co_argcount - n_defaults : code.co_argcount], *(init.__kwdefaults__ or ())}
    required = [name for name in named if name not in optional]
    # What the annotations of others' constructors say was never meant to be enforced.
    types = ArgumentTypes(init) if init.__module__.startswith("asynsched.") else None

    def with_defaults(self: Any, **kwargs: Any) -> None:
        dag = kwargs.get("dag") or active.current_dag()
        group = kwargs.get("task_group") or active.current_group(dag)
        dag = dag or (None if group is None else group.dag)
        kwargs["default_args"] = defaults = {
            **({} if dag is None else dag.default_args),
            **({} if group is None else group.default_args),
            **(kwargs.get("default_args") or {}),
        }
        for name in named:
            if name in defaults and name not in kwargs:
                kwargs[name] = defaults[name]
        missing = [name for name in required if name not in kwargs]
        if missing:
            raise TypeError(f"{_owner(self, kwargs)}: missing keyword argument {', '.join(map(repr, missing))}")
        if "default_args" not in named and not code.co_flags & TAKES_KEYWORDS:
            del kwargs["default_args"]
            _refuse_unknown(self, kwargs, named)
        if types is not None:
            who = task_owner(kwargs.get("task_id", "?"), None if dag is None else dag.dag_id)
            types.check(who, kwargs, self.template_fields)
        init(self, **kwargs)

    with_defaults.__wrapped__ = init  # type: ignore[attr-defined]
    with_defaults.types = types  # type: ignore[attr-defined]
    with_defaults.__doc__ = init.__doc__
    return with_defaults


def arguments_of(operator_class: type) -> set[str]:
    """Return the names of all arguments that an operator takes, at any level of its class hierarchy."""
    found: set[str] = set()
    for level in operator_class.__mro__:
        init = level.__dict__.get("__init__")
        wrapped = getattr(init, "__wrapped__", None)
        if wrapped is not None:
            found.update(_argument_names(wrapped))
    return found


def check_types(operator_class: Any, owner: str, given: dict[str, Any]) -> None:
    """Raise DagError for an argument of a wrong type, at any level of an operator's class hierarchy."""
    for level in operator_class.__mro__:
        types = getattr(level.__dict__.get("__init__"), "types", None)
        if types is not None:
            types.check(owner, given, operator_class.template_fields)


def _argument_names(init: Callable[..., None]) -> tuple[str, ...]:
    code = init.__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


def _refuse_unknown(task: Any, kwargs: dict[str, Any], named: tuple[str, ...]) -> None:
    unknown = [name for name in kwargs if name not in named]
    if unknown:
        raise invalid_arguments(type(task), kwargs.get("task_id", "?"), unknown)


def _owner(task: Any, kwargs: dict[str, Any]) -> str:
    return f"{type(task).__name__} (task_id: {kwargs.get('task_id', '?')})"


def invalid_arguments(operator_class: type, task_id: Any, names: list[str]) -> TypeError:
    """Return the error for arguments that an operator does not have. Values are not shown: they may be secret."""
    said = explained(names, arguments_of(operator_class), RENAMED_OF_OPERATORS)
    return TypeError(f"invalid arguments were passed to {operator_class.__name__} (task_id: {task_id}): {said}")


def task_owner(task_id: str, dag_id: str | None) -> str:
    """Return how messages name a task."""
    return f"task {task_id!r}" if dag_id is None else f"DAG {dag_id!r}, task {task_id!r}"


def check_template_fields(owner: str, fields: Any) -> tuple[str, ...]:
    """Return the names of `template_fields`; a single text is taken as one name."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not all(isinstance(name, str) for name in names):
        raise DagError(f"{owner}: template_fields must be names of attributes, not {fields!r}")
    return names
