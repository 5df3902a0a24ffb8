"""A simulated span shows the scheduler's work on each kind of DAG: nothing in it is decided anywhere else."""

import asyncio
from collections import Counter
from dataclasses import replace as replace_plan
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from msgspec.structs import replace

from asynsched import (
    DAG,
    Asset,
    AsyncCallback,
    BashOperator,
    CronDataIntervalTimetable,
    DeadlineAlert,
    DeadlineReference,
)
from asynsched.scheduling.creation.scheduled_runs import runs_after
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import MapResult, SerializedRoute
from asynsched.settings import Settings
from asynsched.simulation import folder
from asynsched.simulation.folder import HomeState
from asynsched.simulation.script import Entry, Expectation, Expectations
from asynsched.simulation.span import Plan, SpanReport, simulate_span
from asynsched.timetables import DataInterval, decode
from tests.support.simulated import report_of

START, END = datetime(2026, 3, 28, 6, tzinfo=UTC), datetime(2026, 3, 31, 6, tzinfo=UTC)
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def plan_of(expected: dict[str, Expectation] | None) -> Plan:
    entries = [Entry(name, expectation) for name, expectation in (expected or {}).items()]
    return Plan(START, END, expectations=Expectations(entries))


def simulate(*dags: DAG, expected: dict[str, Expectation] | None = None) -> SpanReport:
    return simulate_span(Settings(), [report_of(dag) for dag in dags], plan_of(expected))


def one_task(dag_id: str, **options) -> DAG:
    with DAG(dag_id, **options) as dag:
        BashOperator(task_id="only", bash_command="")
    return dag


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "0 6 * * *", "start_date": LONG_AGO},
        {"schedule": "0 6 * * *", "start_date": LONG_AGO, "catchup": True},
        {"schedule": "30 5 * * *", "start_date": LONG_AGO, "catchup": True, "end_date": START + timedelta(hours=30)},
        {"schedule": "@hourly", "start_date": datetime(2026, 3, 30, tzinfo=UTC)},
        {"schedule": timedelta(hours=5), "start_date": LONG_AGO, "catchup": True},
        {"schedule": CronDataIntervalTimetable("@daily", timezone="Europe/Berlin"), "start_date": LONG_AGO},
        {"schedule": "@once", "start_date": LONG_AGO},
        {"schedule": "0 0 31 * *", "start_date": LONG_AGO},
        {"schedule": "@daily", "start_date": LONG_AGO, "end_date": datetime(2026, 2, 1, tzinfo=UTC), "catchup": True},
    ],
)  # fmt: skip
def test_the_runs_are_those_of_the_schedule_that_are_due_in_the_span(options):
    dag = one_task("dag", **options)
    scheduled = serialize_dag(one_task("dag", **{**options, "catchup": True}))
    everything = islice(runs_after(scheduled, decode(scheduled.timetable), None, START), 3_000)
    due = [info for info in everything if START <= info.run_after < END]
    span = simulate(dag)
    assert [(run.logical_date, run.data_interval_end, run.run_after) for run in span.runs] == [
        (info.logical_date, info.data_interval.end, info.run_after) for info in due
    ]
    assert all(run.started_at == run.run_after for run in span.runs)


def test_a_retry_takes_the_slots_of_its_own_route():
    with DAG("routed", schedule="@once") as dag:
        BashOperator(task_id="only", bash_command="", retries=1, retry_delay=timedelta(0))
    report = report_of(dag)
    [parsed] = report.dags
    routes = (SerializedRoute(), SerializedRoute("again", pool_slots=2))
    tasks = tuple(replace(task, routes=routes) for task in parsed.dag.tasks)
    routed = replace(report, dags=(replace(parsed, dag=replace(parsed.dag, tasks=tasks)),))
    fails = plan_of({"*.*": Expectation(duration=3600, failure_rate=1.0)})
    span = simulate_span(Settings(), [routed], replace_plan(fails, pools={"again": 2}))
    [again, default] = span.pools
    assert [(step.at - START, step.slots) for step in default.steps] == [(timedelta(0), 1), (timedelta(hours=1), 0)]
    assert [step.slots for step in again.steps] == [2, 0]
    assert again.steps[0].at == default.steps[1].at
    [task] = span.runs[0].tasks
    assert [one.pool for one in task.tries] == ["default_pool", "again"]


def test_what_runs_as_soon_as_it_may_does_so_at_the_start():
    span = simulate(
        one_task("once", schedule="@once"),
        one_task("always", schedule="@continuous"),
        expected={"*.*": Expectation(duration=3600)},
    )
    assert [run.started_at for run in span.runs if run.dag_id == "once"] == [START]
    always = [run for run in span.runs if run.dag_id == "always"]
    assert always[0].started_at == START
    assert len(always) == 24 * 3, "one after the other, an hour each"


@pytest.mark.parametrize(("earlier", "n_runs"), [(START - timedelta(days=1), 0), (END + timedelta(days=1), 1)])
def test_a_dag_that_runs_once_does_not_repeat_a_run_before_the_span(earlier, n_runs):
    plan = Plan(START, END, home=HomeState(last={"once": DataInterval(earlier, earlier)}))
    span = simulate_span(Settings(), [report_of(one_task("once", schedule="@once"))], plan)
    assert len(span.runs) == n_runs


