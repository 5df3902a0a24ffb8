"""Sensors that wait for a point in time, a day of the week, or a file."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod

from asynsched.authoring import defaults
from asynsched.authoring.exceptions import AsynschedException, AsynschedNotFoundException
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.arguments import task_owner
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.timezone import to_utc, utcnow
from asynsched.authoring.triggers.file import FileTrigger, find_file
from asynsched.authoring.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any, Unpack

    from asynsched.authoring.keywords import SensorKeywords
    from asynsched.authoring.running.context import Context
    from asynsched.authoring.week_day import WeekDay


class MomentSensor(BaseSensorOperator):
    """Waits until a moment, which subclasses return from `_moment`.

    Args:
        deferrable: Wait in a DateTimeTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
        end_from_trigger: With `deferrable`, succeed without another process.
    """

    def __init__(
        self, *, deferrable: bool | None = None, end_from_trigger: bool = False, **kwargs: Unpack[SensorKeywords]
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = defaults.is_deferrable(deferrable)
        self.end_from_trigger = end_from_trigger

    def poke(self, context: Context) -> bool:
        moment = self._moment(context)
        self.log.info("Waiting until %s", moment)
        return utcnow() > moment

    def execute(self, context: Context) -> Any:
        if self.deferrable:
            trigger = DateTimeTrigger(moment=self._moment(context), end_from_trigger=self.end_from_trigger)
            self.defer(trigger=trigger, method_name="execute_complete")
        return super().execute(context)

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Continue at the moment: nothing is left to do."""

    @abstractmethod
    def _moment(self, context: Context) -> dt.datetime: ...


