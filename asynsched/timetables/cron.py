"""Cron expressions in the wall-clock time of a timezone.

croniter handles only naive wall-clock times. This module handles clock changes, by default as Airflow does:

- An expression that names its hours means wall-clock time. A skipped time runs later by the length of the gap; a
  repeated time runs once, the second time.
- An expression for every hour means elapsed time: it runs through a repeated hour and jumps over a skipped one.

An author may choose another policy. A *gap* is a span that the clock skips: times inside are left out (`skip`), or run
later by the length of the gap (`shift`). A *fold* is a span that the clock repeats: times inside run the `first` time,
the `last` time, or `both` times.
"""

import copy
import platform
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from functools import cache, lru_cache
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from asynsched.errors import TimetableError
from asynsched.timetables.zones import as_zone, in_zone, instant_of, instants_of, moved, wall_clock, zone_name

if TYPE_CHECKING:
    from croniter import croniter

MAX_EXPRESSION_LENGTH = 1000
PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
_FIRST_DAY = datetime(1969, 12, 31, 23, 59, 59)  # noqa: DTZ001 - a wall clock has no zone
_N_YEARS = 130
"""A field of years has those from 1970 to 2099."""


GapPolicy = Literal["skip", "shift"]
FoldPolicy = Literal["first", "last", "both"]

_VICINITY = timedelta(hours=25)
"""A clock change moves the clock by at most a day, so only changes within this time matter."""


@cache
def _croniter() -> ModuleType:
    """Import croniter, which is slow to load, without the command that it runs to find out whether Python has 32 bits.

    Others could read secrets in that process's environment.
    """
    asks = platform.architecture
    platform.architecture = lambda *_, **__: ("", "")
    try:
        import croniter
    finally:
        platform.architecture = asks
    return croniter


@lru_cache(maxsize=4096)
def _expand(expression: str) -> "croniter":
    """Return a croniter for a valid expression. It is never moved; its copies are."""
    made_by = _croniter()
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise TimetableError(
            f"a cron expression has {len(expression)} characters; at most {MAX_EXPRESSION_LENGTH} are allowed"
        )
    if complaint := _misshapen(expression):
        raise TimetableError(f"cron expression {expression!r}: {complaint}")
    try:
        cron: croniter = made_by.croniter(expression, _FIRST_DAY, max_years_between_matches=_N_YEARS)
    except (made_by.CroniterError, ValueError, TypeError, KeyError, IndexError) as exc:
        raise TimetableError(f"cron expression {expression!r} is invalid: {exc}") from exc
    try:
        copy.copy(cron).get_next(datetime)
    except made_by.CroniterBadDateError as exc:
        raise TimetableError(f"cron expression {expression!r} matches no date that exists") from exc
    return cron


# Many DAGs share an expression and are due at the same time.
@lru_cache(maxsize=4096)
def _step(expression: str, wall: datetime, back: bool) -> datetime | None:
    """Return the first match after a wall-clock time, or the last before it; None beyond the expression's years."""
    cron = copy.copy(_expand(expression))
    cron.set_current(wall)
    try:
        found: datetime = cron.get_prev(datetime) if back else cron.get_next(datetime)
    except (ValueError, OverflowError):  # croniter finds none, or datetime none in the years 1 to 9999
        return None
    return found


def _misshapen(expression: str) -> str | None:
    """Return a mistake that croniter would report less clearly, or not at all."""
    fields = expression.lower().split()
    if len(fields) == 1 and fields[0].startswith("@"):
        known = {*PRESETS, "@annually", "@midnight"}
        return None if fields[0] in known else f"unknown preset; use {', '.join(PRESETS)}, @once or @continuous"
    if len(fields) not in (5, 6, 7):
        return f"it has {len(fields)} fields; give 5, or 6 with seconds last, or 7 with a year after them"
    if any(field.startswith("r") for field in fields):
        return "a random field (R) would mean a different schedule in each process; give numbers"
    if any(field.startswith("h") for field in fields):
        return "a hashed field (H) is not supported; give numbers"
    return None


