"""The days of the week. The operators by day load this where they need it: an enum takes time in every DAG file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from asynsched.errors import DagError


class WeekDay(IntEnum):
    """A day of the week, numbered as in `date.isoweekday()`: `WeekDay.MONDAY` is 1.

    Raises:
        ValueError: No day has this number.
    """

    MONDAY = 1
    TUESDAY = 2
    WEDNESDAY = 3
    THURSDAY = 4
    FRIDAY = 5
    SATURDAY = 6
    SUNDAY = 7

    @classmethod
    def get_weekday_number(cls, week_day_str: str) -> WeekDay:
        """Return the day with this full name, in upper or lower case. Raises DagError for other names."""
        name = str(week_day_str).upper()
        if name not in cls.__members__:
            raise DagError(f"week_day {week_day_str!r} is unknown; use one of {', '.join(cls.__members__)}")
        return cls[name]

    @classmethod
    def convert(cls, day: str | WeekDay) -> WeekDay:
        """Return a day. Raises DagError for an unknown one."""
        return day if isinstance(day, WeekDay) else cls.get_weekday_number(day)

    @classmethod
    def validate_week_day(cls, week_day: str | WeekDay | Iterable[str] | Iterable[WeekDay]) -> set[int]:
        """Return the numbers of one day or several. Raises DagError for an unknown day."""
        if isinstance(week_day, (str, WeekDay)):
            return {cls.convert(week_day)}
        if not isinstance(week_day, Iterable):
            raise DagError(f"week_day must be a day or a set of days, not {week_day!r}")
        return {cls.convert(day) for day in week_day}
