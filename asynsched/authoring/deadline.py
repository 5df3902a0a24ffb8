"""Deadlines: the time by which a run must have succeeded, and the callback if it has not; and notifiers.

Source: Apache Airflow's `airflow.sdk.definitions.deadline`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.operators.arguments import LONGEST_LENGTH, as_list
from asynsched.authoring.running.templating import Templater
from asynsched.authoring.supervisor import ask
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Generator, Mapping
    from typing import Any, ClassVar, NoReturn, Self

    import jinja2

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.running.context import Context

COROUTINE_FUNCTION = 0x80
"""CO_COROUTINE of `inspect`, which is not worth its import."""


class BaseNotifier(Templater):
    """A callback with templates: `on_failure_callback=MyNotifier(text="{{ ti.task_id }} failed")`.

    Subclasses implement `notify`, and `async_notify` for use in an AsyncCallback. The attributes named by
    `template_fields` are rendered first.

    Args:
        context: The context for `await`ing the notifier; other calls pass a context.
    """

    context: Mapping[str, Any] | None = None
    template_dag: DAG | None = None

    def __init__(self, *, context: Mapping[str, Any] | None = None) -> None:
        self.context = context

    @property
    def log(self) -> logging.Logger:
        """The notifier's logger."""
        import logging

        return logging.getLogger(f"asynsched.notifier.{type(self).__qualname__}")

    def notify(self, context: Context) -> None:
        """Send the notification. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no notify()")

    async def async_notify(self, context: Context) -> None:
        """Send the notification for an AsyncCallback."""
        raise NotImplementedError(f"{type(self).__name__} has no async_notify()")

    def rendered(self, context: Context) -> Self:
        """Return a copy with the template fields rendered."""
        from copy import copy

        notifier, dag = copy(self), context.get("dag")
        notifier.template_dag = dag if hasattr(dag, "get_template_env") else None
        notifier.render_template_fields(context)
        return notifier

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """Return the Jinja environment for the templates: that of the DAG whose event the notifier tells."""
        return super().get_template_env(dag or self.template_dag)

    def __call__(self, context: Context) -> None:
        """Render the template fields, then notify."""
        self.rendered(context).notify(context)

    def __await__(self) -> Generator[Any, Any, None]:
        """Render the template fields, then notify, with the context given to the constructor."""
        from asynsched.authoring.running.context import Context

        context = Context(self.context or {})
        return self.rendered(context).async_notify(context).__await__()


class Callback:
    """The base of SyncCallback and AsyncCallback."""

    def __init__(self, callback_callable: Callable[..., Any] | str, kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None and not isinstance(kwargs, dict):
            raise DagError(f"{self._who}: kwargs must be a dict, not {type(kwargs).__name__}")
        if kwargs and "context" in kwargs:
            raise DagError(f"{self._who}: context is given by the scheduler and cannot be one of the kwargs")
        self.kwargs = dict(kwargs or {})
        self.callback_callable = callback_callable
        if isinstance(callback_callable, str):
            self.__name__ = self.path = callback_callable.strip()
            if not all(part.isidentifier() for part in self.path.split(".")) or "." not in self.path:
                raise DagError(
                    f"{self._who}: {callback_callable!r} is not a dotted name, such as 'package.module.name'"
                )
        elif callable(callback_callable):
            self.__name__ = getattr(callback_callable, "__qualname__", repr(callback_callable))
            self.path = f"{callback_callable.__module__}.{self.__name__}"
            self._check(callback_callable)
        else:
            raise DagError(f"{self._who}: callback_callable must be a function or its dotted name")

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _check(self, function: Callable[..., Any]) -> None:
        """Raise DagError for a function of the wrong kind."""

    def __call__(self, context: Context) -> None:
        """Call the function and wait for its end. Its exceptions propagate."""
        from asynsched.authoring.operators.python import finished, keyword_arguments

        function = self._found()
        if isinstance(function, type) and issubclass(function, BaseNotifier):
            finished(self._notify(function(**self.kwargs), context))
            return
        wanted = keyword_arguments(function, (), {}, {"context": context})
        finished(function(**self.kwargs, **wanted))

    def _notify(self, notifier: BaseNotifier, context: Context) -> Any:
        return notifier(context)

    def _found(self) -> Callable[..., Any]:
        if not isinstance(self.callback_callable, str):
            return self.callback_callable
        from importlib import import_module

        module, _, name = self.path.rpartition(".")
        function: Callable[..., Any] = getattr(import_module(module), name)
        self._check(function)
        return function


class SyncCallback(Callback):
    """The callback of a missed deadline: an ordinary function, or a notifier's `notify`.

    A function with a parameter `context` also receives the context.

    Args:
        callback_callable: A function, a subclass of BaseNotifier, or the dotted name of either, which is imported only
            for the call.
        kwargs: Its arguments. A notifier's template fields are rendered.
        executor: Accepted as in Airflow; it has no effect.
    """

    def __init__(
        self,
        callback_callable: Callable[..., Any] | str,
        kwargs: dict[str, Any] | None = None,
        executor: str | None = None,
    ) -> None:
        super().__init__(callback_callable, kwargs)
        self.executor = executor


class AsyncCallback(Callback):
    """The callback of a missed deadline: an `async def` function, or a notifier's `async_notify`.

    A function with a parameter `context` also receives the context.

    Args:
        callback_callable: An `async def` function, a subclass of BaseNotifier, or the dotted name of either, which is
            imported only for the call.
        kwargs: Its arguments. A notifier's template fields are rendered.
    """

    def _check(self, function: Callable[..., Any]) -> None:
        code = getattr(function, "__code__", None)
        is_coroutine = code is not None and code.co_flags & COROUTINE_FUNCTION
        if not is_coroutine and not hasattr(function, "__await__"):
            raise DagError(f"AsyncCallback: {self.__name__} is not an async function; use SyncCallback, or make it one")

    def _notify(self, notifier: BaseNotifier, context: Context) -> Any:
        return notifier.rendered(context).async_notify(context)


DEFAULT_MAX_RUNS = 10
OWN = "own"
"""The kind of a user's reference."""
_GIVEN = ("dag_id", "run_id", "dag_run")
"""What `_evaluate_with` can be given."""


