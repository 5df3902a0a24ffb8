"""A task's questions about itself, and about runs of any DAG."""

from asynsched import DAG, TaskGroup, task

with DAG("elsewhere", schedule="@once"):
    with TaskGroup("group"):

        @task
        def first():
            return 1

        done = first()

    @task
    def asks(ti, dag_run):
        states = ti.get_task_states("elsewhere", run_ids=[ti.run_id])[ti.run_id]
        return {
            "counts": [
                ti.get_ti_count("elsewhere"),
                ti.get_ti_count("elsewhere", task_group_id="group", states=["success"]),
                ti.get_ti_count("elsewhere", logical_dates=[dag_run.logical_date], task_ids=["asks"]),
                ti.get_dr_count("elsewhere", run_ids=[ti.run_id], states=["running"]),
                ti.get_dr_count("nowhere"),
            ],
            "states": [*sorted(states), states["group.first"]],
            "state": ti.get_dagrun_state("elsewhere", ti.run_id),
            "before": [ti.get_previous_ti(), ti.get_previous_dagrun()],
            "about": [ti.operator, ti.pool, ti.queue, ti.is_mapped, ti.state, dag_run.state],
            "log": ti.log_url.split()[:3],
        }

    done >> asks()
