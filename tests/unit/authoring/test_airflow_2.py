"""What a file for Airflow 2 writes otherwise works, and is warned of."""

import datetime as dt
import textwrap

import pytest

from asynsched import Asset, AssetAlias, AssetOrTimeSchedule, CronDataIntervalTimetable, PythonOperator, TriggerRule
from asynsched.authoring import airflow_2
from asynsched.authoring.airflow_2 import OLD_VALUES, value_of_context
from asynsched.authoring.running.try_context import build_context
from asynsched.errors import Airflow2Warning, DagError, written_for_airflow_2
from asynsched.protocol.messages import RunContext, TaskInstanceFacts
from tests.unit.authoring.loading import load_one
from tests.unit.authoring.one_task import context_of, rendered, run

HEAD = """
from datetime import datetime
from asynsched import *
from asynsched.authoring.airflow_2 import apply_defaults
class Own(EmptyOperator):
    def __init__(self, *, execution_date, **kwargs):
        super().__init__(**kwargs)
        self.given = execution_date
class Fixes(PythonOperator):
    def __init__(self, **kwargs):
        super().__init__(provide_context=True, **kwargs)
"""
OF_DAGS = [
    ("schedule_interval='@daily'", "dag.schedule == '@daily'", "schedule_interval is now schedule"),
    ("schedule_interval=None", "dag.schedule is None", "schedule_interval is now schedule"),
    ("timetable=OnceTimetable()", "dag.schedule is not None", "timetable is now schedule"),
    ("concurrency=3", "dag.max_active_tasks == 3", "concurrency is now max_active_tasks"),
    ("fail_stop=True", "dag.fail_fast", "fail_stop is now fail_fast"),
    ("default_view='graph', orientation='LR'", "dag", "orientation has no effect: it is about Airflow 2's web page"),
    ("sla_miss_callback=print", "dag", "sla_miss_callback has no effect: give the DAG a deadline"),
    ("default_args={'task_concurrency': 2}", "task.max_active_tis_per_dag == 2", "is now max_active_tis_per_dag"),
    ("default_args={'provide_context': True}", "dag", "provide_context has no effect"),
    ("default_args={'trigger_rule': 'dummy'}", "task.trigger_rule == 'always'", "the trigger rule dummy is now always"),
]
NAMED = "task_id='t', task_concurrency=2"
LIMITED = "task.max_active_tis_per_dag == 2"
OF_TASKS = [
    (f"EmptyOperator({NAMED})", LIMITED),
    (f"task({NAMED})(lambda: 1)()", LIMITED),
    (f"task({NAMED})(lambda x: 1).expand(x=[1])", LIMITED),
    (f"BashOperator.partial({NAMED}).expand(bash_command=['a'])", LIMITED),
    (
        "EmptyOperator(task_id='t', trigger_rule='none_failed_or_skipped')",
        "task.trigger_rule == 'none_failed_min_one_success'",
    ),
    ("EmptyOperator(task_id='t', trigger_rule=TriggerRule.DUMMY)", "task.trigger_rule == 'always'"),
    ("PythonOperator(task_id='t', python_callable=print, provide_context=True)", "task"),
    ("Fixes(task_id='t', python_callable=print)", "task"),
    ("type('Own', (EmptyOperator,), {'execute': apply_defaults(print)})(task_id='t')", "task"),
    (
        "TriggerDagRunOperator(task_id='t', trigger_dag_id='x', execution_date='2024-01-01')",
        "task.logical_date == '2024-01-01'",
    ),
    ("DayOfWeekSensor(task_id='t', week_day='Monday', use_task_execution_day=True)", "task.use_task_logical_date"),
]