class CronSchedule:
    """A cron expression in a timezone. All instants are aware, in UTC.

    Args:
        cron: Five fields, six with seconds last, seven with the year, or a preset.
        zone: The timezone, as a name or a tzinfo.
        gap: The policy for skipped times. None means that of Airflow: `skip` for an expression for every hour, and
            `shift` for others.
        fold: The policy for repeated times. None means that of Airflow: `both` for an expression for every hour, and
            `last` for others.

    Attributes:
        policy: The given policies, for the serialized form.

    Raises:
        TimetableError: The expression, the timezone or a policy is invalid; the message names it.
    """

    def __init__(
        self, cron: str, zone: str | tzinfo, gap: GapPolicy | None = None, fold: FoldPolicy | None = None
    ) -> None:
        for name, value, allowed in (("gap", gap, GapPolicy), ("fold", fold, FoldPolicy)):
            if value is not None and value not in get_args(allowed):
                raise TimetableError(f"{name} must be one of {', '.join(get_args(allowed))}, not {value!r}")
        if not isinstance(cron, str):
            raise TimetableError(f"a cron expression must be a str, not {type(cron).__name__}: {cron!r}")
        self.expression = PRESETS.get(cron, cron)
        self.zone = as_zone(zone)
        self.zone_name = zone_name(self.zone)
        self._cron = _expand(self.expression)
        self._every_hour = self._cron.expanded[1] == ["*"]
        self.policy = {name: value for name, value in (("gap", gap), ("fold", fold)) if value is not None}
        self._gap = gap or ("skip" if self._every_hour else "shift")
        self._fold = fold or ("both" if self._every_hour else "last")

    def __str__(self) -> str:
        return self.expression

    @property
    def description(self) -> str:
        """The expression in plain English; empty if it cannot be described."""
        return describe(self.expression, len(self._cron.expanded))

    def next(self, current: datetime) -> datetime | None:
        """Return the first instant after `current`; None beyond the expression's years.

        Raises TimetableError if the result is outside of the calendar. The other methods raise it too.
        """
        if self.policy:
            return self._nearest(current, back=False)
        wall = wall_clock(current, self.zone)
        found = self._step(wall)
        if found is None:
            return None
        if self._every_hour:
            return moved(current, found - wall)
        instant = instant_of(found, self.zone)
        while instant <= current:
            found = self._step(found)
            if found is None:
                return None
            instant = instant_of(found, self.zone)
        return instant

    def previous(self, current: datetime) -> datetime | None:
        """Return the last instant before `current`; None before the expression's first year.

        Around a clock change, as in Airflow, the result may be `current` itself, or later.
        """
        if self.policy:
            return self._nearest(current, back=True)
        wall = wall_clock(current, self.zone)
        found = self._step(wall, back=True)
        if found is None:
            return None
        return moved(current, found - wall) if self._every_hour else instant_of(found, self.zone)

    def align_to_next(self, current: datetime) -> datetime | None:
        """Return `current` if it is on the schedule, else the first instant after it."""
        following = self.next(current)
        if following is None:
            return None
        return current if self.previous(following) == current else following

    def align_to_previous(self, current: datetime) -> datetime | None:
        """Return `current` if it is on the schedule, else the last instant before it."""
        before = self.previous(current)
        if before is None:
            return None
        return current if self.next(before) == current else before

    def newest(self, first: datetime, until: datetime) -> datetime:
        """Return the last moment of the schedule until `until`; at least `first`."""
        found = self.align_to_previous(until)
        if found is not None and found > until:
            # Further steps by `previous` might never leave a skipped hour: it may return the moment that it is given.
            found = self._nearest(moved(until, datetime.resolution), back=True)
        return first if found is None else max(first, found)

    def _step(self, wall: datetime, *, back: bool = False) -> datetime | None:
        return _step(self.expression, wall, back)

    def _nearest(self, current: datetime, *, back: bool) -> datetime | None:
        slack, nearer, sign = self._largest_change(current), max if back else min, -1 if back else 1
        best: datetime | None = None
        for wall in self._walls(moved(wall_clock(current, self.zone), -sign * slack), back=back):
            found = [instant for instant in self._instants(wall) if sign * (instant - current) > timedelta()]
            best = nearer((instant for instant in (best, *found) if instant is not None), default=None)
            if best is not None:
                change = self._largest_change(best)
                # Across a clock change, a later wall-clock time may be an earlier instant.
                if sign * (wall - wall_clock(best, self.zone)) > change or not (slack or change):
                    break
        return best

    def _walls(self, wall: datetime, *, back: bool) -> Iterator[datetime]:
        """Yield the expression's wall-clock times after `wall`, or before it."""
        found = self._step(wall, back=back)
        while found is not None:
            yield found
            found = self._step(found, back=back)

    def _instants(self, wall: datetime) -> tuple[datetime, ...]:
        first, last = instants_of(wall, self.zone)
        if first == last:
            return (first,)
        if first > last:
            return (first,) if self._gap == "shift" else ()
        return {"first": (first,), "last": (last,), "both": (first, last)}[self._fold]

    def _largest_change(self, instant: datetime) -> timedelta:
        """Return the size of the clock change near an instant, which is almost always zero."""
        offsets = [
            in_zone(moment, self.zone).utcoffset() or timedelta()
            for moment in (moved(instant, -_VICINITY), instant, moved(instant, _VICINITY))
        ]
        return max(abs(after - before) for before, after in pairwise(offsets))


def describe(expression: str, n_fields: int) -> str:
    """Return a sentence for a cron expression; empty if it has more than five fields, or cannot be described.

    If both the day of the month and the day of the week are given, the sentence says that either is enough.

    Source: Airflow's descriptions, which exclude six fields because libraries disagree about their order.
    """
    fields = expression.split()
    if n_fields > 5 or len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    if day == "*" or weekday == "*":
        return _sentence(expression)
    by_day = _sentence(f"{minute} {hour} {day} {month} *")
    by_weekday = _sentence(f"{minute} {hour} * {month} {weekday}")
    return f"{by_day} (or) {by_weekday}" if by_day and by_weekday else ""


def _sentence(expression: str) -> str:
    from cron_descriptor import (
        CasingTypeEnum,
        ExpressionDescriptor,
        FormatException,
        MissingFieldException,
        WrongArgumentException,
    )

    try:
        descriptor = ExpressionDescriptor(expression, casing_type=CasingTypeEnum.Sentence, use_24hour_time_format=True)
        return str(descriptor.get_description())
    except (FormatException, MissingFieldException, WrongArgumentException, ValueError):
        return ""