def test_regular_intervals_go_on_from_the_last_run_of_the_home():
    last = START - timedelta(hours=30, minutes=17)
    plan = Plan(START, START + timedelta(hours=25), home=HomeState(last={"half": DataInterval(last, last)}))
    span = simulate_span(Settings(), [report_of(one_task("half", schedule=timedelta(hours=12)))], plan)
    assert [run.run_after for run in span.runs] == [last + timedelta(hours=hours) for hours in (36, 48)]


def test_what_depends_on_the_past_finds_it_done():
    with DAG("chained", schedule="@daily", start_date=LONG_AGO, catchup=True) as dag:
        BashOperator(task_id="only", bash_command="", depends_on_past=True, wait_for_downstream=True)
    assert Counter(run.state for run in simulate(dag).runs) == {"success": 3}


def test_updates_of_assets_trigger_what_waits_for_them():
    lake = Asset("lake")
    with DAG("producer", schedule="@daily", start_date=LONG_AGO) as producer:
        BashOperator(task_id="write", bash_command="", outlets=[lake])
    consumer = one_task("consumer", schedule=[lake])
    span = simulate(producer, consumer, expected={"producer.write": Expectation(duration=600)})
    consumed = [run for run in span.runs if run.dag_id == "consumer"]
    produced = [run for run in span.runs if run.dag_id == "producer"]
    assert len(produced) == 3
    assert [run.started_at for run in consumed] == [run.started_at + timedelta(minutes=10) for run in produced]
    assert {run.run_type for run in consumed} == {"asset_triggered"}


@pytest.mark.parametrize(
    ("expected", "n"),
    [({}, 1), ({"mapped.list": Expectation(length=3)}, 3), ({"mapped.list": Expectation(returns=[])}, 0)],
)
def test_a_mapped_task_has_as_many_instances_as_are_expected(expected, n):
    with DAG("mapped", schedule="@daily", start_date=LONG_AGO) as dag:
        BashOperator(task_id="list", bash_command="") >> BashOperator(task_id="use", bash_command="")
    report = report_of(dag)
    parsed = report.dags[0]
    first, use = parsed.dag.tasks
    tasks = (first, replace(use, map_length=MapResult("list")))
    report = replace(report, dags=(replace(parsed, dag=replace(parsed.dag, tasks=tasks)),))
    run = simulate_span(Settings(), [report], plan_of(expected)).runs[0]
    assert [task.state for task in run.tasks if task.task_id == "use"] == (["success"] * n or ["skipped"])
    assert run.state == "success"


OWN_TIMETABLE = """
from datetime import datetime, timedelta
from asynsched import DAG, BashOperator, DagRunInfo, DataInterval, Timetable


class EveryThirdHour(Timetable):
    summary = "every third hour"

    def infer_manual_data_interval(self, *, run_after):
        return DataInterval(run_after, run_after)

    def next_dagrun_info(self, *, last_automated_data_interval, restriction):
        start = last_automated_data_interval.end if last_automated_data_interval else restriction.earliest
        interval = DataInterval(start, start + timedelta(hours=3))
        return DagRunInfo(run_after=interval.end, data_interval=interval)


with DAG("own", schedule=EveryThirdHour(), start_date=datetime(2026, 3, 27), max_active_runs=1):
    BashOperator(task_id="only", bash_command="")
"""


@pytest.mark.parametrize("hours", [1, 4])
def test_a_custom_timetable_is_followed_and_asked_again_for_late_runs(tmp_path, hours):
    settings = Settings(home=str(tmp_path / "home"), dags_folder=str(tmp_path / "dags"))
    settings.dags_path.mkdir()
    (settings.dags_path / "own.py").write_text(OWN_TIMETABLE)
    reports = asyncio.run(folder.parse_folder(settings, folder.questions_of_span(START, START + timedelta(hours=25))))
    plan = replace_plan(plan_of({"own.only": Expectation(duration=hours * 3600)}), end=START + timedelta(hours=25))
    span = simulate_span(settings, reports, plan, ask=folder.asker(settings))
    step = max(3, hours)
    assert [run.started_at for run in span.runs] == [START + timedelta(hours=n) for n in range(0, 25, step)]
    assert [run.run_after for run in span.runs] == [START + timedelta(hours=3 * n) for n in range(len(span.runs))]


def test_missed_deadlines_are_told_and_met_ones_are_not():
    alert = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=5),
        callback=AsyncCallback("module.function"),
        name="soon",
    )
    dags = [one_task(name, schedule="@daily", start_date=LONG_AGO, deadline=alert) for name in ("quick", "slow")]
    span = simulate(*dags, expected={"slow.only": Expectation(duration=301)})
    assert {(miss.dag_id, miss.name) for miss in span.missed_deadlines} == {("slow", "soon")}
    slow = [run for run in span.runs if run.dag_id == "slow"]
    assert [miss.due_at for miss in span.missed_deadlines] == [run.queued_at + timedelta(minutes=5) for run in slow]


def test_what_has_not_ended_at_the_end_of_the_span_is_told_as_it_is_then():
    with DAG("long", schedule="0 5 31 3 *", start_date=LONG_AGO) as dag:
        BashOperator(task_id="first", bash_command="") >> BashOperator(task_id="second", bash_command="")
    [run] = simulate(dag, expected={"long.second": Expectation(duration=7200)}).runs
    assert run.state == "running"
    assert {task.task_id: (task.state, task.ended_at is None) for task in run.tasks} == {
        "first": ("success", False), "second": ("running", True),
    }  # fmt: skip
