"""The static look for values of Airflow 2's context."""

from asynsched.migrating.old_values import old_values
from asynsched.serialization.schema import ParseReport, SourceFile

DAG_FILE = """
@task
def of_parameters(execution_date, ds, *, next_ds=None): ...

@task.branch(task_id="x")
def of_context(**context):
    return context["tomorrow_ds"], context.get("prev_ds"), get_current_context()["yesterday_ds"]

def called(prev_execution_date): ...

def not_a_task(execution_date, rows):
    return rows["execution_date"], {"next_ds": 1}

PythonOperator(python_callable=called)
BashOperator(bash_command="echo {{ next_execution_date }} execution_date {{ f(execution_date=1) }} {{ x.prev_ds }}")
"""


def test_old_values_are_found_where_tasks_and_templates_read_them():
    sources = (SourceFile("dag.py", "", "", DAG_FILE), SourceFile("no.py", "", "", "next_ds ("))
    report = ParseReport(1, "dag.py", sources=sources)
    found = old_values([report, report])
    assert [(one.file, one.line, one.name) for one in found] == [
        ("dag.py", 3, "execution_date"),
        ("dag.py", 3, "next_ds"),
        ("dag.py", 7, "prev_ds"),
        ("dag.py", 7, "tomorrow_ds"),
        ("dag.py", 7, "yesterday_ds"),
        ("dag.py", 9, "prev_execution_date"),
        ("dag.py", 15, "next_execution_date"),
    ]
    assert found[0].what == "execution_date is a value of Airflow 2, which works here; write logical_date"
