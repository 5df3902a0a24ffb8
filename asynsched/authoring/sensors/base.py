"""BaseSensorOperator: a task that looks again and again until something is there."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import (
    AsynschedException,
    AsynschedFailException,
    AsynschedRescheduleException,
    AsynschedSensorTimeout,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferralTimeout,
)
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.arguments import task_owner
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.python import finished
from asynsched.authoring.timezone import utcnow
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.running.context import Context

DEFAULT_TIMEOUT = dt.timedelta(days=7)
MODES = ("poke", "reschedule")


class PokeReturnValue:
    """What `poke` may return to have the sensor return a value.

    Args:
        is_done: Whether the sensor is done.
        xcom_value: What it returns then.
    """

    def __init__(self, is_done: bool, xcom_value: Any | None = None) -> None:
        self.is_done = is_done
        self.xcom_value = xcom_value

    def __bool__(self) -> bool:
        return self.is_done


class BaseSensorOperator(BaseOperator):
    """A task that waits: it calls `poke` until that is true.

    Args:
        poke_interval: Time between two looks, timedelta or seconds.
        timeout: Longest time from the first look on, timedelta or seconds; the sensor fails then,
            without a retry. 7 days by default.
        soft_fail: Skip instead of failing by timeout or AsynschedFailException.
        mode: `poke` keeps its process and its slots and sleeps; `reschedule` gives them up between two looks.
        exponential_backoff: Let the interval double each time.
        max_wait: Longest interval, timedelta or seconds.
        silent_fail: Log an unexpected error of `poke`, and go on.
        never_fail: Skip instead of failing, whatever the error.

    Raises:
        DagError: An argument is wrong, or both soft_fail and never_fail are given.
    """

    is_sensor = True
    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        poke_interval: dt.timedelta | float = 60,
        timeout: dt.timedelta | float | None = None,
        soft_fail: bool = False,
        mode: str = "poke",
        exponential_backoff: bool = False,
        max_wait: dt.timedelta | float | None = None,
        silent_fail: bool = False,
        never_fail: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        who = task_owner(self.task_id, self.dag_id if self.has_dag() else None)
        self.poke_interval = arguments.duration(who, "poke_interval", poke_interval).total_seconds()
        self.timeout = arguments.duration(
            who, "timeout", DEFAULT_TIMEOUT if timeout is None else timeout
        ).total_seconds()
        self.max_wait = arguments.optional_duration(who, "max_wait", max_wait)
        self.mode = arguments.one_of(who, "mode", mode, MODES)
        if soft_fail and never_fail:
            raise DagError(f"{who}: soft_fail and never_fail cannot be combined")
        self.soft_fail = soft_fail
        self.never_fail = never_fail
        self.silent_fail = silent_fail
        self.exponential_backoff = exponential_backoff

    @property
    def reschedule(self) -> bool:
        """Whether the sensor gives up its slots between two looks."""
        return self.mode == "reschedule"

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return whether what is waited for is there. Subclasses write this; it may be `async def`."""
        raise NotImplementedError(f"{self.task_type} has no poke()")

    def execute(self, context: Context) -> Any:
        import time

        started_at = (context["ti"].get_first_reschedule_date(context) if self.reschedule else None) or utcnow()
        n_pokes = 0
        while True:
            result = self._poke_safely(context)
            n_pokes += 1
            if result:
                self.log.info("Success criteria met. Exiting.")
                return result.xcom_value if isinstance(result, PokeReturnValue) else None
            waited = (utcnow() - started_at).total_seconds()
            if waited > self.timeout:
                self._time_out(waited)
            interval = self._next_interval(n_pokes, waited, started_at)
            if self.reschedule:
                raise AsynschedRescheduleException(utcnow() + dt.timedelta(seconds=interval))
            time.sleep(interval)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as exc:
            if self.soft_fail or self.never_fail:
                raise AsynschedSkipException(f"Skipping instead of failing: {exc}") from exc
            raise AsynschedSensorTimeout(str(exc)) from exc
        except AsynschedSkipException:
            raise
        except (AsynschedTaskTimeout, AsynschedFailException) as exc:
            if self.soft_fail or self.never_fail:
                raise AsynschedSkipException(f"Skipping instead of failing: {exc}") from exc
            raise
        except AsynschedException as exc:
            if self.never_fail:
                raise AsynschedSkipException(f"Skipping instead of failing: {exc}") from exc
            raise

    def _poke_safely(self, context: Context) -> Any:
        try:
            return finished(self.poke(context))
        except (AsynschedSkipException, AsynschedRescheduleException):
            raise
        except (AsynschedTaskTimeout, AsynschedFailException) as exc:
            if self.soft_fail or self.never_fail:
                raise AsynschedSkipException(f"Skipping instead of failing: {exc}") from exc
            raise
        except Exception as exc:
            if self.silent_fail:
                self.log.exception("Sensor poke failed")
                return False
            if self.never_fail:
                raise AsynschedSkipException(f"Skipping instead of failing: {exc}") from exc
            raise

    def _time_out(self, waited: float) -> None:
        message = f"Sensor has timed out; it waited {waited:g} seconds, its timeout is {self.timeout:g}."
        if self.soft_fail or self.never_fail:
            raise AsynschedSkipException(message)
        raise AsynschedSensorTimeout(message)

    def _next_interval(self, n_pokes: int, waited: float, started_at: dt.datetime) -> float:
        """Return the seconds until the next look.

        With `exponential_backoff` they double, and are lengthened by up to as much again, so that sensors that began
        together do not look together. By how much depends on the sensor and the look, not on chance.

        Source:
            Apache Airflow's `BaseSensorOperator._get_next_poke_interval`.
        """
        if not self.exponential_backoff:
            return self.poke_interval
        if self.reschedule:
            # A process of its own made each look, so none of them has counted.
            n_pokes, passed = 0, 0.0
            while passed <= waited:
                n_pokes += 1
                passed += self._grown_interval(n_pokes, started_at)
        interval = min(self._grown_interval(n_pokes, started_at), max(self.timeout - int(waited), 0.0))
        return interval if self.max_wait is None else min(interval, self.max_wait.total_seconds())

    def _grown_interval(self, n_pokes: int, started_at: dt.datetime) -> float:
        from hashlib import sha1

        least = max(int(self.poke_interval * 2.0 ** min(n_pokes - 2, 64)), 1)
        name = f"{self.dag_id}#{self.task_id}#{started_at}#{n_pokes}"
        spread = int(sha1(name.encode(), usedforsecurity=False).hexdigest(), 16) % least
        return float(least + spread)