@pytest.mark.parametrize(("arguments", "works", "advice"), OF_DAGS)
def test_arguments_of_dags_in_airflow_2_work_and_say_what_to_write(arguments, works, advice):
    with pytest.warns(Airflow2Warning) as warned:
        dag = load_one(f"{HEAD}with DAG('d', start_date=datetime(2024, 1, 1), {arguments}) as dag:\n"
                       "  EmptyOperator(task_id='plain')\n")  # fmt: skip
    assert eval(works, {"dag": dag, "task": dag.get_task("plain")})
    [told] = written_for_airflow_2([(one.message.advice, one.lineno) for one in warned], works=True, longest=1000)
    assert advice in told
    assert {one.filename for one in warned} == {"/dags/file.py"}


def test_many_findings_are_told_in_several_sentences_and_none_is_cut():
    found = [(f"old_name_{number:03} is now new_name_{number:03}", number + 1) for number in range(100)]
    sentences = written_for_airflow_2(found, works=True, longest=500)
    assert max(map(len, sentences)) <= 500
    assert [advice for advice, line in found if not any(f"{advice} (line {line})" in one for one in sentences)] == []
    assert {one.partition("; ")[0] for one in sentences} == {"this file is written for Airflow 2, and works"}


@pytest.mark.parametrize("schedule", ["'@daily'", "CronDataIntervalTimetable('@daily', timezone='UTC')"])
def test_a_dag_tells_the_dates_of_the_runs_before_and_after_a_run(schedule):
    dag = load_one(f"{HEAD}with DAG('d', start_date=datetime(2024, 1, 1), schedule={schedule}):\n"
                   "  EmptyOperator(task_id='t')\n")  # fmt: skip
    day = dt.datetime(2024, 1, 5, tzinfo=dt.UTC)
    with pytest.warns(Airflow2Warning, match="ask dag.timetable"):
        found = [dag.following_schedule(day), dag.following_schedule(day - dt.timedelta(hours=1))]
    assert found == [day + dt.timedelta(days=1), day]


def test_a_schedule_by_datasets_or_time_is_one_by_assets():
    with pytest.warns(Airflow2Warning, match="DatasetOrTimeSchedule") as warned:
        dag = load_one(
            f"{HEAD}from asynsched.authoring.airflow_2 import DatasetOrTimeSchedule\n"
            "from asynsched import Asset, CronTriggerTimetable\n"
            "by_hour = CronTriggerTimetable('@hourly', timezone='UTC')\n"
            "with DAG('d', schedule=DatasetOrTimeSchedule(timetable=by_hour, datasets=[Asset('a')])):\n"
            "  EmptyOperator(task_id='t')\n"
        )
    assert isinstance(dag.timetable, AssetOrTimeSchedule)
    assert {one.filename for one in warned} == {"/dags/file.py"}


@pytest.mark.parametrize(("statement", "works"), OF_TASKS)
def test_arguments_of_tasks_in_airflow_2_work_and_are_warned_of(statement, works):
    with pytest.warns(Airflow2Warning):
        dag = load_one(f"{HEAD}with DAG('d') as dag:\n  {statement}\n")
    assert eval(works, {"task": dag.get_task("t")})


def test_an_operator_keeps_an_argument_of_its_own_with_an_old_name():
    dag = load_one(f"{HEAD}with DAG('d') as dag:\n  Own(task_id='t', execution_date='mine')\n")
    assert dag.get_task("t").given == "mine"


def test_an_argument_under_both_names_is_an_error():
    with pytest.raises(DagError, match="DAG 'd': schedule_interval is the name that Airflow 2 had for schedule"):
        load_one(f"{HEAD}DAG('d', schedule=None, schedule_interval=None)")


def test_attributes_of_dags_in_airflow_2_work_or_say_why_not(dag):
    with pytest.warns(Airflow2Warning, match="DAG.schedule_interval is now DAG.schedule"):
        assert dag.schedule_interval is dag.schedule
    with pytest.raises(AttributeError, match="no attribute 'subdags': Airflow 3 has no SubDAGs"):
        dag.subdags  # noqa: B018 - it raises
    with pytest.raises(AttributeError, match="has no 'NEVER'"):
        TriggerRule.NEVER  # noqa: B018


