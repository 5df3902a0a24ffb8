"""The static look for values of Airflow 2's context."""

from sandbox.parsing.old_values import old_values

DAG_FILE = """
@task
def of_parameters(execution_date, ds, *, next_ds=None): ...

@task.branch(task_id="x")
def of_context(**context):
    return context["tomorrow_ds"], context.get("prev_ds"), get_current_context()["yesterday_ds"]

def called(prev_execution_date): ...

def not_a_task(execution_date, rows):
    return rows["execution_date"], {"next_ds": 1}

def own_value(ds, prev_ds): ...

@task
def given_by_the_file(execution_date, ds, tomorrow_ds): ...

@task
def of_kwargs(**kwargs):
    return kwargs["yesterday_ds"]

class Own(BaseOperator):
    def __init__(self, **kwargs):
        kwargs.pop("execution_date", None)

given_by_the_file("2024-01-01", tomorrow_ds=1)
PythonOperator(python_callable=own_value, op_kwargs={"prev_ds": 2})
PythonOperator(python_callable=called)
BashOperator(bash_command="echo {{ next_execution_date }} execution_date {{ f(execution_date=1) }} {{ x.prev_ds }}")
"""


def test_old_values_are_found_where_tasks_and_templates_read_them():
    assert [
        (line, advice.partition(" ")[0]) for advice, line in sorted(old_values(DAG_FILE), key=lambda one: one[1])
    ] == [
        (3, "execution_date"),
        (3, "next_ds"),
        (7, "prev_ds"),
        (7, "tomorrow_ds"),
        (7, "yesterday_ds"),
        (9, "prev_execution_date"),
        (21, "yesterday_ds"),
        (30, "next_execution_date"),
    ]
    assert ("execution_date is now logical_date", 3) in old_values(DAG_FILE)
    assert old_values("next_ds (") == []
