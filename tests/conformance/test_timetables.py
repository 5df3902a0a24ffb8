"""Timetables compute, run by run, the runs that Airflow computed."""

import json
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dateutil.relativedelta import relativedelta

from asynsched import DAG
from asynsched.errors import DagError, TimetableError
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
    decode,
    timetable_from_schedule,
)

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "timetables.json").read_text())["cases"]
PRESETS = json.loads((DATA / "cron_presets.json").read_text())["cases"]


def delta(form):
    if set(form) == {"seconds"}:
        return timedelta(**form)
    return relativedelta(**form)


def instant(text, zone="UTC"):
    if text is None:
        return None
    value = datetime.fromisoformat(text)
    return (value if value.tzinfo else value.replace(tzinfo=ZoneInfo(zone))).astimezone(UTC)


def arguments(case):
    run_immediately = case.get("run_immediately", False)
    return {
        "timezone": case["timezone"],
        "interval": delta(case.get("interval", {"seconds": 0})),
        "run_immediately": delta(run_immediately) if isinstance(run_immediately, dict) else run_immediately,
    }


def of_schedule(case):
    # A DAG has the time zone of its start date.
    zone = case["timezone"] if case.get("start_date") else "UTC"
    schedule = case["schedule"]
    timetable = timetable_from_schedule(delta(schedule) if isinstance(schedule, dict) else schedule, zone)
    assert type(timetable).__name__ == case["resolves_to"]
    return timetable


MAKERS = {
    "cron_trigger": lambda case: CronTriggerTimetable(case["expression"], **arguments(case)),
    "multiple_cron_trigger": lambda case: MultipleCronTriggerTimetable(*case["expressions"], **arguments(case)),
    "cron_data_interval": lambda case: CronDataIntervalTimetable(case["expression"], case["timezone"]),
    "delta_trigger": lambda case: DeltaTriggerTimetable(
        delta(case["delta"]), interval=delta(case.get("interval", {"seconds": 0}))
    ),
    "delta_data_interval": lambda case: DeltaDataIntervalTimetable(delta(case["delta"])),
    "events": lambda case: EventsTimetable([instant(event) for event in case["event_dates"]]),
    "once": lambda case: OnceTimetable(),
    "continuous": lambda case: ContinuousTimetable(),
    "null": lambda case: NullTimetable(),
    "schedule": of_schedule,
}


def observed_runs(case):
    """Compute as many runs as Airflow did, with the same clock."""
    timetable = decode(json.loads(json.dumps(MAKERS[case["kind"]](case).serialize())))
    last = case.get("last_run")
    interval = last and DataInterval(instant(last["data_interval_start"]), instant(last["data_interval_end"]))
    restriction = TimeRestriction(
        instant(case.get("start_date"), case.get("timezone") or "UTC"),
        instant(case.get("end_date")),
        case.get("catchup", False),
    )
    now, step = instant(case["now"]), timedelta(seconds=case.get("step_seconds", 1))
    asked = case["n"]
    while asked:
        info = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=restriction, now=now)
        yield now, info
        if info is None:
            return
        interval, asked = info.data_interval, asked - 1
        if case["advance"] == "follow":
            now = max(now, info.run_after) + step


def disagreement(case):
    """Return how asynsched's runs differ from Airflow's; None if they agree."""
    got = list(observed_runs(case))
    for expected, (now, info) in zip(case["runs"], got, strict=False):
        answer = info and (info.logical_date, *info.data_interval, info.run_after)
        wanted = [instant(expected[key]) for key in ("logical_date", "data_interval_start", "data_interval_end")]
        wanted.append(instant(expected["run_after"]))
        if now != instant(expected["now"]) or answer is None or list(answer) != wanted:
            return f"{case['id']}: at {now} expected {expected}, got {info}"
    if case.get("exhausted") and (len(got) != len(case["runs"]) + 1 or got[-1][1] is not None):
        return f"{case['id']}: expected no further run, got {got[len(case['runs']) :]}"
    if len(got) < len(case["runs"]):
        return f"{case['id']}: {len(got)} answers of {len(case['runs'])}"
    return None


def kind_and_family(case):
    return case["kind"], case["family"]


ANSWERED = [case for case in CASES if "error" not in case]
GROUPS = {key: list(cases) for key, cases in groupby(sorted(ANSWERED, key=kind_and_family), key=kind_and_family)}


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_runs_agree_with_airflow(group):
    found = [difference for case in GROUPS[group] if (difference := disagreement(case))]
    assert not found, f"{len(found)} of {len(GROUPS[group])} cases disagree:\n" + "\n".join(found[:5])


REFUSED = [case for case in CASES if case.get("error") == "AirflowTimetableInvalid"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["expression"] or "empty")
def test_a_cron_expression_that_airflow_refuses_is_refused_by_name(case):
    with pytest.raises(TimetableError) as caught:
        MAKERS[case["kind"]](case)
    assert repr(case["expression"]) in str(caught.value)
    assert "\n" not in str(caught.value)


STUCK = [
    case
    for case in CASES
    if str(case.get("error_message")).endswith("one retry") or case.get("error") == "AssertionError"
]


@pytest.mark.parametrize("case", STUCK, ids=lambda case: case["id"])
def test_runs_continue_at_clock_changes_where_airflow_fails(case):
    assert disagreement(case) is None, "the runs before the failure agree"
    dates = [info.logical_date for _, info in observed_runs(case)]
    assert len(dates) == case["n"]
    assert dates == sorted(set(dates))
    assert dates[-1] - dates[0] < timedelta(hours=1.5) * case["n"]


CATCHUP_WITHOUT_START = [case for case in CASES if "start_date is required" in str(case.get("error_message"))]


@pytest.mark.parametrize("case", CATCHUP_WITHOUT_START, ids=lambda case: case["id"])
def test_catchup_without_a_start_date_is_refused(case):
    schedule = case["schedule"]
    with pytest.raises(DagError, match="start_date"):
        DAG("d", schedule=delta(schedule) if isinstance(schedule, dict) else schedule, catchup=True)


def test_every_observed_case_is_tested():
    assert len(ANSWERED) + len(REFUSED) + len(STUCK) + len(CATCHUP_WITHOUT_START) == len(CASES) == 1283


@pytest.mark.parametrize("case", PRESETS, ids=lambda case: case["id"])
def test_presets_and_descriptions_agree_with_airflow(case):
    timetable = CronTriggerTimetable(case.get("preset") or case["expression"], timezone="UTC")
    if case["kind"] == "preset":
        assert timetable.summary == case["cron"]
    else:
        assert (timetable.summary, timetable.description) == (case["summary"], case["description"])
