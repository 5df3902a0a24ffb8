"""Listeners of runs: the request to call them is stored once, each time a run begins."""

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from asynsched import DAG, BashOperator
from asynsched.channels import RunEdited, RunsOrphaned
from asynsched.errors import StoreUnavailable
from asynsched.keys import DagRunKey
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.store.runs.requests import ClearTasks
from asynsched.store.schedulers import remove_scheduler
from asynsched.store.schema import callback_request
from tests.support.flaky_database import FlakyDatabase
from tests.support.lone_evaluator import run_on, serving
from tests.support.runs import NOON
from tests.support.simulated import report_of
from tests.support.stored import store_dag

BEGUN = "on_dag_run_running"
RUN = DagRunKey("d", "r")


@pytest.fixture
async def heard(database):
    """Store the DAG `d`, for whose runs there is a listener; return a function that reads the requests to call it."""
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    report = report_of(dag)
    [parsed] = report.dags
    report = replace(report, dags=(replace(parsed, dag=replace(parsed.dag, callbacks=(BEGUN,))),))
    await database.write(store_dag, report)
    return lambda: database.read(lambda conn: conn.scalars(sa.select(callback_request.c.event)).all())


async def test_listeners_hear_of_a_run_each_time_it_begins(database, heard, tmp_path):
    scheduler = await serving(database, tmp_path, "one")
    begun = await run_on(scheduler, database, "r")
    assert await heard() == [BEGUN]
    scheduler.end(*begun)
    await scheduler.tick()
    scheduler.clock.leap(1)
    await database.write(submit_request, RUN, ClearTasks(("t",)), actor="ann", now=scheduler.clock.now())
    assert await scheduler.tick(RunEdited(RUN)), "it begins again"
    assert await heard() == [BEGUN, BEGUN]


async def test_listeners_hear_once_of_a_run_taken_up_before_it_is_stored(database, heard, tmp_path):
    flaky = FlakyDatabase(database)
    scheduler = await serving(flaky, tmp_path, "one")
    flaky.away = {"_store", "apply_and_pause"}
    with pytest.raises(StoreUnavailable):
        await run_on(scheduler, database, "r")
    assert await heard() == []
    flaky.away.clear()
    assert await scheduler.tick(RunEdited(RUN)), "it begins"
    await scheduler.sweep()
    assert await heard() == [BEGUN]


async def test_listeners_hear_once_of_a_run_claimed_by_a_scheduler_that_has_gone(database, heard, tmp_path):
    claiming = FlakyDatabase(database, after=True)
    gone = await serving(claiming, tmp_path, "gone")
    if database.is_shared:
        claiming.away = {"claim_runs"}
        with pytest.raises(StoreUnavailable):
            await run_on(gone, database, "r")
        assert await heard() == []
    else:  # it is not claimed: its beginning is stored with its tasks
        await run_on(gone, database, "r")
    await database.write(remove_scheduler, "gone", NOON)
    heir = await serving(database, tmp_path, "heir")
    await heir.tick(RunsOrphaned())
    assert heir.evaluator.n_runs == 1
    assert await heard() == [BEGUN]
