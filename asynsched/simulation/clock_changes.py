"""The effect of clock changes on schedules: days with another number of runs, at another time, of another length.

Pure functions of the DAGs' schedules, which are compared with the same schedules without the change. Paused DAGs are
included.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

from msgspec import Struct

from asynsched.errors import PlanNeeded, TimetableError
from asynsched.serialization.schema import SerializedDag
from asynsched.timetables import DataInterval, KnownTimetable, TimeRestriction, decode
from asynsched.timetables.zones import wall_clock, zone_name, zone_named

DAY = timedelta(days=1)
MOST_RUNS = 20_000
"""Runs around one change that are compared: one every fifteen seconds."""
LONGEST_EFFECT = timedelta(days=2)
"""How long after a change runs are compared."""
ALWAYS = TimeRestriction(earliest=None, latest=None, catchup=True)


class ClockChange(Struct, frozen=True):
    """The effect of one change of the clock on one DAG on one day.

    Attributes:
        date: The day, in the zone of the DAG's schedule.
        shift_seconds: How far the clock is put forward; negative: back.
        n_runs: The number of the DAG's runs that day.
        usual_runs: Their number if the clock were not changed.
    """

    dag_id: str
    zone: str
    date: date
    shift_seconds: float
    n_runs: int
    usual_runs: int
    effect: str


class _Run(NamedTuple):
    """A run of a schedule: its wall-clock time, the length of its interval, and the time since the run before."""

    wall: datetime
    length: timedelta
    since_last: timedelta | None


def clock_changes(dags: Iterable[SerializedDag], start: datetime, end: datetime) -> list[ClockChange]:
    """Return the effects of changes of the clock on these DAGs between two instants, by day and DAG."""
    found = [
        change
        for dag in dags
        for name in sorted(_zones(dag.timetable))
        for day, shift in transitions(zone_named(name), start - LONGEST_EFFECT, end)
        for change in _of_dag(dag, name, day, shift)
        if _midnight(change.date, name) < end and start < _midnight(change.date + DAY, name)
    ]
    return sorted(found, key=lambda change: (change.date, change.dag_id, change.zone))


def transitions(zone: tzinfo, start: datetime, end: datetime) -> Iterator[tuple[date, timedelta]]:
    """Yield each day whose noon has another UTC offset than the noon before, in a zone, and the difference.

    The clock changes before `end`, and no more than a day before `start`.
    """
    if zone is UTC:
        return
    day = wall_clock(start, zone).date()
    while _noon(day - DAY, zone) < end:
        shift = _offset(_noon(day, zone), zone) - _offset(_noon(day - DAY, zone), zone)
        # At the end of the span the clock may not have changed yet.
        last = min(end - datetime.resolution, _noon(day, zone))
        if shift and _offset(last, zone) == _offset(_noon(day, zone), zone):
            yield day, shift
        day += DAY


def _midnight(day: date, zone: str) -> datetime:
    return datetime.combine(day, time(), zone_named(zone)).astimezone(UTC)


def _zones(timetable: Any) -> set[str]:
    """Return the zones of a serialized timetable and of those within it."""
    if isinstance(timetable, dict):
        own = {zone for key, zone in timetable.items() if key == "timezone" and isinstance(zone, str)}
        return own.union(*map(_zones, timetable.values()))
    return set().union(*map(_zones, timetable)) if isinstance(timetable, list | tuple) else set()


def _in_zone(timetable: Any, before: str, after: str) -> Any:
    """Return a serialized timetable with one zone replaced by another."""
    if isinstance(timetable, dict):
        return {
            key: after if key == "timezone" and value == before else _in_zone(value, before, after)
            for key, value in timetable.items()
        }
    return [_in_zone(value, before, after) for value in timetable] if isinstance(timetable, list) else timetable


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _noon(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(12), zone).astimezone(UTC)


def _of_dag(dag: SerializedDag, name: str, day: date, shift: timedelta) -> Iterator[ClockChange]:
    zone = zone_named(name)
    steady = timezone(_offset(_noon(day - DAY, zone), zone))
    unchanged = _in_zone(dag.timetable, name, zone_name(steady))
    try:
        runs = _runs_around(decode(dag.timetable), day, zone)
        usual = _runs_around(decode(unchanged), day, steady)
    except (TimetableError, PlanNeeded):
        return  # the schedule is over, or only its author's own code knows
    for each in sorted(runs.keys() | usual.keys()):
        if effect := _effect(usual[each], runs[each]):
            yield ClockChange(dag.dag_id, name, each, shift.total_seconds(), len(runs[each]), len(usual[each]), effect)


def _runs_around(timetable: KnownTimetable, day: date, zone: tzinfo) -> dict[date, list[_Run]]:
    """Return, by day, the runs of the day before a change of the clock, of its day, of the day after, and one more."""
    start, end = _noon(day - 2 * DAY, zone), _noon(day + DAY, zone) + DAY / 2
    found: dict[date, list[_Run]] = defaultdict(list)
    last: DataInterval | None = DataInterval(start, start)
    last_at: datetime | None = None
    for _ in range(MOST_RUNS):
        info = timetable.next_run(last, ALWAYS, start)
        if info is None:
            break
        wall = wall_clock(info.run_after, zone)
        if wall.date() >= day - DAY:
            length = info.data_interval.end - info.data_interval.start
            found[wall.date()].append(_Run(wall, length, None if last_at is None else info.run_after - last_at))
        if info.run_after >= end:
            break
        last, last_at = info.data_interval, info.run_after
    return found


def _effect(usual: list[_Run], runs: list[_Run]) -> str:
    """Return in words how the runs of a day differ from the usual ones; empty if they do not."""
    if len(runs) != len(usual):
        return f"{len(runs) or 'no'} {'run' if len(runs) == 1 else 'runs'} instead of {len(usual)}"
    effects = []
    for then, now in zip(usual, runs, strict=True):
        if then.wall.time() != now.wall.time():
            effects.append(f"runs at {now.wall:%H:%M} instead of {then.wall:%H:%M}")
        if then.length != now.length:
            effects.append(f"an interval of {_hours(now.length)} instead of {_hours(then.length)}")
        elif then.since_last and now.since_last and then.since_last != now.since_last:
            effects.append(f"runs {_hours(now.since_last)} after the run before, instead of {_hours(then.since_last)}")
    return "; ".join(effects)


def _hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:.6g} h"
