"""Operators and sensors of the standard provider, alone: branches by time, other Pythons, commands."""

import datetime as dt
import os
import sys
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from asynsched import (
    DAG,
    AsynschedFailException,
    BashSensor,
    BranchDateTimeOperator,
    BranchDayOfWeekOperator,
    BranchExternalPythonOperator,
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
    task,
)
from asynsched.authoring.running.context import build_context
from asynsched.authoring.running.dag_run import RunFacts
from asynsched.authoring.running.execution import execute
from asynsched.authoring.running.task_instance import TaskInstanceFacts

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)  # a Monday
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture
def set_now(monkeypatch):
    """Return a function that sets the present moment for operators and sensors."""

    def set_now(moment):
        for module in ("operators.time_branches", "sensors.weekday"):
            monkeypatch.setattr(f"asynsched.authoring.{module}.utcnow", lambda: moment)

    return set_now


def follows(make, zone="UTC", run_type="manual", schedule=None, date=NOON, **arguments):
    """Return which of the tasks `yes` and `no` are followed by a branch, in a run of this date."""
    with DAG("d", start_date=dt.datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)), schedule=schedule) as dag:
        branch = make(task_id="branch", **arguments)
        branch >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
    interval = dag.timetable.infer_manual_data_interval(run_after=date)
    run = RunFacts(
        dag_id="d", run_id="r", run_type=run_type, run_after=date, logical_date=interval.start,
        data_interval_start=interval.start, data_interval_end=interval.end,
    )  # fmt: skip
    return execute(branch, build_context(branch, run, TaskInstanceFacts())).follow


FOLLOW = {"follow_task_ids_if_true": "yes", "follow_task_ids_if_false": ["no"]}
LATE = NOON + dt.timedelta(hours=11, minutes=30)


@pytest.mark.parametrize(
    ("now", "week_day", "options", "expected"),
    [
        (NOON, "Monday", {}, "yes"),
        (NOON, {WeekDay.SATURDAY, "sunday"}, {}, "no"),
        (NOON + DAY, WeekDay.MONDAY, {"use_task_logical_date": True}, "yes"),
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
        ("asset_triggered", "@daily", dt.timedelta(days=9), True),
        ("scheduled", "@once", dt.timedelta(days=9), True),
    ],
)
def test_what_follows_latest_only_is_skipped_in_earlier_runs_of_the_schedule(
    set_now, run_type, schedule, age, is_latest
):
    midnight = NOON.replace(hour=0)
    set_now(midnight + age)
    found = follows(LatestOnlyOperator, schedule=schedule, run_type=run_type, date=midnight)
    assert found == (("no", "yes") if is_latest else ())


def outcome(make, **arguments):
    with DAG("d", params={"p": "param"}):
        made = make(task_id="t", **arguments)
    return made.dag.test(logical_date=NOON).task("t")


def test_a_sensor_of_the_day_of_the_week(set_now):
    set_now(NOON)
    assert outcome(DayOfWeekSensor, week_day={"monday"}).state == "success"
    assert outcome(DayOfWeekSensor, week_day=WeekDay.SUNDAY, timeout=0, poke_interval=0).state == "failed"
    set_now(NOON + DAY)
    assert outcome(DayOfWeekSensor, week_day="MONDAY", use_task_logical_date=True).state == "success"


def test_the_days_of_the_week_have_names_and_numbers():
    assert [(WeekDay(number).name, int(WeekDay(number))) for number in (1, 7)] == [("MONDAY", 1), ("SUNDAY", 7)]
    assert WeekDay.validate_week_day(["monday", WeekDay.FRIDAY]) == {1, 5}
    for wrong in ("someday", 3, {"Monday", "Funday"}):
        with pytest.raises(DagError, match="week_day"):
            WeekDay.validate_week_day(wrong)
    with pytest.raises(ValueError, match="no day of the week"):
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


def describes(a, b=2, ts=None, params=None, logical_date=None, templates_dict=None):
    import sys

    given = virtualenv_string_args  # noqa: F821 - it is there in the other Python
    print("it runs in", sys.executable)
    kind = type(logical_date).__module__.partition(".")[0]
    return {"sum": a + b, "ts": ts, "p": params["p"], "strings": given, "kind": kind, "templates": templates_dict}


def fails():
    raise ValueError("no luck")


def exits():
    import sys

    sys.exit(99)


def environment():
    import os

    return {name: os.environ.get(name) for name in ("GIVEN", "HOME")}


def test_a_function_is_called_in_another_python():
    # That of the machine sees none of the packages of this one.
    python = os.path.realpath(sys.executable)
    arguments = {"python": python, "op_args": [1], "op_kwargs": {"b": "{{ 40 + 1 }}"}, "string_args": ["x", 3]}
    ended = outcome(
        ExternalPythonOperator, python_callable=describes, templates_dict={"day": "{{ ds }}"},
        **arguments | {"op_args": ["1"]},
    )  # fmt: skip
    assert ended.result == {
        "sum": "141", "ts": NOON.isoformat(), "p": "param", "strings": ["x", "3"], "kind": "datetime",
        "templates": {"day": "2026-01-05"},
    }  # fmt: skip
    ended = outcome(ExternalPythonOperator, python_callable=describes, **arguments | {"python": sys.executable})
    assert ended.state == "failed"
    assert "TypeError" in ended.reason


