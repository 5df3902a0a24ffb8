"""DAGs as users write them. `mypy` checks them strictly: the names of a DAG file have types that editors can show."""

from datetime import date, datetime, time, timedelta
from typing import assert_type

from asynsched import (
    DAG,
    ApprovalOperator,
    Asset,
    BashOperator,
    DateTimeSensor,
    DateTimeSensorAsync,
    EmptyOperator,
    FileSensor,
    HITLBranchOperator,
    HITLEntryOperator,
    HITLOperator,
    Param,
    PythonOperator,
    ShortCircuitOperator,
    TimeDeltaSensor,
    TimeDeltaSensorAsync,
    TimeSensor,
    TimeSensorAsync,
    TriggerDagRunOperator,
    XComArg,
    asset,
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

with DAG("asks_and_waits", start_date="2026-01-01", end_date=date(2026, 12, 31), default_args={"retries": 1}):
    HITLOperator(task_id="asks", subject="Which?", options=["a", "b"], params={"n": Param(3)}, pool="people")
    ApprovalOperator(task_id="approves", subject="Go on?", body="It costs money.", fail_on_reject=True, retries=0)
    HITLBranchOperator(task_id="chooses", subject="Which?", options=["asks"], response_timeout=timedelta(hours=1))
    HITLEntryOperator(task_id="enters", subject="How many?", params={"n": 1}, assigned_users=[{"id": "1"}])
    DateTimeSensor(task_id="until", target_time="{{ data_interval_end }}", deferrable=True, mode="reschedule")
    DateTimeSensorAsync(task_id="until_too", target_time=datetime(2026, 1, 1), end_from_trigger=True)
    TimeSensor(task_id="noon", target_time=time(12), timeout=60, start_date="2026-02-01")
    TimeSensorAsync(task_id="noon_too", target_time=time(12), soft_fail=True)
    TimeDeltaSensor(task_id="later", delta=timedelta(minutes=1), poke_interval=5)
    TimeDeltaSensorAsync(task_id="later_too", delta=1.5, end_from_trigger=True)


@asset(schedule="@daily", tags=["typed"])
def numbers() -> list[int]:
    return [1]


@asset.multi(schedule=numbers, outlets=[Asset("a"), Asset("b")], description="Two")
def letters() -> None: ...


@task.short_circuit(ignore_downstream_trigger_rules=False, retries=1)
def stops() -> bool:
    return False


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
DAG("wrong", start_date=2026)  # type: ignore[arg-type]
task(retrys=2)  # type: ignore[call-overload]
asset(schedule=None, tag="typed")  # type: ignore[call-arg]
ApprovalOperator(task_id="wrong", subject="Go on?", options=["Yes"])  # type: ignore[call-arg]
HITLEntryOperator(task_id="wrong", subject="How many?", retrys=2)  # type: ignore[call-arg]
HITLBranchOperator(task_id="wrong", subject="Which?")  # type: ignore[call-arg]
DateTimeSensor(task_id="wrong", target_time="2026-01-01", poke_intervall=5)  # type: ignore[call-arg]
TimeSensor(task_id="wrong", target_time="12:00")  # type: ignore[arg-type]
TimeDeltaSensorAsync(task_id="wrong", delta=1, deferrable=True)  # type: ignore[call-arg]