class BaseDeadlineReference:
    """The moment from which a deadline's interval counts. For your own, subclass this, below `@deadline_reference`.

    A subclass implements `_evaluate_with`, which runs once for each new run, in a process as that of a callback.

    Attributes:
        required_kwargs: What `_evaluate_with` gets beside the session: any of `dag_id`, `run_id` and `dag_run`.
    """

    required_kwargs: ClassVar[Collection[str]] = frozenset()
    kind = OWN
    at: dt.datetime | None = None
    max_runs = 0
    min_runs = 0

    @property
    def reference_name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    def serialize_reference(self) -> dict[str, Any]:
        """Return the fields that distinguish this instance from others of its class."""
        return {"reference_type": self.reference_name}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> BaseDeadlineReference:
        """Return the reference that `serialize_reference` has described."""
        del reference_data
        return cls()

    def _evaluate_with(self, *, session: Any, **kwargs: Any) -> dt.datetime | None:
        """Return the moment for a run; None for a run without a deadline. Subclasses implement this.

        Args:
            session: Stands for a session of Airflow's database; any use of it is an error.
        """
        raise NotImplementedError(f"{self.reference_name} has no _evaluate_with()")

    def evaluate(self, run: Any) -> dt.datetime | None:
        """Return the moment for a DagRun. Raises DagError for an answer that is none, and the class's errors."""
        unknown = sorted(set(self.required_kwargs) - set(_GIVEN))
        if unknown:
            raise DagError(
                f"{self.reference_name}.required_kwargs: {', '.join(unknown)} is none of {', '.join(_GIVEN)}"
            )
        given = {"dag_id": run.dag_id, "run_id": run.run_id, "dag_run": run}
        found = self._evaluate_with(session=_NoSession(), **{name: given[name] for name in self.required_kwargs})
        if found is not None and not (isinstance(found, dt.datetime) and found.tzinfo):
            raise DagError(f"{self.reference_name}._evaluate_with must return an aware datetime or None, not {found!r}")
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseDeadlineReference):
            return NotImplemented
        return self.serialize_reference() == other.serialize_reference()

    def __hash__(self) -> int:
        return hash(repr(self.serialize_reference()))