def test_dates_are_pendulums_where_the_other_python_has_it():
    ended = outcome(ExternalPythonOperator, python_callable=describes, python=sys.executable, op_args=[1])
    assert ended.result["kind"] == "pendulum"


@pytest.mark.parametrize(
    ("function", "options", "state", "reason"),
    [
        (fails, {}, "failed", "ValueError: no luck"),
        (exits, {}, "failed", "exit code 99"),
        (exits, {"skip_on_exit_code": 99}, "skipped", "Process exited with code 99"),
        (describes, {"op_args": [lambda: None]}, "failed", "cannot be passed to another Python"),
        (describes, {"op_args": [1], "op_kwargs": {"b": lambda: None}}, "failed", "another Python: b ("),
        (fails, {"python": "/nowhere/python"}, "failed", "must be the absolute path of a Python: /nowhere/python"),
    ],
)
def test_what_goes_wrong_in_another_python_is_told(function, options, state, reason):
    ended = outcome(ExternalPythonOperator, python_callable=function, **{"python": sys.executable, **options})
    assert ended.state == state
    assert reason in ended.reason


def test_another_python_is_given_the_environment_that_it_is_to_have(monkeypatch):
    monkeypatch.setenv("HOME", "/inherited")
    options = {"python_callable": environment, "python": sys.executable, "env_vars": {"GIVEN": "yes"}}
    assert outcome(ExternalPythonOperator, **options).result == {"GIVEN": "yes", "HOME": "/inherited"}
    assert outcome(ExternalPythonOperator, inherit_env=False, **options).result == {"GIVEN": "yes", "HOME": None}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1, "made by def"),
        (test_the_days_of_the_week_have_names_and_numbers.__call__, "made by def"),
        ((lambda: (yield)), "made by def"),
    ],
)
def test_only_functions_can_be_called_in_another_python(function, message):
    with DAG("d"), pytest.raises(DagError, match=message):
        ExternalPythonOperator(task_id="t", python=sys.executable, python_callable=function)


def packages():
    import sys

    return [sys.prefix != sys.base_prefix, "asynsched" in sys.modules, sys.prefix]


def test_a_virtual_environment_is_made_for_a_function_and_kept_where_it_is_told_to(tmp_path):
    once = outcome(PythonVirtualenvOperator, python_callable=packages).result
    assert once[:2] == [True, False]
    assert not Path(once[2]).exists()
    kept = [
        outcome(PythonVirtualenvOperator, python_callable=packages, venv_cache_path=str(tmp_path)).result[2]
        for _ in range(2)
    ]
    assert kept[0] == kept[1]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [Path(kept[0]).name]


def test_an_environment_that_cannot_be_made_says_why(tmp_path):
    missing = tmp_path / "nothing.whl"
    ended = outcome(PythonVirtualenvOperator, python_callable=packages, requirements=[str(missing)])
    assert "its environment could not be made" in ended.reason
    ended = outcome(PythonVirtualenvOperator, python_callable=packages, python_version="3.0")
    assert "there is no python3.0" in ended.reason


def test_the_decorators_of_other_pythons():
    with DAG("d") as dag:

        @task.external_python(python=sys.executable)
        def doubled(n):
            return {"n": 2 * n}

        @task.virtualenv(multiple_outputs=True)
        def listed(given) -> dict:
            return {"first": given["n"]}

        @task.branch_external_python(python=sys.executable)
        def picks(n):
            return "yes" if n == 6 else "no"

        picked = picks(listed(doubled(3))["first"])
        picked >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
        assert isinstance(picked.operator, BranchExternalPythonOperator)
    run = dag.test()
    assert {name: run.task(name).state for name in ("yes", "no")} == {"yes": "success", "no": "skipped"}


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (BranchDateTimeOperator, {**FOLLOW, "target_lower": None, "target_upper": None}, "must not both be None"),
        (BranchDayOfWeekOperator, {**FOLLOW, "week_day": "Funday"}, "'Funday' is unknown"),
        (ExternalTaskSensor, {"external_dag_id": "x", "external_task_id": "a", "external_task_ids": ["b"]}, "one of"),
        (ExternalTaskSensor, {"external_dag_id": "x", "allowed_states": ["skipped"]}, "'skipped' is no state"),
        (ExternalTaskSensor, {"external_dag_id": "x", "failed_states": ["success"]}, "is among several"),
        (
            ExternalTaskSensor,
            {"external_dag_id": "x", "execution_delta": DAY, "execution_date_fn": print},
            "exclude one another",
        ),
        (ExternalTaskMarker, {"external_dag_id": "x", "external_task_id": "y", "recursion_depth": 0}, "at least 1"),
        (TriggerDagRunOperator, {"trigger_dag_id": "x", "allowed_states": ["skipped"]}, "'skipped' is not a valid"),
        (TriggerDagRunOperator, {"trigger_dag_id": "x", "logical_date": 3}, "logical_date must be a datetime"),
        (PythonVirtualenvOperator, {"python_callable": fails, "python_version": 3.12}, "must be a text"),
        (ExternalPythonOperator, {"python_callable": fails, "python": "x", "serializer": "marshal"}, "must be one of"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_made(make, arguments, message):
    with DAG("d"), pytest.raises(DagError, match=message):
        make(task_id="t", **arguments)
