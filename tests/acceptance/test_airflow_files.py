"""Files that were written for Airflow run as they are."""

import pytest

FOR_AIRFLOW_3 = """
    from datetime import timedelta

    import pendulum
    from airflow.exceptions import AirflowException
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
    from airflow.sdk import DAG, BaseOperator, get_current_context, task, timezone
    from airflow.sdk.exceptions import AirflowSkipException

    class Defers(BaseOperator):
        def execute(self, context):
            self.defer(trigger=TimeDeltaTrigger(timedelta(0)), method_name="resumed")

        def resumed(self, context, event=None):
            return timezone.coerce_datetime(event).isoformat()

    def told(context):
        from airflow.sdk import TaskInstance

        assert isinstance(context["ti"], TaskInstance)
        print("the callback was called")

    with DAG("three", schedule=None, start_date=pendulum.datetime(2026, 1, 1)):

        @task(on_success_callback=told)
        def skips():
            raise AirflowSkipException("nothing to do")

        @task(trigger_rule="none_failed")
        def catches():
            try:
                raise AirflowException("caught")
            except AirflowException:
                return get_current_context()["run_id"]

        skips() >> catches() >> Defers(task_id="defers") >> BashOperator(task_id="bash", bash_command="echo {{ ds }}")
"""
FOR_AIRFLOW_2 = """
    import datetime

    from airflow import DAG
    from airflow.decorators import task
    from airflow.models import Variable
    from airflow.operators.dummy_operator import DummyOperator
    from airflow.operators.python import PythonOperator

    with DAG("two", schedule_interval=None, start_date=datetime.datetime(2026, 1, 1), concurrency=2) as dag:
        start = DummyOperator(task_id="start")
        says = PythonOperator(task_id="says", python_callable=lambda: Variable.get("word"), provide_context=True)
        start >> says
"""
SMALL_NAMES = """
    from airflow import DAG
    from airflow.configuration import conf
    from airflow.sdk import task
    from airflow.sdk.log import mask_secret
    from airflow.utils.dates import days_ago

    options = [conf.get("core", "parallelism"), str(conf.getboolean("operators", "default_deferrable"))]
    with DAG("small", schedule=None, start_date=days_ago(1), tags=options):

        @task
        def tells():
            mask_secret({"password": "correct horse", "user": "battery staple"})
            print("correct horse, battery staple,", conf.getint("core", "parallelism"), conf.get("smtp", "smtp_host"))

        tells()
"""
OURS = """
    from asynsched import DAG

    dag = DAG("ours", schedule=None)
"""


@pytest.fixture
def site(new_site):
    site = new_site()
    site.write("three.py", FOR_AIRFLOW_3)
    site.write("two.py", FOR_AIRFLOW_2)
    return site


def test_files_for_airflow_run_unmodified_and_old_names_are_named(site):
    site.run("variables", "set", "word", "hello")
    logged = site.up_until_idle().stderr
    assert "file.written_for_airflow_2" in logged
    for dag_id in ("two", "three"):
        site.run("dags", "trigger", dag_id)
    assert "2 runs have ended: 2 success." in site.up_until_idle().stderr
    states = {task["task_id"]: task["state"] for task in site.json("tasks", "list", "three", "latest")}
    assert states == {"skips": "skipped", "catches": "success", "defers": "success", "bash": "success"}
    warned = site.json("dags", "errors", "--warnings")
    assert [(one["file"], one["kind"]) for one in warned] == [("two.py", "moved")]
    message = warned[0]["message"]
    assert "airflow.operators.dummy_operator.DummyOperator is now airflow.providers.standard" in message
    assert "schedule_interval is now schedule, concurrency is now max_active_tasks, provide_context has no" in message


def test_the_foreground_serves_airflows_names_as_well(site):
    assert "success" in site.run("dags", "test", "three").stdout


def test_where_airflow_is_off_its_names_are_errors_of_the_file(site):
    site.env["ASYNSCHED_AIRFLOW"] = "off"
    site.up_until_idle()
    errors = {error["file"]: error["message"] for error in site.json("dags", "errors")}
    assert set(errors) == {"two.py", "three.py"}
    assert 'set airflow = "ours", or import the same names from asynsched' in errors["two.py"]


def test_configuration_and_masking_work_at_parse_and_in_tasks(new_site):
    site = new_site()
    site.write("small.py", SMALL_NAMES)
    site.write("ours.py", OURS)
    site.env |= {"ASYNSCHED_PARALLELISM": "7", "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True"}
    site.up_until_idle()
    assert site.json("dags", "show", "ours")["airflow"] is None
    shown = site.json("dags", "show", "small")
    assert (shown["airflow"], sorted(shown["tags"])) == ("ours", ["7", "True"])
    site.run("dags", "trigger", "small")
    site.up_until_idle()
    assert "***, battery staple, 7 localhost" in site.run("tasks", "logs", "small", "latest", "tells").stdout
    assert "battery staple, 7 localhost" in site.run("dags", "test", "small").stderr
