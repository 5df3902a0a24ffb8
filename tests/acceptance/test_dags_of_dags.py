"""DAGs that trigger runs of others, and that wait for others."""

DATABASES = ("postgresql",)

CHILD = """
    from asynsched import DAG, TaskGroup, task

    with DAG("child", params={"fail": False}):
        with TaskGroup("group"):

            @task
            def works(params):
                if params["fail"]:
                    raise ValueError("told to fail")

            works()
"""
PARENT = """
    from datetime import datetime, timezone
    from asynsched import DAG, AsynschedException, ExternalTaskSensor, TriggerDagRunOperator, task

    DAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
    FAILS = dict(conf={"fail": True}, wait_for_completion=True, poke_interval=0.1)
    WAITS = dict(external_dag_id="child", execution_date_fn=lambda date: DAY, poke_interval=0.1, poll_interval=0.1)

    with DAG("parent"):
        first = TriggerDagRunOperator(
            task_id="first", trigger_dag_id="child", trigger_run_id="{{ run_id }}", logical_date=DAY,
            wait_for_completion=True, deferrable=True, poke_interval=0.1, note="for {{ run_id }}", run_after=DAY,
        )
        again = TriggerDagRunOperator(
            task_id="again", trigger_dag_id="child", trigger_run_id="{{ run_id }}", skip_when_already_exists=True
        )
        taken = TriggerDagRunOperator(task_id="taken", trigger_dag_id="child", logical_date=DAY, retries=1)
        reset = TriggerDagRunOperator(
            task_id="reset", trigger_dag_id="child", trigger_run_id="{{ run_id }}", reset_dag_run=True,
            wait_for_completion=True, poke_interval=0.1, trigger_rule="all_done",
        )
        first >> [again, taken] >> reset
        TriggerDagRunOperator(task_id="fails", trigger_dag_id="child", **FAILS)
        TriggerDagRunOperator(task_id="fails_deferred", trigger_dag_id="child", deferrable=True, **FAILS)
        TriggerDagRunOperator(
            task_id="expected", trigger_dag_id="child", allowed_states=["failed"], failed_states=[], **FAILS
        )
        TriggerDagRunOperator(
            task_id="later", trigger_dag_id="sleeper", run_after="{{ '2100-01-01' }}", conf="{{ {'n': 1} | tojson }}"
        )
        TriggerDagRunOperator(task_id="no_json", trigger_dag_id="sleeper", conf="{{ 'n = 1' }}")
        TriggerDagRunOperator(task_id="denied", trigger_dag_id="scheduled_only")
        TriggerDagRunOperator(task_id="nowhere", trigger_dag_id="nobody")
        TriggerDagRunOperator(task_id="paused", trigger_dag_id="sleeper", fail_when_dag_is_paused=True)

        ExternalTaskSensor(task_id="run", **WAITS)
        ExternalTaskSensor(task_id="run_deferred", deferrable=True, **WAITS)
        ExternalTaskSensor(
            task_id="of_task", external_task_id="group.works", check_existence=True, mode="reschedule", **WAITS
        )
        ExternalTaskSensor(task_id="of_group", external_task_group_id="group", deferrable=True, **WAITS)
        ExternalTaskSensor(
            task_id="failed", allowed_states=["failed"], failed_states=["success"], deferrable=True, **WAITS
        )
        ExternalTaskSensor(
            task_id="skipped", allowed_states=["failed"], failed_states=["success"], soft_fail=True, **WAITS
        )
        ExternalTaskSensor(task_id="missing", external_task_id="nothing", check_existence=True, **WAITS)
        ExternalTaskSensor(task_id="no_group", external_task_group_id="nothing", **WAITS)
        ExternalTaskSensor(task_id="no_group_deferred", external_task_group_id="nothing", deferrable=True, **WAITS)
        ExternalTaskSensor(task_id="no_dag", external_dag_id="nobody", poke_interval=0.1, timeout=0.3)

    with DAG("scheduled_only", schedule="@yearly", allowed_run_types=["scheduled"]):
        TriggerDagRunOperator(task_id="none", trigger_dag_id="nobody")

    with DAG("sleeper", is_paused_upon_creation=True):

        @task
        def sleeps():
            pass

        sleeps()
"""
OLD_WAYS = """
    from airflow import DAG
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.models import DagBag, DagModel
    from airflow.operators.python import PythonOperator

    def triggers():
        assert DagModel.get_dagmodel("nobody") is None
        assert DagModel.get_dagmodel("sleeper").is_paused
        run = trigger_dag(dag_id="sleeper", run_id="by_function", conf={"n": 2}, replace_microseconds=False)
        print(run.run_id, run.state, run.logical_date is not None)

    with DAG("old_ways", schedule=None):
        PythonOperator(task_id="triggers", python_callable=triggers)
        PythonOperator(task_id="reads", python_callable=DagBag)
"""


