"""Deadlines: until when a run is to have succeeded, and what is called when it has not.

Source: Apache Airflow's `airflow.sdk.definitions.deadline`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.hooks import BaseNotifier
from asynsched.authoring.operators.arguments import LONGEST_LENGTH
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from asynsched.authoring.running.context import Context


COROUTINE_FUNCTION = 0x80
"""CO_COROUTINE of `inspect`, which is not worth its import."""


class Callback:
    """What SyncCallback and AsyncCallback have in common."""

    def __init__(self, callback_callable: Callable[..., Any] | str, kwargs: dict[str, Any] | None = None) -> None:
        if kwargs is not None and not isinstance(kwargs, dict):
            raise DagError(f"{self._who}: kwargs must be a dict, not {type(kwargs).__name__}")
        if kwargs and "context" in kwargs:
            raise DagError(f"{self._who}: context is given by the scheduler, and cannot be one of the kwargs")
        self.kwargs = dict(kwargs or {})
        self.callback_callable = callback_callable
        if isinstance(callback_callable, str):
            self.__name__ = self.path = callback_callable.strip()
            if not all(part.isidentifier() for part in self.path.split(".")) or "." not in self.path:
                raise DagError(f"{self._who}: {callback_callable!r} is no dotted name, such as 'package.module.name'")
        elif callable(callback_callable):
            self.__name__ = getattr(callback_callable, "__qualname__", repr(callback_callable))
            self.path = f"{callback_callable.__module__}.{self.__name__}"
            self._check(callback_callable)
        else:
            raise DagError(f"{self._who}: a function or its dotted name is needed, not {callback_callable!r}")

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _check(self, function: Callable[..., Any]) -> None:
        """Raise DagError for a function that is not of this callback's kind."""

    def __call__(self, context: Context) -> None:
        """Call it, and wait until it has ended. Raises whatever it raises."""
        from asynsched.authoring.operators.python import finished, keyword_arguments

        function = self._found()
        is_notifier = isinstance(function, type) and issubclass(function, BaseNotifier)
        if is_notifier:
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
    """What a missed deadline calls: an ordinary function, or a notifier's `notify`.

    It is given the context as well, where it has a parameter `context`.

    Args:
        callback_callable: A function, a subclass of BaseNotifier, or the dotted name of one, which is imported only
            when it is called.
        kwargs: Its arguments. In those of a notifier, the fields that it has as templates are rendered.
        executor: Accepted, and without effect.

    Raises:
        DagError: It cannot be called so.
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
    """What a missed deadline calls: an `async def` function, or a notifier's `async_notify`.

    It is given the context as well, where it has a parameter `context`.

    Args:
        callback_callable: An `async def` function, a subclass of BaseNotifier, or the dotted name of one, which is
            imported only when it is called.
        kwargs: Its arguments. In those of a notifier, the fields that it has as templates are rendered.

    Raises:
        DagError: It cannot be called so.
    """

    def _check(self, function: Callable[..., Any]) -> None:
        code = getattr(function, "__code__", None)
        is_coroutine = code is not None and code.co_flags & COROUTINE_FUNCTION
        if not is_coroutine and not hasattr(function, "__await__"):
            raise DagError(f"AsyncCallback: {self.__name__} is no async function; use SyncCallback, or make it one")

    def _notify(self, notifier: BaseNotifier, context: Context) -> Any:
        return notifier.rendered(context).async_notify(context)


DEFAULT_MAX_RUNS = 10


class Reference:
    """The moment from which a deadline's interval counts. `DeadlineReference` makes them.

    Attributes:
        kind: Which moment: `dagrun_logical_date`, `dagrun_queued_at`, `fixed_datetime` or `average_runtime`.
        at: The fixed moment; naive is in the DAG's zone.
        max_runs: How many of the last runs count for the average.
        min_runs: How many there must be; with fewer, the run has no deadline.
    """

    __slots__ = ("at", "kind", "max_runs", "min_runs")

    def __init__(self, kind: str, at: dt.datetime | None = None, max_runs: int = 0, min_runs: int = 0) -> None:
        self.kind = kind
        self.at = at
        self.max_runs = max_runs
        self.min_runs = min_runs


class DeadlineReference:
    """From when a deadline's interval counts.

    Attributes:
        DAGRUN_LOGICAL_DATE: The run's logical date; a run without one has no such deadline.
        DAGRUN_QUEUED_AT: When the run was made.
        FIXED_DATETIME: `FIXED_DATETIME(datetime)`: one moment for all runs.
        AVERAGE_RUNTIME: `AVERAGE_RUNTIME(max_runs=10, min_runs=None)`: when the run would end, were it as long as the
            average of the last `max_runs` that have ended. With fewer than `min_runs` (`max_runs`, unless given), a run
            has no such deadline.
    """

    DAGRUN_LOGICAL_DATE = Reference("dagrun_logical_date")
    DAGRUN_QUEUED_AT = Reference("dagrun_queued_at")

    @staticmethod
    def FIXED_DATETIME(datetime: dt.datetime) -> Reference:  # noqa: N802 - Airflow's name
        """Return one moment for all runs; naive is in the DAG's zone."""
        if not isinstance(datetime, dt.datetime):
            raise DagError(f"DeadlineReference.FIXED_DATETIME: a datetime is needed, not {datetime!r}")
        return Reference("fixed_datetime", datetime)

    @staticmethod
    def AVERAGE_RUNTIME(max_runs: int = 0, min_runs: int | None = None) -> Reference:  # noqa: N802 - Airflow's name
        """Return the moment at which the run would have ended were it as long as the average of the last ones.

        Args:
            max_runs: How many of the DAG's last ended runs count; 10 unless given.
            min_runs: With fewer the run has no deadline; `max_runs` unless given.
        """
        max_runs = max_runs or DEFAULT_MAX_RUNS
        min_runs = max_runs if min_runs is None else min_runs
        for name, value in (("max_runs", max_runs), ("min_runs", min_runs)):
            if not isinstance(value, int) or value < 1:
                raise DagError(f"DeadlineReference.AVERAGE_RUNTIME: {name} must be at least 1, not {value!r}")
        return Reference("average_runtime", max_runs=max_runs, min_runs=min_runs)


