"""Runs of consecutive days that depend on one another, by the production services in virtual time."""

import asyncio
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.scheduling.creation.backfills import BackfillPlan, create_backfill
from asynsched.simulation.script import Outcome
from asynsched.store.schema import task_instance
from tests.support.simulated import Simulated

START = datetime(2026, 1, 10, tzinfo=UTC)


def four_days(tmp_path, failing=()):
    options = {"schedule": "@daily", "start_date": START - timedelta(days=3), "end_date": START, "catchup": True}
    with DAG("dag", **options) as dag:
        load = BashOperator(task_id="load", bash_command="true", depends_on_past=True)
        load >> BashOperator(task_id="report", bash_command="true")

    def script(launch):
        failed = (launch.task_id, launch.run.logical_date.day) in failing
        return Outcome("failed" if failed else "success", timedelta(hours=1))

    return Simulated(tmp_path, [dag], script, START)


async def run_for(simulation, hours):
    await asyncio.to_thread(simulation.run_for, timedelta(hours=hours))
    return [(run.logical_date.day, run.state) for run in sorted(await simulation.runs("dag"), key=lambda run: run.id)]


async def test_active_runs_take_turns_where_a_task_depends_on_its_past(tmp_path):
    simulation = four_days(tmp_path)
    assert await run_for(simulation, 6) == [(7, "success"), (8, "success"), (9, "success"), (10, "success")]
    loads = [launch.run.logical_date.day for launch in simulation.executor.launched if launch.task_id == "load"]
    assert loads == [7, 8, 9, 10]


async def test_the_first_run_within_the_dates_of_a_task_depends_on_none_before(tmp_path):
    options = {"schedule": "@daily", "start_date": START - timedelta(days=3), "end_date": START, "catchup": True}
    with DAG("dag", max_active_runs=1, **options) as dag:
        first = {"depends_on_past": True, "start_date": START - timedelta(days=1)}
        BashOperator(task_id="load", bash_command="true", **first)
    simulation = Simulated(tmp_path, [dag], lambda launch: Outcome("success", timedelta(hours=1)), START)
    assert await run_for(simulation, 6) == [(7, "success"), (8, "success"), (9, "success"), (10, "success")]
    assert [launch.run.logical_date.day for launch in simulation.executor.launched] == [9, 10]


async def test_the_first_run_of_a_backfill_depends_on_none_before(tmp_path):
    with DAG("dag", schedule="@daily", start_date=START + timedelta(days=9)) as dag:
        BashOperator(task_id="load", bash_command="true", depends_on_past=True)

    def script(launch):
        return Outcome("failed" if launch.run.logical_date.day == 7 else "success", timedelta(hours=1))

    simulation = Simulated(tmp_path, [dag], script, START)

    async def backfill(first, last):
        plan = BackfillPlan("dag", START + timedelta(days=first), START + timedelta(days=last), reprocess="failed")
        await simulation.database.write(create_backfill, plan, actor="me", now=simulation.clock.now())

    async def run_two(channels):
        await backfill(-3, -3)
        await simulation.clock.sleep(timedelta(hours=2))
        await backfill(-2, -1)

    simulation.act = run_two
    assert await run_for(simulation, 8) == [(7, "failed"), (8, "success"), (9, "success")]


async def test_a_failure_holds_later_runs_back_until_somebody_marks_it_a_success(tmp_path):
    simulation = four_days(tmp_path, failing={("load", 8)})

    async def mark_failed_load(channels):
        await simulation.clock.sleep(timedelta(hours=10))
        await simulation.database.write(
            lambda conn: conn.execute(
                sa.update(task_instance).where(task_instance.c.state == "failed").values(state="success")
            )
        )

    assert await run_for(simulation, 5) == [(7, "success"), (8, "failed"), (9, "running"), (10, "running")]
    simulation.act = mark_failed_load
    assert await run_for(simulation, 30) == [(7, "success"), (8, "failed"), (9, "success"), (10, "success")]
