"""At the ends of the calendar, which has the years 1 to 9999, a timetable answers, or says that it leads out of it."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from dateutil.relativedelta import relativedelta

from asynsched.errors import TimetableError
from asynsched.timetables import (
    ContinuousTimetable,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DataInterval,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
    NullTimetable,
    OnceTimetable,
    TimeRestriction,
)

FIRST, LAST = (moment.replace(tzinfo=UTC) for moment in (datetime.min, datetime.max))
HOUR = timedelta(hours=1)
TODAY = datetime(2026, 1, 1, tzinfo=UTC)
LAST_MINUTE = LAST.replace(second=0, microsecond=0)
MOMENTS = [FIRST, FIRST + timedelta.resolution, FIRST + HOUR, TODAY, LAST - 24 * HOUR, LAST_MINUTE]
ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "+14:00"]
EXPRESSIONS = ["0 * * * *", "59 23 * * *", "0 0 29 2 *"]
POLICIES = [{}, {"gap": "skip", "fold": "both"}]
DELTAS = [timedelta(days=60), timedelta(days=366_000), relativedelta(years=5), relativedelta(days=90)]


def timetables():
    yield from (NullTimetable(), OnceTimetable(), ContinuousTimetable())
    yield from (EventsTimetable([FIRST, LAST], restrict_to_events=only) for only in (True, False))
    for delta in DELTAS:
        yield from (DeltaDataIntervalTimetable(delta), DeltaTriggerTimetable(delta, interval=delta))
    for zone in ZONES:
        for cron in EXPRESSIONS:
            for policy in POLICIES:
                yield CronDataIntervalTimetable(cron, zone, **policy)
                yield CronTriggerTimetable(cron, timezone=zone, run_immediately=24 * HOUR, **policy)
                yield MultipleCronTriggerTimetable(cron, "5 5 * * *", timezone=zone, interval=HOUR, **policy)


def name_of(timetable):
    return " ".join(map(str, timetable.serialize().values()))


def answer(question, *given, **named):
    """Return a timetable's answer; None if it raises that it leads out of the calendar."""
    try:
        return question(*given, **named)
    except TimetableError as exc:
        said = str(exc)
    assert "leads out of the calendar" in said
    return None


@pytest.mark.parametrize("timetable", list(timetables()), ids=name_of)
def test_a_timetable_answers_or_fails_clearly_at_the_calendars_ends(timetable):
    for moment in MOMENTS:
        interval = answer(timetable.infer_manual_data_interval, run_after=moment)
        assert interval is None or interval.start <= interval.end
        for catchup in (True, False, "latest"):
            for last in (None, DataInterval(moment, moment)):
                for now in (TODAY, LAST_MINUTE):
                    info = answer(timetable.next_run, last, TimeRestriction(moment, None, catchup), now)
                    assert info is None or info.data_interval.start <= info.data_interval.end <= info.run_after


@pytest.mark.parametrize("timetable", list(timetables()), ids=name_of)
@pytest.mark.parametrize("start", [FIRST, LAST_MINUTE - 24 * HOUR], ids=["first", "last"])
def test_the_runs_of_a_span_at_an_end_of_the_calendar_follow_one_another(timetable, start):
    found, last = [], None
    span = TimeRestriction(start, min(start, LAST - 48 * HOUR) + 48 * HOUR, catchup=True)
    while len(found) < 60 and (info := answer(timetable.next_run, last, span, LAST_MINUTE)) is not None:
        found.append(info.data_interval)
        last = found[-1]
    assert all(before <= after for before, after in pairwise(found))


def test_the_last_hour_of_the_calendar_is_the_last_run_of_a_schedule():
    timetable = CronDataIntervalTimetable("0 * * * *", "UTC")
    assert timetable.infer_manual_data_interval(run_after=LAST_MINUTE).end == LAST_MINUTE.replace(minute=0)
    last = DataInterval(LAST_MINUTE - 2 * HOUR, LAST_MINUTE.replace(minute=0))
    assert timetable.next_run(last, TimeRestriction(None, None, True), TODAY) is None


def test_an_event_that_utc_does_not_have_is_named():
    with pytest.raises(TimetableError, match=r"9999-12-31T23:00:00-05:00 leads out of the calendar"):
        EventsTimetable([datetime(9999, 12, 31, 23, tzinfo=timezone(-5 * HOUR))])
