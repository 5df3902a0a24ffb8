"""The result of `DAG.test()`, and what tasks learn there about their own run."""

import datetime as dt

import pytest

from asynsched import DAG, TaskGroup, task

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)


def test_a_run_in_the_foreground_has_the_attributes_of_airflows_dag_run():
    with DAG("d", schedule="@daily", params={"n": 1}) as dag:

        @task
        def works(n):
            return n

        @task(trigger_rule="all_failed")
        def skipped():
            pass

        works.expand(n=[1, 2]) >> skipped()
    run = dag.test(logical_date=NOON, run_conf={"n": 2})
    assert (run.run_type, run.run_type.value, run.conf, run.logical_date) == ("manual", "manual", {"n": 2}, NOON)
    assert run.data_interval_start <= run.data_interval_end
    assert run.start_date.add(days=1) > run.end_date >= run.start_date
    assert run.get_task_instance("works", map_index=1).result == 2
    assert run.get_task_instance("other") is None
    assert [found.task_id for found in run.get_task_instances()] == ["works", "works", "skipped"]
    assert [found.task_id for found in run.get_task_instances(state="skipped")] == ["skipped"]
    assert len(run.get_task_instances(state=["success", "skipped"])) == 3


def test_a_task_in_the_foreground_asks_about_its_own_run_only():
    with DAG("d", schedule=None) as dag:
        with TaskGroup("outer"), TaskGroup("inner"):

            @task
            def works(n):
                return n

            worked = works.expand(n=[1, 2])

        @task
        def asks(ti=None, dag_run=None):
            own = {"dag_id": ti.dag_id, "run_ids": [ti.run_id]}
            return [
                ti.get_dagrun_state(ti.dag_id, ti.run_id),
                ti.get_ti_count(**own),
                ti.get_ti_count(**own, states=["running"], logical_dates=[dag_run.logical_date]),
                ti.get_task_states(**own, task_group_id="outer")[ti.run_id],
                ti.get_task_states(ti.dag_id, task_ids=["outer.inner.works"], map_index=1)[ti.run_id],
            ]

        @task
        def asks_about_others(ti=None):
            ti.get_ti_count("other")

        @task
        def asks_about_no_group(ti=None):
            ti.get_ti_count(ti.dag_id, task_group_id="other")

        worked >> asks() >> [asks_about_others(), asks_about_no_group()]
    run = dag.test()
    works_of = "outer.inner.works_"
    states = {f"{works_of}0": "success", f"{works_of}1": "success"}
    assert run.task("asks").result == ["running", 5, 1, states, {f"{works_of}1": "success"}]
    assert "of other runs cannot be answered in a run without a scheduler" in run.task("asks_about_others").reason
    assert "there is no task group 'other'" in run.task("asks_about_no_group").reason


@pytest.mark.parametrize("key", ["return_value", "rows"])
def test_a_value_too_large_for_a_scheduler_fails_its_task(key):
    seen = []
    with DAG("d") as dag:

        @task(on_failure_callback=lambda context: seen.append(str(context["exception"])))
        def large(ti):
            value = "x" * 16_000_000
            if key != "return_value":
                ti.xcom_push(key, value)
            return value

        large()
    run = dag.test()
    assert run.state == "failed"
    assert f"XCom {key!r} of task 'large' is too large: 15.3 MiB of JSON; the limit is 15.0 MiB." in run.tasks[0].reason
    assert run.tasks[0].result is None
    assert [run.tasks[0].reason.endswith(said) for said in seen] == [True]
