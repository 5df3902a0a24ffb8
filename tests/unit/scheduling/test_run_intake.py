"""Queued runs on their way to being active."""

from contextlib import asynccontextmanager

import pytest

from asynsched import DAG, BashOperator
from asynsched.channels import Channels
from asynsched.errors import StoreUnavailable
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.loading import VersionCache
from asynsched.scheduling.places import Places
from asynsched.store.dags.dags import set_paused
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.queue import queued_runs
from tests.support.flaky_database import FlakyDatabase
from tests.support.runs import NOON, evaluation
from tests.support.stored import store_dag


async def test_a_run_taken_up_while_its_start_waits_for_the_database_begins_once(tmp_path):
    async with interrupted_start(tmp_path) as (intake, engine, database, key):
        [row] = await database.read(queued_runs, [key])
        run = await intake.loader.run(row)
        intake.places.disturb(row.key, row.id)
        intake.take_up(row)
        engine.start_run(run, NOON)
        intake.places.begin(row.key)
        await intake.start(NOON)
        assert engine.runs[key] is run


async def test_a_run_paused_while_its_start_waits_for_the_database_begins_once(tmp_path):
    async with interrupted_start(tmp_path) as (intake, engine, database, key):
        for is_paused in (True, False):
            await database.write(set_paused, "d", is_paused=is_paused, now=NOON)
            await intake.sweep(NOON)
        await intake.start(NOON)
        run = engine.runs[key]
        await intake.start(NOON)
        assert engine.runs[key] is run


@pytest.mark.parametrize(("parallelism", "at"), [(1, NOON), (0, None)])
async def test_a_full_scheduler_leaves_locked_runs_to_others_instead_of_trying_again(tmp_path, parallelism, at):
    async with interrupted_start(tmp_path, evaluation(parallelism=parallelism)) as (intake, *_):
        intake.has_peers, intake.retry_at = (lambda: True), NOON
        assert intake.next_claim == at


@asynccontextmanager
async def interrupted_start(tmp_path, engine=None):
    """Admit a queued run, and have the database away when it is to begin."""
    database = FlakyDatabase(open_inline())
    engine = engine or evaluation()
    intake = RunIntake(
        database=database, versions=VersionCache(database, tmp_path, tmp_path, in_thread=False), evaluation=engine,
        channels=Channels(), places=Places(5),
    )  # fmt: skip
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag, max_active_runs=2)
    key = await database.write(create_manual_run, "d", Trigger(), now=NOON)
    await intake.take_created([key], NOON)
    database.away.add("read_versions")
    with pytest.raises(StoreUnavailable):
        await intake.start(NOON)
    yield intake, engine, database, key
    await database.close()