class DeadlineAlert:
    """A deadline of each run of a DAG: `interval` after `reference`. A run that has not succeeded then has missed it.

    Args:
        reference: A member of DeadlineReference.
        interval: How long after it; may be negative.
        callback: What is called, once, when a run misses it.
        name: How it is shown.

    Raises:
        DagError: One of them is wrong.
    """

    def __init__(
        self, reference: Reference, interval: dt.timedelta, callback: Callback, name: str | None = None
    ) -> None:
        if not isinstance(reference, Reference):
            raise DagError(
                "DeadlineAlert: reference must be one of DeadlineReference, such as DeadlineReference.DAGRUN_QUEUED_AT,"
                f" not {reference!r}"
            )
        if not isinstance(interval, dt.timedelta):
            raise DagError(f"DeadlineAlert: interval must be a timedelta, not {interval!r}")
        if abs(interval) > LONGEST_LENGTH:
            raise DagError(f"DeadlineAlert: interval must be 100 years at most, but is {interval}")
        if not isinstance(callback, Callback):
            raise DagError(f"DeadlineAlert: callback must be a SyncCallback or an AsyncCallback, not {callback!r}")
        self.reference = reference
        self.interval = interval
        self.callback = callback
        self.name = name


def deadline_alerts(who: str, given: Any) -> list[DeadlineAlert]:
    """Return the deadlines of a DAG, from one, from several, or from none. Raises DagError."""
    alerts: Iterable[Any] = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for alert in alerts:
        if not isinstance(alert, DeadlineAlert):
            raise DagError(f"{who}: deadline must be a DeadlineAlert or a list of them, not {alert!r}")
    return list(alerts)
