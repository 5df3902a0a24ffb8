"""DAGs as users write them. `mypy` checks them strictly: the names of a DAG file have types that editors can show."""

from datetime import datetime, timedelta
from typing import assert_type

from asynsched import (
    DAG,
    BashOperator,
    EmptyOperator,
    FileSensor,
    PythonOperator,
    ShortCircuitOperator,
    TriggerDagRunOperator,
    XComArg,
    dag,
    setup,
    task,
    task_group,
    teardown,
)
from asynsched.authoring.taskflow import TaskFunction, TaskGroupFunction


@task
def extract(n: int) -> list[int]:
    return list(range(n))


@task(retries=3, retry_delay=timedelta(seconds=5))
def double(number: int) -> int:
    return 2 * number


@task.bash(env={"A": "1"})
def shout() -> str:
    return "echo $A"


@task.run_if(lambda context: bool(context["params"]))
@task
def load(numbers: list[int]) -> None:
    print(numbers)


@setup
def create() -> None: ...


@teardown(on_failure_fail_dagrun=True)
def drop() -> None: ...


@task_group(tooltip="Both")
def both(numbers: XComArg) -> None:
    load(double.expand(number=numbers)) >> shout()


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, tags=["typed"])
def daily(n: int = 3) -> None:
    create() >> both(extract(n)) >> drop()


@dag
def bare() -> None:
    extract(1)


with DAG("classic", schedule=timedelta(hours=1), max_active_runs=1) as classic:
    first = BashOperator(task_id="first", bash_command="true", retries=2)
    second = PythonOperator(task_id="second", python_callable=print, op_args=["hello"], pool="narrow")
    FileSensor(task_id="there", filepath="/tmp/there", mode="reschedule") >> first >> second
    # A result of a task may stand for each value.
    BashOperator(task_id="says", bash_command=shout(), env=second.output)
    PythonOperator(task_id="takes", python_callable=print, op_args=extract(2), op_kwargs=first.output)
    TriggerDagRunOperator(task_id="starts", trigger_dag_id=shout(), conf=extract(1)) << [first, second]

assert_type(extract, TaskFunction)
assert_type(double, TaskFunction)
assert_type(shout, TaskFunction)
assert_type(load, TaskFunction)
assert_type(drop, TaskFunction)
assert_type(both, TaskGroupFunction)
assert_type(extract(3), XComArg)
assert_type(daily(5), DAG)
assert_type(bare(), DAG)
assert_type(first, BashOperator)

# What is wrong is an error: mypy complains if one of these comments is not needed.
daily("many")  # type: ignore[arg-type]
dag(scheduled="@daily")  # type: ignore[call-overload]
DAG("wrong", schedul="@daily")  # type: ignore[call-arg]
DAG("wrong", max_active_runs="one")  # type: ignore[arg-type]
BashOperator(task_id="wrong", bash_command="true", retrys=2)  # type: ignore[call-arg]
BashOperator(bash_command="true")  # type: ignore[call-arg]
EmptyOperator(task_id="wrong", retrys=2)  # type: ignore[arg-type]
ShortCircuitOperator(task_id="wrong")  # type: ignore[call-arg]
