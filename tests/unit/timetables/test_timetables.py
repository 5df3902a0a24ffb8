"""Timetables: valid and refused arguments, descriptions, and serialization."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from dateutil import tz
from dateutil.relativedelta import MO, relativedelta

from asynsched import timetables
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
    Timetable,
    decode,
    timetable_from_schedule,
)
from asynsched.timetables.zones import zone_name, zone_named

NOON = datetime(2025, 6, 10, 12, tzinfo=UTC)
MIDNIGHT = datetime(2025, 6, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMETABLES = [
    NullTimetable(),
    OnceTimetable(),
    ContinuousTimetable(),
    CronTriggerTimetable("@daily", timezone="Europe/Berlin", interval=HOUR, run_immediately=True),
    CronTriggerTimetable("0 6 * * *", timezone=timezone(timedelta(hours=5, minutes=30)), run_immediately=HOUR),
    MultipleCronTriggerTimetable("0 6 * * *", "@hourly", timezone="UTC", interval=relativedelta(months=1)),
    CronDataIntervalTimetable("*/5 * * * *", "America/New_York"),
    DeltaTriggerTimetable(relativedelta(months=1, day=1, hour=0), interval=timedelta(seconds=1.5)),
    DeltaTriggerTimetable(relativedelta(days=1, weekday=MO(2))),
    DeltaDataIntervalTimetable(timedelta(days=1, microseconds=1)),
    EventsTimetable([NOON, NOON + HOUR, NOON], restrict_to_events=True, description="matches"),
    EventsTimetable([]),
]


@pytest.mark.parametrize("timetable", TIMETABLES, ids=repr)
def test_a_timetable_comes_back_from_json_as_it_was(timetable):
    again = decode(json.loads(json.dumps(timetable.serialize())))
    assert type(again) is type(timetable)
    assert again == timetable
    assert hash(again) == hash(timetable)
    assert (again.summary, again.description) == (timetable.summary, timetable.description)
    restriction = TimeRestriction(NOON, None, catchup=True)
    one, other = (
        each.next_dagrun_info(last_automated_data_interval=None, restriction=restriction, now=NOON)
        for each in (timetable, again)
    )
    assert one == other


CRON = {"kind": "cron_trigger", "expression": "0 0 * * *", "timezone": "UTC"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "kind"),
        ({"kind": "lunar"}, "lunar"),
        ({"kind": ["once"]}, "kind"),
        ([], "object"),
        ({"kind": "cron_trigger", "timezone": "UTC"}, "expression"),
        (CRON | {"expression": 5}, "expression"),
        (CRON | {"expression": "* " * 1000}, "expression"),
        (CRON | {"expression": "61 * * * *"}, "'61 * * * *'"),
        (CRON | {"timezone": "Mars/Olympus"}, "'Mars/Olympus'"),
        (CRON | {"timezone": "../../etc/passwd"}, "passwd"),
        (CRON | {"timezone": "+99:99"}, "+HH:MM"),
        (CRON | {"interval": -1}, "interval"),
        (CRON | {"interval": {"months": 1, "fortnights": 2}}, "fortnights"),
        (CRON | {"extra": 1}, "extra"),
        ({"kind": "multiple_cron_trigger", "expressions": [], "timezone": "UTC"}, "cron expressions"),
        ({"kind": "delta_trigger", "delta": 0}, "positive"),
        ({"kind": "delta_trigger", "delta": 1e300}, "delta"),
        ({"kind": "delta_trigger", "delta": {"months": -1}}, "positive"),
        ({"kind": "delta_trigger", "delta": {"years": 99_999}}, "out of range"),
        ({"kind": "delta_trigger", "delta": {"days": 1e300}}, "delta"),
        ({"kind": "delta_trigger", "delta": {"month": 13}}, "month"),
        ({"kind": "delta_data_interval", "delta": {"weekday": [9, 1]}}, "weekday"),
        ({"kind": "events", "event_dates": ["2025-01-01T00:00:00"]}, "timezone"),
    ],
)
def test_what_is_no_timetable_is_refused_in_one_line(data, says):
    with pytest.raises(TimetableError) as caught:
        decode(data)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("0 0 31 2 *", "matches no date"),
        ("0 0 * *", "4 fields"),
        ("@fortnightly", "unknown preset"),
        ("", "'': it has 0 fields"),
        ("R R * * *", "random"),
        ("* " * 600, "characters"),
        (timedelta(0), "positive"),
        (timedelta(days=-1), "positive"),
        (relativedelta(months=1, days=-31), "positive"),
        (timedelta.max, "longer|out of range"),
        (5, "not int"),
        (["@daily"], "only assets"),
    ],
    ids=repr,
)
def test_a_schedule_that_is_none_is_refused_with_what_is_wrong(schedule, says):
    with pytest.raises(TimetableError, match=says) as caught:
        timetable_from_schedule(schedule, "UTC")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        (None, "null"),
        ("@once", "once"),
        ("@continuous", "continuous"),
        ("@yearly", "cron_trigger"),
        ("0 6 * * MON-FRI", "cron_trigger"),
        (timedelta(hours=6), "delta_trigger"),
        (relativedelta(months=1), "delta_trigger"),
        (CronDataIntervalTimetable("@daily", "UTC"), "cron_data_interval"),
    ],
    ids=repr,
)
def test_a_schedule_means_what_it_means_in_airflow(schedule, kind):
    timetable = timetable_from_schedule(schedule, "Asia/Tokyo")
    assert timetable.kind == kind
    if kind == "cron_trigger":
        assert timetable.serialize()["timezone"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("timetable", "start", "end"),
    [
        (CronTriggerTimetable("@daily", timezone="UTC", interval=HOUR), NOON - HOUR, NOON),
        (CronDataIntervalTimetable("0 0 * * *", "UTC"), MIDNIGHT - timedelta(days=1), MIDNIGHT),
        (CronDataIntervalTimetable("0 12 * * *", "UTC"), NOON - timedelta(days=1), NOON),
        (DeltaDataIntervalTimetable(HOUR), NOON - HOUR, NOON),
        (NullTimetable(), NOON, NOON),
        (MultipleCronTriggerTimetable("@daily", "@hourly", timezone="UTC"), NOON, NOON),
        (EventsTimetable([NOON - HOUR, NOON + HOUR]), NOON, NOON),
        (EventsTimetable([NOON - HOUR, NOON + HOUR], restrict_to_events=True), NOON - HOUR, NOON - HOUR),
        (EventsTimetable([NOON + HOUR], restrict_to_events=True), NOON + HOUR, NOON + HOUR),
    ],
    ids=repr,
)  # fmt: skip
def test_a_triggered_run_gets_the_data_interval_that_airflow_gives_it(timetable, start, end):
    assert timetable.infer_manual_data_interval(run_after=NOON) == DataInterval(start, end)


@pytest.mark.parametrize(
    ("delta", "start"),
    [
        (timedelta(hours=7), datetime(2025, 6, 9, 23, tzinfo=UTC)),
        (relativedelta(hours=7), datetime(2025, 6, 9, 23, tzinfo=UTC)),
        (relativedelta(months=1), datetime(2025, 5, 10, 12, 34, 56, tzinfo=UTC)),
        (relativedelta(years=1, days=-1), datetime(2024, 6, 11, 12, 34, 56, tzinfo=UTC)),
    ],
    ids=repr,
)
def test_without_a_start_date_only_fixed_lengths_are_counted_from_1970(delta, start):
    first = DeltaDataIntervalTimetable(delta).next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(None, None, catchup=False),
        now=datetime(2025, 6, 10, 12, 34, 56, tzinfo=UTC),
    )
    assert first.data_interval.start == start


def test_a_delta_that_stops_leading_forward_is_said():
    timetable = DeltaTriggerTimetable(relativedelta(months=1, days=-30))
    february = datetime(2025, 2, 1, tzinfo=UTC)
    with pytest.raises(TimetableError, match="does not lead past 2025-02-01"):
        timetable.next_dagrun_info(
            last_automated_data_interval=DataInterval(february, february),
            restriction=TimeRestriction(None, None, catchup=True),
            now=NOON,
        )


def test_events_must_be_aware_moments():
    with pytest.raises(TimetableError, match="no timezone"):
        EventsTimetable([datetime(2025, 1, 1)])
    with pytest.raises(TimetableError, match="not str"):
        EventsTimetable(["2025-01-01"])


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "+05:30", "-03:00"])
def test_a_zone_keeps_its_name(name):
    assert zone_name(zone_named(name)) == name


def test_zones_of_dateutil_have_the_name_of_their_file_and_others_need_one():
    assert zone_name(tz.gettz("Europe/Berlin")) == "Europe/Berlin"
    assert zone_name(tz.tzutc()) == "UTC"
    assert zone_name(tz.tzoffset(None, 5400)) == "+01:30"
    with pytest.raises(TimetableError, match=r"has no IANA name.*ZoneInfo"):
        zone_name(tz.tzstr("EST5EDT"))


def test_a_year_may_be_far_away_but_must_have_the_date():
    timetable = CronTriggerTimetable("0 0 1 1 * 0 2099", timezone="UTC")
    found = timetable.next_run(None, TimeRestriction(NOON, None, True), NOON)
    assert found.run_after == datetime(2099, 1, 1, tzinfo=UTC)
    with pytest.raises(TimetableError, match="matches no date that exists"):
        CronTriggerTimetable("0 0 29 2 * 0 2027", timezone="UTC")


def test_the_names_load_neither_croniter_nor_dateutil_nor_an_event_loop():
    code = (
        "import sys; from asynsched.timetables import *;"
        "from asynsched.timetables import timetable_from_schedule as make;"
        "make('@once', 'UTC'); make(None, 'UTC');"
        "print(*{'croniter', 'dateutil', 'cron_descriptor', 'asyncio', 'sqlalchemy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_can_be_imported():
    assert [name for name in timetables.__all__ if getattr(timetables, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'LunarTimetable'"):
        _ = timetables.LunarTimetable


def test_every_timetable_is_a_value_of_the_contract():
    assert all(isinstance(timetable, Timetable) for timetable in TIMETABLES)
    assert len({*TIMETABLES}) == len(TIMETABLES)
    assert NullTimetable() != "null"
