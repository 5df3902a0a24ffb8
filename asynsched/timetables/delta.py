"""Lengths of time between runs: a timedelta, or a relativedelta of calendar months and years.

Delta has the methods of CronSchedule.

Source: Airflow adds both to an instant in UTC, so a day always has 24 hours, regardless of the DAG's timezone.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from asynsched.errors import TimetableError
from asynsched.timetables.zones import moved

if TYPE_CHECKING:
    from dateutil.relativedelta import relativedelta

    AnyDelta = timedelta | relativedelta

LONGEST = timedelta(days=366_000)
MOST_MOMENTS = 100_000
"""How many moments are counted from a start date on, where the calendar allows no division: this takes a second."""
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - only its distance from another day counts
_RELATIVE = ("years", "months", "days", "leapdays", "hours", "minutes", "seconds", "microseconds")
_ABSOLUTE = ("year", "month", "day", "hour", "minute", "second", "microsecond")


class Delta:
    """A length of time that can be added to an instant.

    Args:
        what: The name of the length in messages.
        zero: Whether it may be zero.

    Raises:
        TimetableError: The value is not a delta, or is not positive.
    """

    def __init__(self, value: "AnyDelta", what: str, *, zero: bool = False) -> None:
        if not isinstance(value, timedelta) and type(value).__name__ != "relativedelta":
            raise TimetableError(
                f"{what} must be a timedelta or a relativedelta, not {type(value).__name__}: {value!r}"
            )
        self.value = value
        self._what = what
        try:
            length = (_SOME_DAY + value) - _SOME_DAY
        except (OverflowError, ValueError) as exc:
            raise TimetableError(f"{what} of {value!r} is out of range: {exc}") from exc
        self.length = length
        """The length from an arbitrary day."""
        if length < timedelta() or (length == timedelta() and not zero):
            raise TimetableError(f"{what} must be positive, not {value!r}")
        if length > LONGEST:
            raise TimetableError(f"{what} of {value!r} is longer than {LONGEST.days} days")

    description = ""

    def __str__(self) -> str:
        return str(self.value)

    def next(self, current: datetime) -> datetime:
        """Return `current` plus this length. Raises TimetableError if that is not later, or outside of the calendar."""
        later = self._moved(current, 1)
        if later <= current:
            raise TimetableError(f"{self._what} of {self.value!r} does not lead past {current.isoformat()}")
        return later

    def previous(self, current: datetime) -> datetime:
        """Return `current` minus this length. Raises TimetableError if that is outside of the calendar."""
        return self._moved(current, -1)

    def align_to_next(self, current: datetime) -> datetime:
        """Return `current`: a length of time does not fix the moments of a schedule."""
        return current

    align_to_previous = align_to_next

    def newest(self, first: datetime, until: datetime) -> datetime:
        """Return the last moment until `until` of the schedule that starts at `first`; at least `first`."""
        if not self.is_calendar:
            return first + max(until - first, timedelta()) // self._length * self._length
        for moment in self.moments(first, until):
            first = moment
        return first

    def moments(self, first: datetime, until: datetime) -> Iterator[datetime]:
        """Yield `first`, and the moments that follow it until `until`. Raises TimetableError if there are too many."""
        moment = first
        for _ in range(MOST_MOMENTS):
            yield moment
            moment = self.next(moment)
            if moment > until:
                return
        raise TimetableError(
            f"{self._what} of {self.value!r} has more than {MOST_MOMENTS} moments from {first.isoformat()} to"
            f" {until.isoformat()}; give a later start_date"
        )

    @property
    def _length(self) -> timedelta:
        """The length, if it does not depend on the calendar."""
        if isinstance(self.value, timedelta):
            return self.value
        parts = ("days", "hours", "minutes", "seconds", "microseconds")
        return timedelta(**{name: getattr(self.value, name) for name in parts})

    def _moved(self, current: datetime, sign: int) -> datetime:
        try:
            return current + self.value if sign > 0 else current - self.value
        except (OverflowError, ValueError) as exc:
            raise TimetableError(f"{self._what} of {self.value!r} leads out of the calendar: {exc}") from exc

    @property
    def is_calendar(self) -> bool:
        """Whether the length in hours depends on the date, as it does for months, years or fixed days."""
        if isinstance(self.value, timedelta):
            return False
        absolute = any(getattr(self.value, name) is not None for name in (*_ABSOLUTE, "weekday"))
        return absolute or bool(self.value.years or self.value.months or self.value.leapdays)

    def round_down(self, current: datetime) -> datetime:
        """Round down to a multiple of this length since 1970. The length must not depend on the calendar."""
        return moved(current, -((current - datetime(1970, 1, 1, tzinfo=current.tzinfo)) % self._length))

    def encode(self) -> float | dict[str, Any]:
        """Return the JSON form: seconds of a timedelta, the parts of a relativedelta."""
        if isinstance(self.value, timedelta):
            return self.value.total_seconds()
        parts = {name: getattr(self.value, name) for name in _RELATIVE}
        encoded: dict[str, Any] = {name: part for name, part in parts.items() if part}
        encoded |= {name: part for name in _ABSOLUTE if (part := getattr(self.value, name)) is not None}
        if (weekday := self.value.weekday) is not None:
            encoded["weekday"] = [weekday.weekday, weekday.n or 1]
        return encoded
