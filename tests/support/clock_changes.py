"""Every change of every clock from 2000 to 2040, and schedules that are walked through it.

`python -m tests.support.clock_changes` walks all zones under all policies; the tests walk each distinct change.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from asynsched.timetables.cron import CronSchedule

BEGIN, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
_STEP = timedelta(days=3)
"""Shorter than the time between two changes of one clock."""


@dataclass(frozen=True)
class Change:
    """A clock shows `before` more than UTC until `at`, and `after` more from then on."""

    at: datetime
    before: timedelta
    after: timedelta


def zone_names() -> list[str]:
    return sorted(available_timezones() - {"localtime"})


@cache
def changes(zone: str) -> tuple[Change, ...]:
    """Return the changes of a zone's clock from 2000 to 2040."""
    clock, found, moment = ZoneInfo(zone), [], BEGIN
    before = moment.astimezone(clock).utcoffset()
    while moment < END:
        following = moment + _STEP
        after = following.astimezone(clock).utcoffset()
        if after != before:
            found.append(Change(_exact(clock, moment, following), before, after))
        moment, before = following, after
    return tuple(found)


def _exact(clock: ZoneInfo, low: datetime, high: datetime) -> datetime:
    before = low.astimezone(clock).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // timedelta(seconds=2) * timedelta(seconds=1)
        low, high = (middle, high) if middle.astimezone(clock).utcoffset() == before else (low, middle)
    return high


POLICIES = (
    (None, None), *((gap, fold) for gap in ("skip", "shift") for fold in ("first", "last", "both"))
)  # fmt: skip


def daily_disagreement(zone: str, change: Change, gap: str | None, fold: str | None) -> str | None:
    """Walk a daily schedule through a change, at a time in the middle of the skipped or repeated span.

    Returns the difference from the instants that are found with the clock itself; None without one.
    """
    clock = ZoneInfo(zone)
    middle = (change.at + (change.before + change.after) / 2).replace(tzinfo=None, second=0, microsecond=0)
    wanted = sorted({
        instant
        for day in range(-3, 4)
        for instant in _instants(middle + timedelta(days=day), clock, change, gap or "shift", fold or "last")
    })  # fmt: skip
    schedule = CronSchedule(f"{middle.minute} {middle.hour} * * *", zone, gap, fold)
    forth, back = [], []
    instant = wanted[0] - timedelta(seconds=1)
    while (instant := schedule.next(instant)) <= wanted[-1]:
        forth.append(instant)
    if gap is not None:  # Airflow's behaviour at a change is the same in one direction only
        instant = wanted[-1] + timedelta(seconds=1)
        while (instant := schedule.previous(instant)) >= wanted[0]:
            back.insert(0, instant)
    if forth == wanted and back in (wanted, []):
        return None
    return f"{zone} {change.at} gap={gap} fold={fold}: wanted {wanted}, got {forth} and {back}"


def _instants(wall: datetime, clock: ZoneInfo, change: Change, gap: str, fold: str) -> list[datetime]:
    offsets = {(wall + timedelta(days=days)).replace(tzinfo=clock).utcoffset() for days in (-2, 2)}
    candidates = sorted({(wall - offset).replace(tzinfo=UTC) for offset in offsets | {change.before, change.after}})
    shown = [instant for instant in candidates if instant.astimezone(clock).replace(tzinfo=None) == wall]
    if not shown:
        return [(wall - change.before).replace(tzinfo=UTC)] if gap == "shift" else []
    return {"first": shown[:1], "last": shown[-1:], "both": shown}[fold]


def main() -> None:
    """Walk every zone through every change under every policy: some minutes."""
    n_walks, wrong = 0, []
    for zone in zone_names():
        for change in changes(zone):
            for gap, fold in POLICIES:
                n_walks += 1
                if (found := daily_disagreement(zone, change, gap, fold)) is not None:
                    wrong.append(found)
    print(f"{n_walks} walks, {len(wrong)} disagree", *wrong[:20], sep="\n")


if __name__ == "__main__":
    main()
