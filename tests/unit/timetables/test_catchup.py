"""Which of the missed runs are made up for."""

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import given, settings
from hypothesis import strategies as st

from asynsched import DAG, EmptyOperator
from asynsched.errors import TimetableError
from asynsched.scheduling.creation.scheduled_runs import runs_after
from asynsched.serialization.decode import restriction
from asynsched.serialization.encode import serialize_dag
from asynsched.timetables import (
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    TimeRestriction,
    decode,
)

START = datetime(2026, 1, 31, 3, tzinfo=UTC)
TIMETABLES = [
    CronTriggerTimetable("15 */6 * * *", timezone="Europe/Berlin"),
    CronTriggerTimetable("0 9 * * *", timezone="Asia/Tokyo", interval=timedelta(days=1)),
    CronDataIntervalTimetable("15 */6 * * *", timezone="Europe/Berlin"),
    DeltaTriggerTimetable(timedelta(hours=7)),
    DeltaTriggerTimetable(relativedelta(hours=7, microseconds=3)),
    DeltaTriggerTimetable(relativedelta(months=1)),
    DeltaDataIntervalTimetable(timedelta(hours=7)),
    DeltaDataIntervalTimetable(relativedelta(months=1)),
    EventsTimetable([START + timedelta(days=day) for day in (1, 2, 3, 50, 200)]),
]


def runs(timetable, bounds, now, last=None):
    while (info := timetable.next_run(last, bounds, now)) is not None:
        yield info
        last = info.data_interval


@given(
    timetable=st.sampled_from(TIMETABLES),
    hours=st.integers(0, 24 * 90),
    end_after=st.none() | st.integers(1, 24 * 90),
    n_done=st.integers(0, 3),
)
@settings(max_examples=300)
def test_latest_makes_only_the_newest_of_the_missed_runs(timetable, hours, end_after, n_done):
    now = START + timedelta(hours=hours)
    end = None if end_after is None else START + timedelta(hours=end_after)
    everything = runs(timetable, TimeRestriction(START, end, catchup=True), now)
    last = None
    for info, _ in zip(everything, range(n_done), strict=False):
        last = info.data_interval
    missed = list(
        takewhile(lambda info: info.run_after <= now, runs(timetable, TimeRestriction(START, end, True), now, last))
    )
    answer = timetable.next_run(last, TimeRestriction(START, end, "latest"), now)
    assert answer == (missed[-1] if missed else timetable.next_run(last, TimeRestriction(START, end, True), now))


def test_the_latest_missed_run_is_found_within_a_skipped_hour():
    timetable = CronTriggerTimetable("30 2 * * *", timezone="Europe/Berlin")
    last = DataInterval.exact(datetime(2026, 3, 26, 1, 30, tzinfo=UTC))
    now = datetime(2026, 3, 29, 1, 10, tzinfo=UTC)  # 03:10 there; 02:30 is skipped, and runs at 03:30
    coming = timetable.next_run(last, TimeRestriction(None, None, "latest"), now)
    assert coming.run_after == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(("kind", "catchup"), [(DeltaDataIntervalTimetable, False), (DeltaTriggerTimetable, "latest")])
def test_seconds_by_the_calendar_are_not_counted_for_years(kind, catchup):
    timetable = kind(relativedelta(seconds=1, leapdays=1))
    with pytest.raises(TimetableError, match="give a later start_date"):
        timetable.next_run(None, TimeRestriction(datetime(2001, 1, 1, tzinfo=UTC), None, catchup), START)
    last = DataInterval(START - timedelta(seconds=9), START - timedelta(seconds=8))
    coming = timetable.next_run(last, TimeRestriction(datetime(2001, 1, 1, tzinfo=UTC), None, catchup), START)
    assert START - timedelta(seconds=2) <= coming.run_after <= START + timedelta(seconds=1), "it goes on once it runs"


def test_a_dag_without_a_start_date_may_catch_up_with_the_latest_run():
    dag = serialize_dag(DAG("d", schedule="@hourly", catchup="latest"))
    last = DataInterval(START - timedelta(days=9), START)
    coming = next(runs_after(dag, decode(dag.timetable), last, START + timedelta(minutes=30)))
    assert coming.run_after == (START + timedelta(hours=1))


@pytest.mark.parametrize("catchup", [True, False, "latest"])
def test_a_schedule_whose_years_are_to_come_waits_for_them(catchup):
    timetable = CronTriggerTimetable("0 0 1 1 * 0 2030", timezone="UTC")
    found = timetable.next_run(None, TimeRestriction(None, None, catchup), START)
    assert found.run_after == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dag_dates", "task_dates", "bounds"),
    [
        ((None, None), [(3, 9), (1, 7)], (1, 9)),
        ((None, None), [(3, 9), (1, None)], (1, None)),  # a task without an end goes on
        ((None, None), [(None, None)], (None, None)),
        ((2, 8), [(3, 9), (1, 7)], (2, 8)),
        ((2, None), [(None, 5)], (2, 5)),
    ],
)
def test_the_dates_of_tasks_bound_the_schedule(dag_dates, task_dates, bounds):
    def day(number):
        return None if number is None else datetime(2026, 1, number, tzinfo=UTC)

    with DAG("d", schedule="@daily", start_date=day(dag_dates[0]), end_date=day(dag_dates[1])) as dag:
        for number, (start, end) in enumerate(task_dates):
            EmptyOperator(task_id=f"t{number}", start_date=day(start), end_date=day(end))
    found = restriction(serialize_dag(dag))
    assert (found.earliest, found.latest) == (day(bounds[0]), day(bounds[1]))