class DateTimeSensor(MomentSensor):
    """Waits until an instant.

    Args:
        target_time: The instant, as a datetime or a string; a naive one is in the default timezone. (templated)
        deferrable: Wait in a DateTimeTrigger, without a process or pool slots.
        end_from_trigger: With `deferrable`, succeed without another process.
    """

    template_fields: Collection[str] = ("target_time",)

    def __init__(
        self,
        *,
        target_time: str | dt.datetime,
        deferrable: bool = False,
        end_from_trigger: bool = False,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(deferrable=deferrable, end_from_trigger=end_from_trigger, **kwargs)
        if not isinstance(target_time, (str, dt.datetime)):
            raise DagError(f"task {self.task_id!r}: target_time must be a datetime or a string, not {target_time!r}")
        self.target_time = target_time

    def _moment(self, context: Context) -> dt.datetime:
        found = arguments.instant(task_owner(self.task_id, None), "target_time", self.target_time, None)
        assert found is not None
        return found


class DateTimeSensorAsync(DateTimeSensor):
    """Waits until an instant, without a process or pool slots.

    Args:
        start_from_trigger: Accepted as in Airflow; the sensor waits in the trigger immediately in any case.
        end_from_trigger: Succeed without another process.
        trigger_kwargs: Accepted as in Airflow; the trigger is made from the other arguments.
    """

    def __init__(
        self,
        *,
        target_time: str | dt.datetime,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(target_time=target_time, deferrable=True, end_from_trigger=end_from_trigger, **kwargs)


class TimeSensor(MomentSensor):
    """Waits until a time of the day on which the task begins, in the DAG's timezone.

    Args:
        deferrable: Wait in a DateTimeTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
        start_from_trigger: Accepted as in Airflow; with `deferrable`, the sensor waits in the trigger immediately.
        end_from_trigger: With `deferrable`, succeed without another process.
        trigger_kwargs: Accepted as in Airflow; the trigger is made from the other arguments.
    """

    def __init__(
        self,
        *,
        target_time: dt.time,
        deferrable: bool | None = None,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(deferrable=deferrable, end_from_trigger=end_from_trigger, **kwargs)
        if not isinstance(target_time, dt.time):
            raise DagError(f"task {self.task_id!r}: target_time must be a datetime.time, not {target_time!r}")
        self.target_time = target_time

    def _moment(self, context: Context) -> dt.datetime:
        """Return the instant on the day of the first check, even if later checks are on the next day."""
        zone = self.dag.timezone
        first_check = context["ti"].get_first_reschedule_date(context) or utcnow()
        day = first_check.astimezone(zone).date()
        found = to_utc(dt.datetime.combine(day, self.target_time), self.target_time.tzinfo or zone)
        assert found is not None
        return found


class TimeSensorAsync(TimeSensor):
    """The older name of TimeSensor with `deferrable=True`."""

    def __init__(
        self,
        *,
        target_time: dt.time,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(target_time=target_time, deferrable=True, end_from_trigger=end_from_trigger, **kwargs)


def _in_minutes(name: str, value: Any) -> dt.timedelta:
    """Return a length of time that is given as one, or in minutes. Raises ValueError."""
    if isinstance(value, dt.timedelta):
        return value
    try:
        return dt.timedelta(minutes=float(value))
    except (TypeError, ValueError, OverflowError) as exc:
        raise ValueError(f"{name} must be a timedelta or a number of minutes, not {value!r:.100}") from exc


class TimeDeltaSensor(MomentSensor):
    """Waits until `delta` after the run's `data_interval_end`, or after its `run_after` if it has none.

    Args:
        delta: The time to wait, as a timedelta or minutes. (templated)
        deferrable: Wait in a DateTimeTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
        end_from_trigger: With `deferrable`, succeed without another process.
    """

    template_fields: Collection[str] = ("delta",)

    def __init__(
        self,
        *,
        delta: dt.timedelta | float | str,
        deferrable: bool | None = None,
        end_from_trigger: bool = False,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(deferrable=deferrable, end_from_trigger=end_from_trigger, **kwargs)
        self.delta = delta

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        moment = self._moment(context)
        if utcnow() <= moment:
            self.defer(
                trigger=DateTimeTrigger(moment=moment, end_from_trigger=self.end_from_trigger),
                method_name="execute_complete",
                timeout=self.timeout,
            )
        return True

    def _moment(self, context: Context) -> dt.datetime:
        base: dt.datetime = context.get("data_interval_end") or context["dag_run"].run_after
        return base + _in_minutes("delta", self.delta)


class TimeDeltaSensorAsync(TimeDeltaSensor):
    """The older name of TimeDeltaSensor with `deferrable=True`."""

    def __init__(
        self,
        *,
        delta: dt.timedelta | float | str,
        end_from_trigger: bool = False,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(delta=delta, deferrable=True, end_from_trigger=end_from_trigger, **kwargs)


class WaitSensor(BaseSensorOperator):
    """Waits for a length of time from the start of the task.

    Args:
        time_to_wait: The time to wait, as a timedelta or minutes. (templated)
        deferrable: Wait in a TimeDeltaTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
    """

    template_fields: Collection[str] = ("time_to_wait",)

    def __init__(
        self,
        *,
        time_to_wait: dt.timedelta | float | str,
        deferrable: bool | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.time_to_wait = time_to_wait
        self.deferrable = defaults.is_deferrable(deferrable)

    def execute(self, context: Context) -> None:
        import time

        time_to_wait = _in_minutes("time_to_wait", self.time_to_wait)
        if self.deferrable:
            self.defer(trigger=TimeDeltaTrigger(time_to_wait, end_from_trigger=True), method_name="execute_complete")
        time.sleep(max(0.0, time_to_wait.total_seconds()))

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Never called: the trigger ends the task."""


class DayOfWeekSensor(BaseSensorOperator):
    """Waits until it is one of certain days of the week, in UTC.

    Args:
        week_day: The day or a set of days, as full names or members of WeekDay.
        use_task_logical_date: Use the run's logical date, or else its `run_after`, instead of the current day.
    """

    def __init__(
        self,
        *,
        week_day: str | WeekDay | Iterable[str] | Iterable[WeekDay],
        use_task_logical_date: bool = False,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        from asynsched.authoring.week_day import WeekDay

        super().__init__(**kwargs)
        self.week_day = week_day
        self.use_task_logical_date = use_task_logical_date
        self.week_day_numbers = WeekDay.validate_week_day(week_day)

    def poke(self, context: Context) -> bool:
        day = utcnow()
        if self.use_task_logical_date:
            day = context.get("logical_date") or context["dag_run"].run_after
        self.log.info("Waiting for %s; it is %s", self.week_day, day.strftime("%A"))
        return day.isoweekday() in self.week_day_numbers


DEFAULT_CONNECTION = "fs_default"


class FileSensor(BaseSensorOperator):
    """Waits until a file exists, or a folder with a file in it at any depth.

    Args:
        filepath: The path or a glob pattern, relative to the connection's path. (templated)
        fs_conn_id: The connection whose extra has the base `path`; `fs_default` need not exist. (templated)
        recursive: Make `**` in the pattern match any number of folders.
        deferrable: Wait in a FileTrigger, without a process or pool slots; None: if the option `[operators]
            default_deferrable` says so.
        start_from_trigger: With `deferrable`, wait in the trigger immediately, without a first check.
        trigger_kwargs: Accepted as in Airflow; the trigger is made from the other arguments.
    """

    template_fields: Collection[str] = ("filepath", "fs_conn_id")
    ui_color = "#91818a"

    def __init__(
        self,
        *,
        filepath: Any,
        fs_conn_id: str = DEFAULT_CONNECTION,
        recursive: bool = False,
        deferrable: bool | None = None,
        start_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Unpack[SensorKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.filepath = filepath
        self.fs_conn_id = fs_conn_id
        self.recursive = recursive
        self.deferrable = defaults.is_deferrable(deferrable)
        self.waits_at_once = start_from_trigger

    @property
    def path(self) -> str:
        """The pattern joined to the connection's path."""
        from pathlib import Path

        from asynsched.authoring.connection import Connection

        try:
            base = Connection.get(self.fs_conn_id).extra_dejson.get("path", "")
        except AsynschedNotFoundException:
            if self.fs_conn_id != DEFAULT_CONNECTION:
                raise
            base = ""
        return str(Path(base) / self.filepath)

    def poke(self, context: Context) -> bool:
        pattern = self.path
        self.log.info("Poking for file %s", pattern)
        found = find_file(pattern, recursive=self.recursive)
        if found is not None:
            self.log.info("Found %s", found)
        return found is not None

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        if self.waits_at_once or not self.poke(context):
            self.defer(
                trigger=FileTrigger(self.path, recursive=self.recursive, poke_interval=self.poke_interval),
                method_name="execute_complete",
                timeout=self.timeout,
            )
        return None

    def execute_complete(self, context: Context, event: bool | None = None) -> None:
        """Continue when the trigger has found the file."""
        if not event:
            raise AsynschedException(f"task {self.task_id!r}: {self.filepath} was not found")
        self.log.info("Found %s", self.filepath)
