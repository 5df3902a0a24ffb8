"""DateTimeSensor and TimeSensor: they wait for an instant, or for a time of day."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.meta import task_owner
from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.sensors.moment import MomentSensor
from asynsched.authoring.timezone import convert_to_utc, utcnow
from asynsched.authoring.triggers.temporal import DateTimeTrigger
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from asynsched.authoring.running.context import Context


class DateTimeSensor(BaseSensorOperator):
    """Waits until an instant.

    Args:
        target_time: The instant: a datetime, or a text, which may be a template. Naive ones are in the default zone.
            (templated)
    """

    template_fields: Collection[str] = ("target_time",)

    def __init__(self, *, target_time: str | dt.datetime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(target_time, (str, dt.datetime)):
            raise DagError(f"task {self.task_id!r}: target_time must be a datetime or a text, not {target_time!r}")
        self.target_time = target_time

    @property
    def moment(self) -> dt.datetime:
        """The instant. Raises DagError for a text that is none."""
        found = arguments.instant(task_owner(self.task_id, None), "target_time", self.target_time, None)
        assert found is not None
        return found

    def poke(self, context: Context) -> bool:
        self.log.info("Waiting until %s", self.target_time)
        return utcnow() > self.moment


class DateTimeSensorAsync(DateTimeSensor):
    """Waits until an instant, without a process or slots of its own.

    Args:
        start_from_trigger: Taken as Airflow's argument of that name: it waits at once in any case.
        end_from_trigger: Succeed without another process.
        trigger_kwargs: Taken as Airflow's argument of that name; the trigger is made from the other arguments.
    """

    def __init__(
        self,
        *,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.end_from_trigger = end_from_trigger

    def execute(self, context: Context) -> None:
        trigger = DateTimeTrigger(moment=self.moment, end_from_trigger=self.end_from_trigger)
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> None:
        """Go on when the time has come: there is nothing left to do."""


class TimeSensor(MomentSensor):
    """Waits until a time of the day on which it begins, in the DAG's zone.

    Args:
        target_time: The time of day.
        deferrable: Wait in a DateTimeTrigger, without a process or slots of its own.
        start_from_trigger: Taken as Airflow's argument of that name: with `deferrable` it waits at once in any case.
        end_from_trigger: With `deferrable`, succeed without another process.
        trigger_kwargs: Taken as Airflow's argument of that name; the trigger is made from the other arguments.
    """

    def __init__(
        self,
        *,
        target_time: dt.time,
        deferrable: bool = False,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(deferrable=deferrable, end_from_trigger=end_from_trigger, **kwargs)
        if not isinstance(target_time, dt.time):
            raise DagError(f"task {self.task_id!r}: target_time must be a datetime.time, not {target_time!r}")
        self.target_time = target_time

    def execute(self, context: Context) -> Any:
        if self.deferrable:
            trigger = DateTimeTrigger(moment=self._moment(context), end_from_trigger=self.end_from_trigger)
            self.defer(trigger=trigger, method_name="execute_complete")
        return super().execute(context)

    def _moment(self, context: Context) -> dt.datetime:
        """Return the instant. The day is that of the first look: what begins before midnight waits for no other."""
        zone = self.dag.timezone
        first_look = context["ti"].get_first_reschedule_date(context) or utcnow()
        day = first_look.astimezone(zone).date()
        found = convert_to_utc(dt.datetime.combine(day, self.target_time), self.target_time.tzinfo or zone)
        assert found is not None
        return found


class TimeSensorAsync(TimeSensor):
    """TimeSensor with `deferrable=True`, under its older name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(deferrable=True, **kwargs)
