"""DayOfWeekSensor: waits for a day of the week."""

from __future__ import annotations

from asynsched.authoring.sensors.base import BaseSensorOperator
from asynsched.authoring.timezone import utcnow
from asynsched.authoring.weekday import WeekDay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from typing import Any

    from asynsched.authoring.running.context import Context


class DayOfWeekSensor(BaseSensorOperator):
    """Waits for the first of certain days of the week, in UTC.

    Args:
        week_day: The day, or a set of days: names in full, or members of WeekDay.
        use_task_logical_date: Look at the run's logical date instead of at the present day.
    """

    def __init__(
        self,
        *,
        week_day: str | WeekDay | Iterable[str] | Iterable[WeekDay],
        use_task_logical_date: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.week_day = week_day
        self.use_task_logical_date = use_task_logical_date
        self.week_day_numbers = WeekDay.validate_week_day(week_day)

    def poke(self, context: Context) -> bool:
        day: dt.datetime = context["logical_date"] if self.use_task_logical_date else utcnow()
        self.log.info("Waiting for %s; it is %s", self.week_day, WeekDay(day.isoweekday()).name)
        return day.isoweekday() in self.week_day_numbers