class _NoSession:
    def __getattr__(self, name: str) -> NoReturn:
        raise AsynschedException(
            f"session.{name}: user code has no access to the database; `required_kwargs = {{'dag_run'}}` gives the run"
        )


class Reference(BaseDeadlineReference):
    """A moment that the scheduler knows; made by `DeadlineReference`.

    Attributes:
        kind: `dagrun_logical_date`, `dagrun_queued_at`, `fixed_datetime` or `average_runtime`.
        at: The fixed moment; a naive one is in the DAG's timezone.
        max_runs: The number of most recent runs in the average.
        min_runs: The number of runs below which there is no deadline.
    """

    def __init__(self, kind: str, at: dt.datetime | None = None, max_runs: int = 0, min_runs: int = 0) -> None:
        self.kind = kind
        self.at = at
        self.max_runs = max_runs
        self.min_runs = min_runs

    def serialize_reference(self) -> dict[str, Any]:
        return {"reference_type": self.kind, **vars(self)}


class DeadlineReference:
    """The moments from which a deadline's interval can count.

    Attributes:
        DAGRUN_LOGICAL_DATE: The run's logical date. A run without one has no deadline.
        DAGRUN_QUEUED_AT: The time at which the run was created.
        FIXED_DATETIME: `FIXED_DATETIME(datetime)`: the same moment for all runs.
        AVERAGE_RUNTIME: `AVERAGE_RUNTIME(max_runs=10, min_runs=None)`: the time at which the run would end if it took
            as long as the recent runs on average.
        TYPES: When a reference of your own is evaluated, for `@deadline_reference`. As in Airflow, either is when the
            run is created.

    A class below `@deadline_reference` becomes an attribute of this class, by its name.
    """

    class TYPES:
        """When references of your own are evaluated."""

        DAGRUN_CREATED = "dagrun_created"
        DAGRUN_QUEUED = "dagrun_queued"

    DAGRUN_LOGICAL_DATE = Reference("dagrun_logical_date")
    DAGRUN_QUEUED_AT = Reference("dagrun_queued_at")

    @staticmethod
    def FIXED_DATETIME(datetime: dt.datetime) -> Reference:  # noqa: N802 - Airflow's name
        """Return the same moment for all runs; a naive one is in the DAG's timezone."""
        if not isinstance(datetime, dt.datetime):
            raise DagError(f"DeadlineReference.FIXED_DATETIME needs a datetime, not {datetime!r}")
        return Reference("fixed_datetime", datetime)

    @staticmethod
    def AVERAGE_RUNTIME(max_runs: int = 0, min_runs: int | None = None) -> Reference:  # noqa: N802 - Airflow's name
        """Return the time at which the run would end if it took as long as the recent runs on average.

        Args:
            max_runs: How many of the DAG's most recent finished runs to average; by default 10.
            min_runs: With fewer finished runs, there is no deadline; by default `max_runs`.
        """
        max_runs = max_runs or DEFAULT_MAX_RUNS
        min_runs = max_runs if min_runs is None else min_runs
        for name, value in (("max_runs", max_runs), ("min_runs", min_runs)):
            if not isinstance(value, int) or value < 1:
                raise DagError(f"DeadlineReference.AVERAGE_RUNTIME: {name} must be at least 1, not {value!r}")
        return Reference("average_runtime", max_runs=max_runs, min_runs=min_runs)

    @classmethod
    def register_custom_reference(
        cls, reference_class: type[BaseDeadlineReference], deadline_reference_type: str | None = None
    ) -> type[BaseDeadlineReference]:
        """Make an instance of a class available as the attribute of its name. Returns the class.

        Raises:
            DagError: It is no subclass of BaseDeadlineReference, or needs arguments; the type is none of TYPES.
        """
        if not (isinstance(reference_class, type) and issubclass(reference_class, BaseDeadlineReference)):
            raise DagError(f"deadline_reference: {reference_class!r} is no subclass of BaseDeadlineReference")
        if deadline_reference_type not in (None, cls.TYPES.DAGRUN_CREATED, cls.TYPES.DAGRUN_QUEUED):
            raise DagError(
                "deadline_reference: the type must be a member of DeadlineReference.TYPES,"
                f" not {deadline_reference_type!r}"
            )
        try:
            instance = reference_class()
        except TypeError as exc:
            raise DagError(
                f"deadline_reference: {reference_class.__name__}() fails ({exc}); give each of its arguments a default"
            ) from exc
        setattr(cls, reference_class.__name__, instance)
        return reference_class