DAY = dt.timedelta(days=1)
DATE = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
SCHEDULED = {
    "execution_date": DATE,
    "next_execution_date": DATE + DAY,
    "next_ds": "2024-03-02",
    "next_ds_nodash": "20240302",
    "prev_execution_date": DATE - DAY,
    "prev_ds": "2024-02-29",
    "prev_ds_nodash": "20240229",
    "tomorrow_ds": "2024-03-02",
    "tomorrow_ds_nodash": "20240302",
    "yesterday_ds": "2024-02-29",
    "yesterday_ds_nodash": "20240229",
}


@pytest.fixture
def scheduled(dag):
    """Return the context of a daily run."""
    dag._timetable = CronDataIntervalTimetable("@daily", "UTC")
    about = RunContext(
        dag_id="d", run_id="r1", run_type="scheduled", run_after=DATE + DAY, logical_date=DATE, conf={},
        data_interval_start=DATE, data_interval_end=DATE + DAY,
    )  # fmt: skip
    task = PythonOperator(task_id="t", dag=dag, python_callable=print)
    return build_context(task, about, TaskInstanceFacts())


def test_old_dates_of_the_context_are_those_of_the_neighbouring_runs(scheduled):
    assert {name: scheduled[name] for name in SCHEDULED} == SCHEDULED
    assert scheduled.get("next_ds") == "2024-03-02"
    assert scheduled["ti"].execution_date == scheduled["dag_run"].execution_date == DATE
    assert not OLD_VALUES.keys() & {*scheduled}


def test_a_run_by_hand_is_its_own_neighbour_as_in_airflow_2(dag):
    context = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print))
    assert context["prev_execution_date"] == context["next_execution_date"] == context["logical_date"]


def test_without_a_logical_date_there_are_no_old_dates(dag):
    context = context_of(PythonOperator(task_id="t", dag=dag, python_callable=print), logical_date=None)
    assert context.get("execution_date", "none") == "none"
    with pytest.raises(KeyError, match="next_ds"):
        context["next_ds"]


def test_a_run_by_assets_has_their_events_by_uri_as_in_airflow_2(dag):
    def takes(triggering_dataset_events):
        return triggering_dataset_events

    task = PythonOperator(task_id="t", dag=dag, python_callable=takes)
    assert context_of(task, logical_date=None).get("triggering_dataset_events") == {}
    events = {Asset("orders", "s3://b/orders"): ["an event"], AssetAlias("alias"): ["an event"]}
    found = value_of_context({"triggering_asset_events": events}.__getitem__, "triggering_dataset_events")
    assert found == {"s3://b/orders": ["an event"]}


def test_templates_and_functions_get_old_values_and_the_log_says_what_to_write(dag, caplog, supervisor, monkeypatch):
    monkeypatch.setattr(airflow_2, "_told", set())
    supervisor._answer_previous_run = lambda **_: None
    assert rendered(dag, "{{ execution_date | ds }} {{ yesterday_ds }}") == "2024-05-01 2024-04-30"
    assert "yesterday_ds is a value of Airflow 2; write macros.ds_add(ds, -1)" in caplog.text
    seen = {}

    def takes(execution_date, **kwargs):
        seen.update(kwargs, execution_date=execution_date)

    run(PythonOperator(task_id="calls", dag=dag, python_callable=takes, op_kwargs={"next_ds": "mine"}))
    assert (seen["tomorrow_ds"], seen["next_ds"], seen["execution_date"]) == (
        "2024-05-02",
        "mine",
        seen["logical_date"],
    )


def test_a_decorated_function_takes_old_values_too():
    dag = load_one(
        textwrap.dedent("""
        from asynsched import DAG, task
        with DAG("d") as dag:
            @task
            def tells(yesterday_ds):
                return yesterday_ds
            tells()
    """)
    )
    assert run(dag.get_task("tells")).value == "2024-04-30"
