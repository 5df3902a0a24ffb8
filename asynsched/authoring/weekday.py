"""WeekDay: the days of the week, and the texts and sets that stand for them."""

from __future__ import annotations

from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar

NAMES = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")


class WeekDay(int):
    """A day of the week; its number is that of `date.isoweekday()`: `WeekDay.MONDAY` is 1.

    Raises:
        ValueError: There is no day of that number.
    """

    # Not an enum.Enum: that module would be loaded by every DAG file.
    MONDAY: ClassVar[WeekDay]
    TUESDAY: ClassVar[WeekDay]
    WEDNESDAY: ClassVar[WeekDay]
    THURSDAY: ClassVar[WeekDay]
    FRIDAY: ClassVar[WeekDay]
    SATURDAY: ClassVar[WeekDay]
    SUNDAY: ClassVar[WeekDay]

    def __new__(cls, number: int) -> WeekDay:
        if not 1 <= number <= len(NAMES):
            raise ValueError(f"{number} is no day of the week: Monday is 1, Sunday is 7")
        return super().__new__(cls, number)

    @property
    def name(self) -> str:
        """The day's name, in capitals."""
        return NAMES[self - 1]

    def __repr__(self) -> str:
        return f"WeekDay.{self.name}"

    @classmethod
    def get_weekday_number(cls, week_day_str: str) -> int:
        """Return the number of a day that is named in full, in capitals or not. Raises DagError."""
        name = str(week_day_str).upper()
        if name not in NAMES:
            raise DagError(f"week_day {week_day_str!r} is unknown; use one of {', '.join(NAMES)}")
        return NAMES.index(name) + 1

    @classmethod
    def convert(cls, day: str | WeekDay) -> int:
        """Return the number of a day. Raises DagError for what is none."""
        return day if isinstance(day, WeekDay) else cls.get_weekday_number(day)

    @classmethod
    def validate_week_day(cls, week_day: str | WeekDay | Iterable[str] | Iterable[WeekDay]) -> set[int]:
        """Return the numbers of one day, or of several. Raises DagError for what is none."""
        if isinstance(week_day, (str, WeekDay)):
            return {cls.convert(week_day)}
        if not isinstance(week_day, (set, frozenset, list, tuple)):
            raise DagError(f"week_day must be a day or a set of days, not {week_day!r}")
        return {cls.convert(day) for day in week_day}


for _name in NAMES:
    setattr(WeekDay, _name, WeekDay(NAMES.index(_name) + 1))