def test_a_file_for_airflow_2_triggers_runs_and_reads_of_other_dags(new_site):
    site = new_site()
    site.write("parent.py", PARENT)
    site.write("old_ways.py", OLD_WAYS)
    with site.up():
        site.wait_for_dag("old_ways")
        site.wait_for_dag("sleeper")
        warned = [one["message"] for one in site.json("dags", "errors", "--warnings")]
        assert any("old_ways.py:4: airflow.models.DagBag can be imported, but its use is" in one for one in warned)
        site.run("dags", "trigger", "old_ways", "--run-id", "r", "--wait", code=1)
        assert "by_function queued True" in site.run("tasks", "logs", "old_ways", "r", "triggers").stdout
        tasks = {task["task_id"]: task for task in site.json("tasks", "list", "old_ways", "r")}
        assert tasks["triggers"]["state"] == "success"
        assert "DAG files cannot read the other DAG files" in tasks["reads"]["reason"]
    assert site.json("runs", "show", "sleeper", "by_function")["conf"] == {"n": 2}


def test_a_dag_triggers_runs_of_another_and_waits_for_what_it_does(new_site):
    site = new_site()
    site.write("child.py", CHILD)
    site.write("parent.py", PARENT)
    with site.up():
        site.wait_for_dag("parent")
        site.wait_for_dag("child")
        site.run("dags", "trigger", "parent", "--run-id", "r1")
        site.until(lambda: site.json("runs", "show", "parent", "r1")["state"] == "failed", "the run has ended")
    tasks = {task["task_id"]: task for task in site.json("tasks", "list", "parent", "r1")}
    failed = {"taken", "fails", "fails_deferred", "no_json", "nowhere", "denied", "paused", "failed", "missing"}
    failed |= {"no_group", "no_group_deferred", "no_dag"}
    skipped = {"again", "skipped"}
    expected = {name: "failed" if name in failed else "skipped" if name in skipped else "success" for name in tasks}
    assert {name: task["state"] for name, task in tasks.items()} == expected
    reasons = {
        "taken": "DagRunAlreadyExists: The DAG 'child' has a run of the logical date 2026-01-05T00:00:00+00:00 already",
        "fails": "is failed",
        "no_json": "the conf is no JSON: Expecting value",
        "fails_deferred": "is failed",
        "denied": "allows no runs of the type operator_triggered: its allowed_run_types are scheduled.",
        "nowhere": "AsynschedException: there is no DAG 'nobody'",
        "paused": "DagIsPaused: DAG sleeper is paused",
        "failed": "ExternalDagFailedError: the DAG child: failed",
        "missing": "ExternalTaskNotFoundError: the DAG 'child' has no task 'nothing'",
        "no_group": "There is no task group 'nothing' in the DAG 'child'.",
        "no_group_deferred": "There is no task group 'nothing' in the DAG 'child'.",
        "no_dag": "AsynschedSensorTimeout",
        "again": "The DAG 'child' has a run 'r1' already",
    }
    assert {name: text in tasks[name]["reason"] for name, text in reasons.items()} == dict.fromkeys(reasons, True), {
        name: tasks[name]["reason"] for name in reasons
    }
    log = site.run("tasks", "logs", "parent", "r1", "no_dag").stdout
    assert "there is no DAG 'nobody'; waiting for it" in log
    runs = site.runs("child")
    assert sorted(run["state"] for run in runs) == ["failed", "failed", "failed", "success"]
    [triggered] = [run for run in runs if run["run_id"] == "r1"]
    assert triggered["logical_date"].startswith("2026-01-05")
    assert (triggered["run_type"], triggered["note"]) == ("operator_triggered", "for r1")
    assert triggered["run_after"].startswith("2026-01-05")
    [later] = [run for run in site.runs("sleeper") if run["run_type"] == "operator_triggered"]
    assert (later["run_after"], later["logical_date"]) == ("2100-01-01T00:00:00Z", None)
    assert site.json("runs", "show", "sleeper", later["run_id"])["conf"] == {"n": 1}
    refused = site.run("dags", "trigger", "scheduled_only", code=1).stderr
    assert "allows no runs of the type manual: its allowed_run_types are scheduled." in refused
    [again] = site.json("tasks", "list", "child", "r1")
    assert (again["state"], again["try_number"]) == ("success", 2)
    [named] = [item for item in site.json("tasks", "xcom", "parent", "r1", "first") if item["key"] == "trigger_run_id"]
    assert named["value"] == "r1"
