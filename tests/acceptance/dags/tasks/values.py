"""Values that travel: XComs, templates, params, variables, connections, and secrets that a process does not get."""

import datetime as dt
import os

from asynsched import DAG, BashOperator, Connection, Variable, get_current_context, task

with DAG("values", params={"greeting": "hello"}):

    @task(multiple_outputs=True)
    def extract():
        return {"rows": [1, 2, 3], "name": "täst"}

    @task
    def total(rows, name):
        return {"name": name, "total": sum(rows)}

    @task
    async def doubled(value):
        return value["total"] * 2

    @task
    def pushes(ti=None):
        ti.xcom_push(key="left", value={"a": None, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "tags": {"x"}})

    @task
    def pulls():
        ti = get_current_context()["ti"]
        pulled = ti.xcom_pull(task_ids="pushes", key="left")
        return {**pulled, "later": pulled["at"] + dt.timedelta(days=1), "is_set": "x" in pulled["tags"] | {"y"}}

    @task.bash
    def says():
        return "echo {{ params.greeting }} {{ ds }} {{ ti.xcom_pull(task_ids='doubled') }}"

    @task
    def asks():
        connection = Connection.get("somewhere")
        assert "a_variable" in Variable.keys("a_var")
        return [Variable.get("a_variable"), connection.host, connection.port]

    @task
    def sees():
        return {
            "ours": sorted(name for name in os.environ if name.startswith("ASYNSCHED")),
            "mine": os.environ["FOR_TASKS"],
            "secret": [name for name, value in os.environ.items() if "asynsched.db" in value or "postgresql" in value],
        }

    extracted = extract()
    result = doubled(total(extracted["rows"], extracted["name"]))
    result >> says()
    pushes() >> pulls()
    asks()
    sees()
    BashOperator(
        task_id="templated",
        bash_command="echo {{ dag.dag_id }}/{{ task.task_id }} {{ data_interval_start | ts_nodash }} $WORD",
        env={"WORD": "{{ macros.ds_add(ds, 1) }}"},
        append_env=True,
    )
