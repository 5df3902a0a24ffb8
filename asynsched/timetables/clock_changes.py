"""Cron expressions with a policy of the author's for clock changes.

A *gap* is a span that the clock skips; times of the expression inside of it are left out (`skip`), or run later by the
length of the gap (`shift`). A *fold* is a span that it shows twice; times inside of it run at the `first` showing, at
the `last`, or at `both`. Without a policy, `cron.py` does what Airflow does.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Literal, get_args

from asynsched.errors import TimetableError
from asynsched.timetables.cron import CronSchedule
from asynsched.timetables.zones import in_zone, instants_of, moved, wall_clock

GapPolicy = Literal["skip", "shift"]
FoldPolicy = Literal["first", "last", "both"]

_VICINITY = timedelta(hours=25)
"""A clock change moves the clock by a day at most: one that is farther away has no influence."""


class PolicyCronSchedule(CronSchedule):
    """A cron expression whose times are resolved by a policy.

    Args:
        cron: As for CronSchedule.
        zone: As for CronSchedule.
        gap: What becomes of skipped times. None: as in Airflow, which is `skip` for an expression for every hour, and
            `shift` for others.
        fold: What becomes of repeated times. None: as in Airflow, which is `both` for an expression for every hour, and
            `last` for others.

    Raises:
        TimetableError: As CronSchedule; or there is no such policy.
    """

    def __init__(self, cron: str, zone: str | tzinfo, gap: GapPolicy | None, fold: FoldPolicy | None) -> None:
        super().__init__(cron, zone)
        self._given = {"gap": gap, "fold": fold}
        self._gap = gap or ("skip" if self._every_hour else "shift")
        self._fold = fold or ("both" if self._every_hour else "last")

    @property
    def policy(self) -> dict[str, str]:
        return {name: value for name, value in self._given.items() if value is not None}

    def next(self, current: datetime) -> datetime | None:
        """Return the first instant after `current`; None when the expression's years are over."""
        slack = self._largest_change(current)
        best: datetime | None = None
        for wall in self._walls(moved(wall_clock(current, self.zone), -slack)):
            later = [instant for instant in self._instants(wall) if instant > current]
            best = min((instant for instant in (best, *later) if instant is not None), default=None)
            # Beyond a change, a later time by the clock may be an earlier instant.
            if best is not None and wall > wall_clock(best, self.zone) + self._largest_change(best):
                break
            if best is not None and not slack and not self._largest_change(best):
                break
        return best

    def previous(self, current: datetime) -> datetime | None:
        """Return the last instant before `current`; None before the expression's first year."""
        slack = self._largest_change(current)
        best: datetime | None = None
        for wall in self._walls(moved(wall_clock(current, self.zone), slack), back=True):
            earlier = [instant for instant in self._instants(wall) if instant < current]
            best = max((instant for instant in (best, *earlier) if instant is not None), default=None)
            if best is not None and wall < wall_clock(best, self.zone) - self._largest_change(best):
                break
            if best is not None and not slack and not self._largest_change(best):
                break
        return best

    def _walls(self, wall: datetime, *, back: bool = False) -> Iterator[datetime]:
        """Yield the times of the expression after `wall`, or before it, as the clock shows them."""
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
        """Return by how much the clock changes around an instant; nothing almost always."""
        offsets = [
            in_zone(moment, self.zone).utcoffset() or timedelta()
            for moment in (moved(instant, -_VICINITY), instant, moved(instant, _VICINITY))
        ]
        return max(abs(after - before) for before, after in pairwise(offsets))


def cron_schedule(cron: str, zone: str | tzinfo, gap: GapPolicy | None, fold: FoldPolicy | None) -> CronSchedule:
    """Return the schedule of an expression, with a policy if one is given.

    Raises:
        TimetableError: The expression or the zone is invalid, or there is no such policy.
    """
    for name, value, policy in (("gap", gap, GapPolicy), ("fold", fold, FoldPolicy)):
        if value is not None and value not in get_args(policy):
            raise TimetableError(f"{name} must be one of {', '.join(get_args(policy))}, not {value!r}")
    return CronSchedule(cron, zone) if gap is None and fold is None else PolicyCronSchedule(cron, zone, gap, fold)
