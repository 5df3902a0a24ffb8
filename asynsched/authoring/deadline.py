"""Deadlines: the time by which a run must have succeeded, and the callback if it has not; and notifiers.

Source: Apache Airflow's `airflow.sdk.definitions.deadline`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.operators.arguments import LONGEST_LENGTH, as_list
from asynsched.authoring.running.templating import Templater
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any, Self

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

    def __init__(self, *, context: Mapping[str, Any] | None = None) -> None:
        self.context = context

    def notify(self, context: Context) -> None:
        """Send the notification. Subclasses implement this."""
        raise NotImplementedError(f"{type(self).__name__} has no notify()")

    async def async_notify(self, context: Context) -> None:
        """Send the notification for an AsyncCallback."""
        raise NotImplementedError(f"{type(self).__name__} has no async_notify()")

    def rendered(self, context: Context) -> Self:
        """Return a copy with the template fields rendered."""
        from copy import copy

        notifier = copy(self)
        notifier.render_template_fields(context)
        return notifier

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


class Reference:
    """The moment from which a deadline's interval counts; made by `DeadlineReference`.

    Attributes:
        kind: `dagrun_logical_date`, `dagrun_queued_at`, `fixed_datetime` or `average_runtime`.
        at: The fixed moment; a naive one is in the DAG's timezone.
        max_runs: The number of most recent runs in the average.
        min_runs: The number of runs below which there is no deadline.
    """

    __slots__ = ("at", "kind", "max_runs", "min_runs")

    def __init__(self, kind: str, at: dt.datetime | None = None, max_runs: int = 0, min_runs: int = 0) -> None:
        self.kind = kind
        self.at = at
        self.max_runs = max_runs
        self.min_runs = min_runs


class DeadlineReference:
    """The moments from which a deadline's interval can count.

    Attributes:
        DAGRUN_LOGICAL_DATE: The run's logical date. A run without one has no deadline.
        DAGRUN_QUEUED_AT: The time at which the run was created.
        FIXED_DATETIME: `FIXED_DATETIME(datetime)`: the same moment for all runs.
        AVERAGE_RUNTIME: `AVERAGE_RUNTIME(max_runs=10, min_runs=None)`: the time at which the run would end if it took
            as long as the recent runs on average.
    """

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


class DeadlineAlert:
    """A deadline for each run of a DAG: `interval` after `reference`. A run that has not succeeded by then misses it.

    Args:
        reference: A member of DeadlineReference.
        interval: The time after the reference; may be negative.
        callback: Called once for each run that misses the deadline.
    """

    def __init__(
        self, reference: Reference, interval: dt.timedelta, callback: Callback, name: str | None = None
    ) -> None:
        if not isinstance(reference, Reference):
            raise DagError(
                "DeadlineAlert: reference must be a member of DeadlineReference, such as DAGRUN_QUEUED_AT,"
                f" not {reference!r}"
            )
        if not isinstance(interval, dt.timedelta):
            raise DagError(f"DeadlineAlert: interval must be a timedelta, not {interval!r}")
        if abs(interval) > LONGEST_LENGTH:
            raise DagError(f"DeadlineAlert: interval must be at most 100 years, but is {interval}")
        if not isinstance(callback, Callback):
            raise DagError(f"DeadlineAlert: callback must be a SyncCallback or an AsyncCallback, not {callback!r}")
        self.reference = reference
        self.interval = interval
        self.callback = callback
        self.name = name


def deadline_alerts(who: str, given: Any) -> list[DeadlineAlert]:
    """Return the deadlines of a DAG, from one or several. Raises DagError."""
    alerts = as_list(given)
    for alert in alerts:
        if not isinstance(alert, DeadlineAlert):
            raise DagError(f"{who}: deadline must be a DeadlineAlert or a list of them, not {alert!r}")
    return alerts