def deadline_reference(deadline_reference_type: Any = None) -> Any:
    """Decorate a subclass of BaseDeadlineReference, with or without parentheses: it is a member of DeadlineReference.

    Args:
        deadline_reference_type: A member of `DeadlineReference.TYPES`.

    Raises:
        DagError: As `DeadlineReference.register_custom_reference`.
    """
    if isinstance(deadline_reference_type, type):
        return DeadlineReference.register_custom_reference(deadline_reference_type)
    return lambda decorated: DeadlineReference.register_custom_reference(decorated, deadline_reference_type)


class VariableInterval:
    """An interval of as many seconds as a variable says when the run is created.

    Args:
        key: Of the variable, whose value is a whole number.
    """

    def __init__(self, key: str) -> None:
        if not isinstance(key, str) or not key:
            raise DagError(f"VariableInterval needs the key of a variable, not {key!r}")
        self.key = key

    def resolve(self) -> dt.timedelta:
        """Return the interval. Raises DagError if the variable is no whole number or too large, and as Variable.get."""
        from asynsched.authoring.connection import Variable

        value = Variable.get(self.key)
        try:
            found = dt.timedelta(seconds=int(value))
        except (ValueError, TypeError, OverflowError):
            raise DagError(f"VariableInterval: the variable {self.key!r} must be a number of seconds") from None
        return _checked_interval(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableInterval) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _checked_interval(interval: dt.timedelta) -> dt.timedelta:
    if abs(interval) > LONGEST_LENGTH:
        raise DagError(f"DeadlineAlert: interval must be at most 100 years, but is {interval}")
    return interval


class DeadlineAlert:
    """A deadline for each run of a DAG: `interval` after `reference`. A run that has not succeeded by then misses it.

    Args:
        reference: A member of DeadlineReference, or a BaseDeadlineReference of your own.
        interval: The time after the reference; may be negative. A VariableInterval is read when the run is created.
        callback: Called once for each run that misses the deadline.
    """

    def __init__(
        self,
        reference: BaseDeadlineReference,
        interval: dt.timedelta | VariableInterval,
        callback: Callback,
        name: str | None = None,
    ) -> None:
        if not isinstance(reference, BaseDeadlineReference):
            raise DagError(
                "DeadlineAlert: reference must be a member of DeadlineReference, such as DAGRUN_QUEUED_AT,"
                f" not {reference!r}"
            )
        if not isinstance(interval, (dt.timedelta, VariableInterval)):
            raise DagError(f"DeadlineAlert: interval must be a timedelta or a VariableInterval, not {interval!r}")
        if isinstance(interval, dt.timedelta):
            _checked_interval(interval)
        if not isinstance(callback, Callback):
            raise DagError(f"DeadlineAlert: callback must be a SyncCallback or an AsyncCallback, not {callback!r}")
        self.reference = reference
        self.interval = interval
        self.callback = callback
        self.name = name

    def place(self, number: int, run: Any) -> None:
        """Tell the scheduler when this deadline of a run is due; not if the reference finds no moment.

        Args:
            number: The deadline's place among those of its DAG.
            run: The DagRun.
        """
        interval = self.interval.resolve() if isinstance(self.interval, VariableInterval) else self.interval
        at = self.reference.evaluate(run) if self.reference.kind == OWN else None
        if at is not None or self.reference.kind != OWN:
            moment = None if at is None else at.isoformat()
            ask("deadline_place", number=number, at=moment, interval=interval.total_seconds())


def deadline_alerts(who: str, given: Any) -> list[DeadlineAlert]:
    """Return the deadlines of a DAG, from one or several. Raises DagError."""
    alerts = as_list(given)
    for alert in alerts:
        if not isinstance(alert, DeadlineAlert):
            raise DagError(f"{who}: deadline must be a DeadlineAlert or a list of them, not {alert!r}")
    return alerts
