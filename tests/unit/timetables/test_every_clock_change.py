"""Schedules go through every change of every clock in order, without a repetition, without a missing day."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import cycle, islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from asynsched.errors import TimetableError
from asynsched.timetables import CronDataIntervalTimetable, CronTriggerTimetable, TimeRestriction, decode
from asynsched.timetables.cron import CronSchedule
from tests.support.clock_changes import POLICIES, changes, daily_disagreement, zone_names


@cache
def distinct_changes():
    """Return each change once, with a zone that has it: zones that share it do the same around it."""
    found = {}
    for zone in zone_names():
        for change in changes(zone):
            found.setdefault(change, zone)
    return found


# In parts, so that none takes long on a busy machine.
@pytest.mark.parametrize("part", range(6))
def test_a_daily_schedule_goes_through_every_change_of_every_zone(part):
    wrong, n_walks = [], 0
    cases = islice(zip(distinct_changes().items(), cycle(POLICIES[1:]), strict=False), part, None, 6)
    for (change, zone), policy in cases:
        for gap, fold in (POLICIES[0], policy):
            n_walks += 1
            wrong.append(daily_disagreement(zone, change, gap, fold))
    assert n_walks > 1000
    assert [found for found in wrong if found] == []


def test_every_policy_goes_through_every_shape_of_a_change():
    shapes = {}
    for change, zone in distinct_changes().items():
        shapes.setdefault((change.before, change.after, (change.at + change.before).time()), (zone, change))
    wrong = [
        daily_disagreement(zone, change, gap, fold) for zone, change in shapes.values() for gap, fold in POLICIES[1:]
    ]
    assert len(wrong) > 6 * 100
    assert [found for found in wrong if found] == []


@pytest.mark.parametrize("policy", [{}, {"gap": "skip", "fold": "both"}], ids=["as Airflow", "in real time"])
def test_an_hourly_expression_runs_in_real_time_through_every_change(policy):
    shapes = {}
    for change, zone in distinct_changes().items():
        shapes.setdefault((change.before, change.after), (zone, change))
    for zone, change in shapes.values():
        schedule = CronSchedule("*/15 * * * *", zone, policy.get("gap"), policy.get("fold"))
        found = [change.at - timedelta(hours=2)]
        while found[-1] < change.at + timedelta(hours=2):
            found.append(schedule.next(found[-1]))
        assert {b - a for a, b in pairwise(found[1:])} == {timedelta(minutes=15)}, (zone, change)


def spring_and_autumn(timetable):
    """Return the times of day, in Berlin, at which a timetable runs on the two days of a clock change of 2026."""
    days = {}
    for day in (datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)):
        last, days[day] = None, []
        bounds = TimeRestriction(day, day + timedelta(days=1), catchup=True)
        while (info := timetable.next_run(last, bounds, day)) is not None and info.run_after < bounds.latest:
            last = info.data_interval
            days[day].append(info.run_after.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M%z")[:-2])
    return list(days.values())


@pytest.mark.parametrize(
    ("expression", "policy", "spring", "autumn"),
    [
        ("30 2 * * *", {}, ["03:30+02"], ["02:30+01"]),
        ("30 2 * * *", {"gap": "skip"}, [], ["02:30+01"]),
        ("30 2 * * *", {"fold": "first"}, ["03:30+02"], ["02:30+02"]),
        ("30 2 * * *", {"fold": "both"}, ["03:30+02"], ["02:30+02", "02:30+01"]),
        ("0,30 2,3 * * *", {"fold": "both"}, ["03:00+02", "03:30+02"],
         ["02:00+02", "02:30+02", "02:00+01", "02:30+01", "03:00+01", "03:30+01"]),
        ("0 2,3 * * *", {"gap": "skip", "fold": "first"}, ["03:00+02"], ["02:00+02", "03:00+01"]),
    ],
)  # fmt: skip
def test_a_timetable_keeps_its_policy(expression, policy, spring, autumn):
    timetable = CronTriggerTimetable(expression, timezone="Europe/Berlin", **policy)
    again = decode(timetable.serialize())
    assert again == timetable
    assert spring_and_autumn(again) == [spring, autumn]


def test_data_intervals_end_where_the_policy_says():
    timetable = CronDataIntervalTimetable("30 2 * * *", "Europe/Berlin", fold="both")
    saturday, now = datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC)
    lengths, last = [], None
    while (info := timetable.next_run(last, TimeRestriction(saturday, None, catchup=True), now)).run_after < now:
        last = info.data_interval
        lengths.append(last.end - last.start)
    assert lengths == [timedelta(hours=24), timedelta(hours=1), timedelta(hours=24)]
    assert decode(timetable.serialize()) == timetable


def test_a_policy_that_there_is_not_is_named():
    with pytest.raises(TimetableError, match=r"fold must be one of first, last, both, not 'second'"):
        CronTriggerTimetable("@daily", timezone="UTC", fold="second")
