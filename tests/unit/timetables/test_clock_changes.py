"""Runs at changes of the clock, over the zones of the world."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asynsched.timetables import CronDataIntervalTimetable, CronTriggerTimetable, TimeRestriction
from asynsched.timetables.cron import CronSchedule
from asynsched.timetables.zones import instant_of

ZONES = sorted(available_timezones() - {"localtime"})
zones = st.sampled_from(ZONES)
days = st.datetimes(datetime(1975, 1, 1), datetime(2037, 1, 1)).map(lambda day: day.replace(tzinfo=UTC, microsecond=0))
minutes = st.sampled_from(["*", "*/5", "*/30", "15,45", "0", "59"]) | st.integers(0, 59).map(str)
hours = st.sampled_from(["*", "*/2", "1-3", "0,23", "2"]) | st.integers(0, 23).map(str)
dates = st.sampled_from(["* * *", "* * *", "1 * *", "* * SUN", "*/9 3,10 *", "L * *"])
expressions = st.builds("{} {} {}".format, minutes, hours, dates)


def runs(timetable, start, n, *, catchup=True):
    last, now = None, start
    for _ in range(n):
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(start, None, catchup), now=now
        )
        yield info
        last, now = info.data_interval, max(now, info.run_after)


@pytest.mark.parametrize("make", [CronTriggerTimetable, CronDataIntervalTimetable])
@pytest.mark.parametrize("catchup", [True, False], ids=["catchup", "no-catchup"])
@given(zone=zones, start=days, expression=expressions)
@example(zone="Australia/Lord_Howe", start=datetime(2025, 4, 5, 12, tzinfo=UTC), expression="0 * * * *")
@example(zone="Australia/Lord_Howe", start=datetime(2025, 10, 4, 12, tzinfo=UTC), expression="*/30 * * * *")
@example(zone="Europe/Berlin", start=datetime(2025, 3, 29, 19, tzinfo=UTC), expression="15,45 1-3 * * *")
@example(zone="Pacific/Apia", start=datetime(2011, 12, 29, 5, tzinfo=UTC), expression="0 9 * * *")
@settings(max_examples=150)
def test_runs_follow_one_another_without_a_repetition(make, catchup, zone, start, expression):
    found = list(runs(make(expression, timezone=zone), start, 12, catchup=catchup))
    for before, after in pairwise(found):
        assert before.logical_date < after.logical_date
        assert before.run_after <= after.run_after
    assert all(start <= info.data_interval.start <= info.data_interval.end == info.run_after for info in found)


@given(zone=zones, start=days, minute=st.integers(0, 59), hour=st.integers(0, 23))
@example(zone="Europe/Berlin", start=datetime(2025, 3, 1, tzinfo=UTC), minute=30, hour=2)
@example(zone="America/New_York", start=datetime(2025, 10, 20, tzinfo=UTC), minute=30, hour=1)
@example(zone="Pacific/Apia", start=datetime(2011, 12, 25, tzinfo=UTC), minute=0, hour=9)
@settings(max_examples=150)
def test_a_daily_run_is_made_once_a_day_whatever_the_clock_does(zone, start, minute, hour):
    n = 60
    found = [info.run_after for info in runs(CronTriggerTimetable(f"{minute} {hour} * * *", timezone=zone), start, n)]
    first = start.astimezone(ZoneInfo(zone)).replace(tzinfo=None, hour=hour, minute=minute, second=0)
    wall_times = [first + timedelta(days=day) for day in range(-2, n + 4)]
    wanted = sorted({instant for wall in wall_times if (instant := instant_of(wall, ZoneInfo(zone))) >= start})
    assert found == wanted[:n]


@given(zone=zones, start=days, minute=st.integers(0, 59))
@settings(max_examples=150)
def test_an_hourly_run_never_waits_longer_than_an_hour(zone, start, minute):
    found = [info.run_after for info in runs(CronTriggerTimetable(f"{minute} * * * *", timezone=zone), start, 100)]
    assert all(timedelta() < b - a <= timedelta(hours=1) for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("wall", "instant"),
    [
        ("2025-03-30T02:30", "2025-03-30T01:30"),  # skipped: an hour later by the clock
        ("2025-10-26T02:30", "2025-10-26T01:30"),  # shown twice: the second
        ("2025-10-26T03:00", "2025-10-26T02:00"),
        ("2025-07-01T12:00", "2025-07-01T10:00"),
    ],
)
def test_a_wall_clock_time_is_resolved_at_gaps_and_folds(wall, instant):
    assert instant_of(datetime.fromisoformat(wall), ZoneInfo("Europe/Berlin")).isoformat()[:16] == instant


def test_an_expression_with_years_ends_and_begins_with_them():
    schedule = CronSchedule("0 0 1 1 * 0 2030", "UTC")
    only = datetime(2030, 1, 1, tzinfo=UTC)
    assert schedule.next(datetime(2026, 1, 1, tzinfo=UTC)) == only
    assert schedule.previous(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert schedule.next(only) is None
    for catchup in (True, False):
        timetable = CronTriggerTimetable("0 0 1 1 * 0 2030", timezone="UTC")
        restriction = TimeRestriction(datetime(2026, 1, 1, tzinfo=UTC), None, catchup)
        info = timetable.next_dagrun_info(
            last_automated_data_interval=None, restriction=restriction, now=datetime(2026, 1, 1, tzinfo=UTC)
        )
        assert info.run_after == only
        assert (
            timetable.next_dagrun_info(
                last_automated_data_interval=info.data_interval, restriction=restriction, now=only
            )
            is None
        )
