"""The effect of clock changes on schedules, by day; and none where nothing is different."""

from datetime import UTC, date, datetime, timedelta

import pytest

from asynsched import (
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
)
from asynsched.serialization.schema import SerializedDag
from asynsched.simulation.clock_changes import clock_changes

SPRING = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 15, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 15, tzinfo=UTC)
BERLIN = "Europe/Berlin"
HOURLY = CronTriggerTimetable("0 * * * *", timezone=BERLIN)


def told(timetable, span) -> list[tuple[date, int, int, str]]:
    dag = SerializedDag("d", timetable.serialize())
    return [(c.date, c.n_runs, c.usual_runs, c.effect) for c in clock_changes([dag], *span)]


@pytest.mark.parametrize(
    ("timetable", "span", "expected"),
    [
        (HOURLY, SPRING, [(date(2026, 3, 29), 23, 24, "23 runs instead of 24")]),
        (HOURLY, AUTUMN, [(date(2026, 10, 25), 25, 24, "25 runs instead of 24")]),
        (
            CronTriggerTimetable("30 2 * * *", timezone=BERLIN), SPRING,
            [
                (date(2026, 3, 29), 1, 1, "runs at 03:30 instead of 02:30"),
                (date(2026, 3, 30), 1, 1, "runs 23 h after the run before, instead of 24 h"),
            ],
        ),
        (
            CronDataIntervalTimetable("@daily", timezone=BERLIN), AUTUMN,
            [(date(2026, 10, 26), 1, 1, "an interval of 25 h instead of 24 h")],
        ),
        (
            CronDataIntervalTimetable("0 0 * * 0", timezone="America/New_York"), SPRING,
            [(date(2026, 3, 15), 1, 1, "an interval of 167 h instead of 168 h")],
        ),
        (
            MultipleCronTriggerTimetable("0 9 * * *", "15 2 * * *", timezone=BERLIN), SPRING,
            [
                (
                    date(2026, 3, 29), 2, 2,
                    "runs at 03:15 instead of 02:15; runs 5.75 h after the run before, instead of 6.75 h",
                ),
            ],
        ),
        (CronTriggerTimetable("0 0 1 * *", timezone=BERLIN), SPRING, []),
        (CronTriggerTimetable("0 * * * *", timezone="UTC"), SPRING, []),
        (CronTriggerTimetable("0 * * * *", timezone="Asia/Tokyo"), SPRING, []),
        (DeltaTriggerTimetable(timedelta(days=1)), SPRING, []),
    ],
)  # fmt: skip
def test_the_days_that_a_change_of_the_clock_makes_different_are_told(timetable, span, expected):
    assert told(timetable, span) == expected


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC), []),
        (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, 1, tzinfo=UTC), [29]),
        (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 3, 30, 1, tzinfo=UTC), [29, 30]),
        (datetime(2026, 3, 29, 22, tzinfo=UTC), datetime(2026, 3, 30, 1, tzinfo=UTC), [30]),
        (datetime(2026, 3, 30, 22, tzinfo=UTC), datetime(2026, 4, 2, tzinfo=UTC), []),
    ],
)
def test_a_span_tells_of_its_own_days_and_of_no_change_after_it(start, end, days):
    by_night = CronTriggerTimetable("30 2 * * *", timezone=BERLIN)
    assert [day.day for day, *_ in told(by_night, (start, end))] == days


def test_a_change_outside_the_span_is_not_told_and_one_at_midnight_is():
    timetable = CronTriggerTimetable("0 * * * *", timezone="Africa/Cairo")
    before = datetime(2026, 4, 20, tzinfo=UTC)
    assert told(timetable, (before, datetime(2026, 4, 23, tzinfo=UTC))) == []
    assert told(timetable, (before, datetime(2026, 4, 30, tzinfo=UTC))) == [
        (date(2026, 4, 24), 23, 24, "23 runs instead of 24")
    ]
