"""The production services in virtual time, while users trigger, cancel, or change rows beside them."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from asynsched import DAG, BashOperator
from asynsched.channels import RunCancelled, RunCreated
from asynsched.errors import StoreUnavailable
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_by_program
from asynsched.simulation.script import Outcome
from asynsched.store.runs.queue import queued_runs
from asynsched.store.schema import dag as dag_table
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def simulated(tmp_path):
    """Return a function that makes a simulation of one DAG of two parallel tasks, each of an hour."""

    def make(**options) -> Simulated:
        with DAG("dag", **options) as dag:
            BashOperator(task_id="a", bash_command="true")
            BashOperator(task_id="b", bash_command="true")
        return Simulated(tmp_path, [dag], lambda launch: Outcome(duration=timedelta(hours=1)), START)

    return make


async def serve(simulation: Simulated, act, hours: float = 5) -> dict[str, str]:
    simulation.act = act
    await asyncio.to_thread(simulation.run_for, timedelta(hours=hours))
    return {run.run_id: run.state for run in await simulation.runs("dag")}


async def trigger(simulation, channels, run_id, **options):
    key = await simulation.database.write(
        create_manual_run, "dag", Trigger(run_id=run_id, **options), now=simulation.clock.now()
    )
    await channels.runs.put(RunCreated(key))
    return key


async def test_a_run_made_by_hand_for_the_next_scheduled_date_takes_its_place(simulated):
    simulation = simulated(schedule="0 * * * *")

    async def act(channels):
        await trigger(simulation, channels, "mine", logical_date=START + timedelta(hours=2))

    runs = await serve(simulation, act, hours=4.5)
    dates = [run.logical_date for run in await simulation.runs("dag")]
    assert sorted(dates) == [START + timedelta(hours=hour) for hour in range(5)]
    assert runs["mine"] == "success"


async def test_a_run_triggered_for_later_starts_then_and_holds_up_no_other(simulated):
    simulation = simulated(max_active_runs=1)
    later = START + timedelta(hours=2, minutes=30, seconds=7)

    async def act(channels):
        await trigger(simulation, channels, "later", run_after=later)
        await trigger(simulation, channels, "now")

    assert await serve(simulation, act) == {"later": "success", "now": "success"}
    started = {run.run_id: run.started_at for run in await simulation.runs("dag")}
    assert started["now"] - START < timedelta(seconds=1)
    assert timedelta() <= started["later"] - later < timedelta(seconds=1)


async def test_a_mark_from_outside_holds_and_no_running_sibling_starts_again(simulated):
    simulation = simulated()

    async def act(channels):
        await trigger(simulation, channels, "r")
        await simulation.clock.sleep(timedelta(minutes=10))
        mark = sa.text("UPDATE task_instance SET state = 'skipped' WHERE task_id = 'a'")
        await simulation.database.write(lambda conn: conn.execute(mark).rowcount)

    assert await serve(simulation, act) == {"r": "success"}
    assert Counter(launch.task_id for launch in simulation.executor.launched) == {"a": 1, "b": 1}


async def test_a_queued_run_cancelled_while_the_database_is_away_never_starts(simulated, monkeypatch):
    simulation = simulated(max_active_runs=1)
    write, failures = simulation.database.write, iter([True])

    async def flaky(query, *args, **kwargs):
        if query is submit_by_program and next(failures, False):
            raise StoreUnavailable("away")
        return await write(query, *args, **kwargs)

    monkeypatch.setattr(simulation.database, "write", flaky)

    async def act(channels):
        await trigger(simulation, channels, "first")
        waiting = await trigger(simulation, channels, "second")
        await simulation.clock.sleep(timedelta(minutes=1))
        await channels.runs.put(RunCancelled(waiting))

    assert await serve(simulation, act) == {"first": "success", "second": "failed"}


async def test_a_lost_hint_costs_no_more_than_the_time_to_the_next_sweep(simulated):
    simulation = simulated(is_paused_upon_creation=True)

    async def act(channels):
        await trigger(simulation, channels, "r")
        await simulation.clock.sleep(timedelta(minutes=1))
        unpause = sa.text("UPDATE dag SET is_paused = 0")
        await simulation.database.write(lambda conn: conn.execute(unpause).rowcount)

    assert await serve(simulation, act) == {"r": "success"}
    [run] = await simulation.runs("dag")
    assert run.started_at - START <= timedelta(minutes=1, seconds=simulation.settings.sweep_interval)


async def test_a_dag_examined_by_a_scheduler_that_left_runs_to_the_second(simulated):
    simulation = simulated(schedule="0 3 * * * 11", is_paused_upon_creation=True)
    due = START + timedelta(hours=3, seconds=11)

    async def act(channels):
        await simulation.clock.sleep(timedelta(minutes=10))
        examined = sa.update(dag_table).values(
            is_paused=False, last_examined_at=dag_table.c.updated_at, next_dagrun_create_after=due
        )
        await simulation.database.write(lambda conn: conn.execute(examined).rowcount)

    await serve(simulation, act)
    [run] = await simulation.runs("dag")
    assert timedelta() <= run.started_at - due < timedelta(seconds=1)


async def test_no_run_starts_before_it_was_queued_however_long_the_database_takes(tmp_path, monkeypatch):
    with DAG("dag", schedule="* * * * *") as dag:
        BashOperator(task_id="load", bash_command="true")
    simulation = Simulated(tmp_path, [dag], lambda _: Outcome("success", timedelta(seconds=1)), START)
    read = simulation.database.read

    async def read_slowly(query, *args, **kwargs):
        if query is queued_runs:
            await simulation.clock.sleep(timedelta(seconds=90))
        return await read(query, *args, **kwargs)

    monkeypatch.setattr(simulation.database, "read", read_slowly)
    await asyncio.to_thread(simulation.run_for, timedelta(minutes=30))
    runs = [run for run in await simulation.runs("dag") if run.started_at is not None]
    assert len(runs) > 10
    assert all(run.started_at >= run.queued_at for run in runs)
