"""Operators and sensors of the standard provider, alone: branches by time, sensors of the week and of commands."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from asynsched import (
    DAG,
    Asset,
    AsynschedFailException,
    BashSensor,
    BranchDateTimeOperator,
    BranchDayOfWeekOperator,
    DagError,
    DayOfWeekSensor,
    EmptyOperator,
    ExternalPythonOperator,
    ExternalTaskMarker,
    ExternalTaskSensor,
    LatestOnlyOperator,
    PythonVirtualenvOperator,
    TriggerDagRunOperator,
    WeekDay,
)
from asynsched.authoring.running.execution import execute
from asynsched.authoring.running.try_context import build_context
from asynsched.protocol.messages import RunContext, TaskInstanceFacts
from tests.unit.authoring.one_task import run
from tests.unit.authoring.standard import NOON, outcome

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture
def set_now(monkeypatch):
    """Return a function that sets the present moment for operators and sensors."""

    def set_now(moment):
        for module in ("operators.branch", "sensors.standard"):
            monkeypatch.setattr(f"asynsched.authoring.{module}.utcnow", lambda: moment)

    return set_now


def follows(make, zone="UTC", run_type="manual", schedule=None, date=NOON, *, is_dated=True, **arguments):
    """Return which of the tasks `yes` and `no` are followed by a branch, in a run of this date."""
    with DAG("d", start_date=dt.datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)), schedule=schedule) as dag:
        branch = make(task_id="branch", **arguments)
        branch >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
    interval = dag.timetable.infer_manual_data_interval(run_after=date)
    dates = (interval.start, interval.start, interval.end) if is_dated else ()
    run = RunContext("d", "r", run_type, date, *dates)
    return execute(branch, build_context(branch, run, TaskInstanceFacts())).follow


FOLLOW = {"follow_task_ids_if_true": "yes", "follow_task_ids_if_false": ["no"]}
LATE = NOON + dt.timedelta(hours=11, minutes=30)


@pytest.mark.parametrize(
    ("now", "week_day", "options", "expected"),
    [
        (NOON, "Monday", {}, "yes"),
        (NOON, {WeekDay.SATURDAY, "sunday"}, {}, "no"),
        (NOON + DAY, WeekDay.MONDAY, {"use_task_logical_date": True}, "yes"),
        (NOON + DAY, WeekDay.MONDAY, {"use_task_logical_date": True, "is_dated": False}, "yes"),
        (LATE, ["TUESDAY"], {}, "no"),
        (LATE, ["TUESDAY"], {"zone": "Europe/Berlin"}, "yes"),
    ],
)
def test_a_branch_by_the_day_of_the_week(set_now, now, week_day, options, expected):
    set_now(now)
    assert follows(BranchDayOfWeekOperator, week_day=week_day, **FOLLOW, **options) == (expected,)


@pytest.mark.parametrize(
    ("lower", "upper", "options", "expected"),
    [
        (dt.time(11), dt.time(13), {}, "yes"),
        (dt.time(11), dt.time(12), {"zone": "Europe/Berlin"}, "no"),
        (dt.time(12, 30), None, {"zone": "Europe/Berlin"}, "yes"),
        (dt.time(11), dt.time(3), {}, "yes"),
        (None, NOON - HOUR, {}, "no"),
        (NOON + HOUR, None, {}, "no"),
        (dt.datetime(2026, 1, 1), dt.datetime(2026, 2, 1), {}, "yes"),
        (NOON - DAY, NOON - HOUR, {"use_task_logical_date": True, "date": NOON - 2 * HOUR}, "yes"),
    ],
)
def test_a_branch_by_the_time(set_now, lower, upper, options, expected):
    set_now(NOON)
    found = follows(BranchDateTimeOperator, target_lower=lower, target_upper=upper, **FOLLOW, **options)
    assert found == (expected,)


@pytest.mark.parametrize(
    ("run_type", "schedule", "age", "is_latest"),
    [
        ("scheduled", "@daily", dt.timedelta(hours=3), True),
        ("scheduled", "@daily", dt.timedelta(days=1, hours=3), False),
        ("scheduled", dt.timedelta(hours=1), dt.timedelta(minutes=30), True),
        ("scheduled", dt.timedelta(hours=1), dt.timedelta(hours=3), False),
        ("backfill", "@daily", dt.timedelta(days=9), False),
        ("manual", "@daily", dt.timedelta(days=9), True),
        ("operator_triggered", "@daily", dt.timedelta(days=9), False),
        ("asset_triggered", "@daily", dt.timedelta(days=9), False),
        ("asset_triggered", [Asset("rows")], dt.timedelta(days=9), True),
        ("scheduled", "@once", dt.timedelta(days=9), True),
    ],
)
def test_latest_only_skips_in_earlier_runs_of_the_schedule(set_now, run_type, schedule, age, is_latest):
    midnight = NOON.replace(hour=0)
    set_now(midnight + age)
    found = follows(LatestOnlyOperator, schedule=schedule, run_type=run_type, date=midnight)
    assert found == (("no", "yes") if is_latest else ())


def test_a_sensor_of_the_day_of_the_week(set_now):
    set_now(NOON)
    assert outcome(DayOfWeekSensor, week_day={"monday"}).state == "success"
    assert outcome(DayOfWeekSensor, week_day=WeekDay.SUNDAY, timeout=0, poke_interval=0).state == "failed"
    set_now(NOON + DAY)
    assert outcome(DayOfWeekSensor, week_day="MONDAY", use_task_logical_date=True).state == "success"
    with DAG("d"):
        undated = DayOfWeekSensor(task_id="t", week_day="WEDNESDAY", use_task_logical_date=True)
    run(undated, logical_date=None)


def test_the_days_of_the_week_have_names_and_numbers():
    assert [(day.name, day.value) for day in WeekDay][::6] == [("MONDAY", 1), ("SUNDAY", 7)]
    assert WeekDay["MONDAY"] is WeekDay(1) is WeekDay.get_weekday_number("monday")
    assert WeekDay.validate_week_day(["monday", WeekDay.FRIDAY]) == {1, 5}
    for wrong in ("someday", 3, {"Monday", "Funday"}):
        with pytest.raises(DagError, match="week_day"):
            WeekDay.validate_week_day(wrong)
    with pytest.raises(ValueError, match="not a valid WeekDay"):
        WeekDay(0)


def test_a_bash_sensor_waits_until_its_command_succeeds(tmp_path):
    mark = tmp_path / "mark"
    again = f"[ -e {mark} ] || {{ touch {mark}; exit 7; }}"
    assert outcome(BashSensor, bash_command=again, poke_interval=0.01).state == "success"
    mark.unlink()
    assert outcome(BashSensor, bash_command=again, retry_exit_code=7, poke_interval=0.01).state == "success"
    ended = outcome(BashSensor, bash_command="exit 3", retry_exit_code=7, retries=2)
    assert (ended.state, ended.try_number) == ("failed", 1)
    assert isinstance(ended.exception, AsynschedFailException)
    assert outcome(BashSensor, bash_command="exit $CODE", env={"CODE": "0"}).state == "success"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (BranchDateTimeOperator, {**FOLLOW, "target_lower": None, "target_upper": None}, "must not both be None"),
        (BranchDayOfWeekOperator, {**FOLLOW, "week_day": "Funday"}, "'Funday' is unknown"),
        (ExternalTaskSensor, {"external_dag_id": "x", "external_task_id": "a", "external_task_ids": ["b"]}, "one of"),
        (ExternalTaskSensor, {"external_dag_id": "x", "allowed_states": ["skipped"]}, "'skipped' is not a state"),
        (ExternalTaskSensor, {"external_dag_id": "x", "failed_states": ["success"]}, "contain a state twice"),
        (
            ExternalTaskSensor,
            {"external_dag_id": "x", "execution_delta": DAY, "execution_date_fn": print},
            "cannot be combined",
        ),
        (ExternalTaskMarker, {"external_dag_id": "x", "external_task_id": "y", "recursion_depth": 0}, "at least 1"),
        (TriggerDagRunOperator, {"trigger_dag_id": "x", "allowed_states": ["skipped"]}, "'skipped' is not a valid"),
        (TriggerDagRunOperator, {"trigger_dag_id": "x", "logical_date": 3}, "logical_date must be a datetime"),
        (PythonVirtualenvOperator, {"python_callable": follows, "python_version": 3.12}, "must be a string"),
        (
            ExternalPythonOperator,
            {"python_callable": follows, "python": "x", "serializer": "marshal"},
            "must be one of",
        ),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_made(make, arguments, message):
    with DAG("d"), pytest.raises(DagError, match=message):
        make(task_id="t", **arguments)
