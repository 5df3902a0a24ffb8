"""Sensors check a condition repeatedly until it is met: their base, and those that call a function or a command."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring import defaults
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
from asynsched.authoring.operators.bash import CommandOperator, bash_command_line
from asynsched.authoring.operators.python import call_with_context, finished, offer_arguments
from asynsched.authoring.timezone import utcnow
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, Unpack

    from asynsched.authoring.keywords import SensorKeywords, TaskKeywords
    from asynsched.authoring.running.context import Context

MODES = ("poke", "reschedule")
FINAL = (AsynschedTaskTimeout, AsynschedFailException)
"""Errors of `poke` that `soft_fail` turns into a skip, and `silent_fail` does not ignore."""


class PokeReturnValue:
    """The result of a `poke` with a return value for the sensor.

    Args:
        is_done: Whether the condition is met.
        xcom_value: The sensor's return value if it is.
    """

    def __init__(self, is_done: bool, xcom_value: Any | None = None) -> None:
        self.is_done = is_done
        self.xcom_value = xcom_value

    def __bool__(self) -> bool:
        return self.is_done


class BaseSensorOperator(BaseOperator):
    """A task that calls `poke` repeatedly until the result is true.

    Args:
        poke_interval: The time between two checks, as a timedelta or seconds.
        timeout: The longest time from the first check, as a timedelta or seconds; then the sensor fails without a
            retry. By default the option `[sensors] default_timeout`, which is 7 days unless set.
        soft_fail: Skip the task instead of failing it: at its timeout, for an AsynschedFailException of `poke`, and
            for any AsynschedException after a deferral.
        mode: `poke` keeps the process and the slots while it sleeps; `reschedule` releases them between two checks.
        exponential_backoff: Double the interval each time.
        max_wait: The longest interval, as a timedelta or seconds.
        silent_fail: Log an unexpected error of `poke` and continue.
        never_fail: Skip the task instead of failing it, for every error of `poke`, and for any AsynschedException
            after a deferral. At its own timeout the sensor still fails.
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
        **kwargs: Unpack[TaskKeywords],
    ) -> None:
        super().__init__(**kwargs)
        who = task_owner(self.task_id, self.dag_id if self.has_dag() else None)
        self.poke_interval = arguments.duration(who, "poke_interval", poke_interval).total_seconds()
        self.timeout = arguments.duration(
            who, "timeout", defaults.sensor_timeout() if timeout is None else timeout
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
        """Whether the sensor releases its slots between two checks."""
        return self.mode == "reschedule"

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return whether the condition is met. Subclasses implement this; it may be `async def`."""
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
                message = f"Sensor has timed out; it waited {waited:g} seconds, its timeout is {self.timeout:g}."
                raise (AsynschedSkipException if self.soft_fail else AsynschedSensorTimeout)(message)
            interval = self._next_interval(n_pokes, waited, started_at)
            if self.reschedule:
                raise AsynschedRescheduleException(utcnow() + dt.timedelta(seconds=interval))
            time.sleep(interval)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AsynschedSkipException:
            raise
        except AsynschedException as exc:
            if self.soft_fail or self.never_fail:
                raise _skip_for(exc) from exc
            if isinstance(exc, TaskDeferralTimeout):
                raise AsynschedSensorTimeout(str(exc)) from exc
            raise

    def _poke_safely(self, context: Context) -> Any:
        try:
            return finished(self.poke(context))
        except (AsynschedSkipException, AsynschedRescheduleException):
            raise
        except (AsynschedTaskTimeout, Exception) as exc:
            if self.silent_fail and not isinstance(exc, FINAL):
                self.log.exception("Sensor poke failed")
                return False
            if self.never_fail or (self.soft_fail and isinstance(exc, FINAL)):
                raise _skip_for(exc) from exc
            raise

    def _next_interval(self, n_pokes: int, waited: float, started_at: dt.datetime) -> float:
        """Return the seconds until the next check.

        With `exponential_backoff` they double each time, and jitter at most doubles them again, so that sensors that
        began together do not check together. The jitter is derived from the sensor and the number of the check.

        Source: Apache Airflow's `BaseSensorOperator._get_next_poke_interval`.
        """
        if not self.exponential_backoff:
            return self.poke_interval
        if self.reschedule:
            # Each check had its own process, so the number of checks is derived from the time.
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


def _skip_for(error: BaseException) -> AsynschedSkipException:
    return AsynschedSkipException(f"Skipping instead of failing: {error}")


def poke_mode_only(cls: type[BaseSensorOperator]) -> type[BaseSensorOperator]:
    """Decorate a sensor class that keeps something between two checks, so that its mode must be `poke`.

    Its sensors raise ValueError for another mode.
    """

    def set_mode(_sensor: BaseSensorOperator, value: str) -> None:
        if value != "poke":
            raise ValueError(f"{cls.__name__} has only the mode 'poke', not {value!r}")

    cls.mode = property(lambda _: "poke", set_mode)  # type: ignore[assignment] # in place of the attribute
    return cls


class PythonSensor(BaseSensorOperator):
    """Waits until a function, which may be `async def`, returns a true value.

    Args:
        python_callable: The function. Its parameters also receive the values of the same name in the task's context.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        templates_dict: A dict passed as `templates_dict`. (templated)
    """

    template_fields: Collection[str] = ("templates_dict", "op_args", "op_kwargs")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        templates_dict: dict[str, Any] | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args: Collection[Any] = op_args or ()
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.templates_dict = templates_dict

    def poke(self, context: Context) -> bool | PokeReturnValue:
        offer_arguments(self.op_kwargs, self.templates_dict, context)
        value = call_with_context(self.python_callable, self.op_args, self.op_kwargs, context)
        return value if isinstance(value, PokeReturnValue) else PokeReturnValue(bool(value))


class BashSensor(BaseSensorOperator, CommandOperator):
    """Waits until a bash command ends with exit code 0.

    Args:
        bash_command: The command. (templated)
        env: The command's environment; by default that of the task. (templated)
        retry_exit_code: The exit code that means "not yet"; any other fails the task without a retry. None: every exit
            code means "not yet".
    """

    template_fields: Collection[str] = ("bash_command", "env")

    def __init__(
        self,
        *,
        bash_command: str,
        env: dict[str, str] | None = None,
        output_encoding: str = "utf-8",
        retry_exit_code: int | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.bash_command = bash_command
        self.env = env
        self.output_encoding = output_encoding
        who = f"task {self.task_id!r}"
        is_any = retry_exit_code is None
        self.retry_exit_code = None if is_any else arguments.whole_number(who, "retry_exit_code", retry_exit_code)

    def poke(self, context: Context) -> bool:
        import tempfile

        self.log.info("Running command: %s", self.bash_command)
        with tempfile.TemporaryDirectory(prefix="asynsched-") as scratch:
            command = bash_command_line(self.bash_command)
            code = self.run_command(command, folder=scratch, env=self.env, encoding=self.output_encoding)
        if code and self.retry_exit_code not in (None, code):
            raise AsynschedFailException(f"Command exited with return code {code}")
        return code == 0
