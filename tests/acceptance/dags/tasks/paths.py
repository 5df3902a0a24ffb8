"""Branches, short circuits and conditions: which way a run goes."""

from asynsched import DAG, BranchPythonOperator, EmptyOperator, ShortCircuitOperator, TaskGroup, chain, task

with DAG("branches", schedule="@once"):

    @task.branch
    def choose():
        return ["left", "grouped"]

    left, right = EmptyOperator(task_id="left"), EmptyOperator(task_id="right")
    with TaskGroup("grouped") as grouped:
        EmptyOperator(task_id="first") >> EmptyOperator(task_id="second")
    join = EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success")
    choose() >> [left, right, grouped] >> join
    none = BranchPythonOperator(task_id="choose_none", python_callable=lambda: None)
    none >> EmptyOperator(task_id="not_followed")
    wrong = BranchPythonOperator(task_id="choose_wrong", python_callable=lambda: "nowhere")
    wrong >> EmptyOperator(task_id="below_wrong")

with DAG("short_circuits", schedule="@once"):

    @task.short_circuit
    def go():
        return True

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def stop_here():
        return False

    stop_all = ShortCircuitOperator(task_id="stop_all", python_callable=lambda: False)
    go() >> EmptyOperator(task_id="went")
    chain(stop_all, EmptyOperator(task_id="stopped"), EmptyOperator(task_id="stopped_too", trigger_rule="all_done"))
    chain(
        stop_here(),
        EmptyOperator(task_id="stopped_here"),
        EmptyOperator(task_id="not_stopped", trigger_rule="all_done"),
    )

with DAG("conditions", schedule="@once", params={"go": True}):

    @task.run_if(lambda context: context["params"]["go"])
    @task
    def runs():
        return 1

    @task.skip_if(lambda context: True)
    @task
    def does_not_run():
        return 1

    @task.sensor(poke_interval=0.05, timeout=30)
    def waits():
        return True

    runs()
    does_not_run()
    waits()
