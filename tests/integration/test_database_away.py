"""The database goes away once, at any call, before or after that was done: nothing is lost, nothing is done twice."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import DAG, BashOperator
from asynsched.channels import Channels
from asynsched.errors import StoreUnavailable
from asynsched.protocol.messages import Launch
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.simulation.script import Outcome
from tests.support.flaky_database import FlakyDatabase
from tests.support.simulated import Simulated

START = datetime(2026, 3, 28, 12, tzinfo=UTC)
SPAN = timedelta(minutes=19, seconds=40)
"""Time for two runs, and for a sweep to find changes whose answer was lost."""


def a_dag() -> DAG:
    with DAG("often", schedule="*/10 * * * *", max_active_runs=1) as often:
        first = BashOperator(task_id="first", bash_command="true", retries=1, retry_delay=timedelta(minutes=1))
        first >> [BashOperator(task_id="left", bash_command="true"), BashOperator(task_id="right", bash_command="true")]
    return often


def script(launch: Launch) -> Outcome:
    """The first try of `first` fails."""
    fails = launch.task_id == "first" and launch.try_number == 1
    return Outcome("failed" if fails else "success", timedelta(minutes=1), "as scripted" if fails else "")


async def story(simulated: Simulated):
    """Return how each run ended, and how often each try of it was launched."""
    runs = {run.run_id: run.state for run in await simulated.runs("often")}
    launched = {
        launch.token: (launch.run.run_id, launch.task_id, launch.try_number) for launch in simulated.executor.launched
    }
    return runs, Counter(launched.values())


def simulate(home, **failure) -> tuple[Simulated, FlakyDatabase]:
    simulated = Simulated(home, [a_dag()], script, START - timedelta(seconds=1))
    database = simulated.database = FlakyDatabase(simulated.database, **failure)
    simulated.settings = msgspec.structs.replace(simulated.settings, sweep_interval=240.0)
    simulated.when_started = database.arm
    simulated.run_for(SPAN)
    return simulated, database


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_whichever_call_fails_every_run_ends_as_it_does_undisturbed(tmp_path, after):
    undisturbed, database = await in_thread(simulate, tmp_path)
    n_calls = database.n_calls
    expected = await story(undisturbed)
    assert set(expected[0].values()) == {"success"}
    for n in range(n_calls):
        disturbed, _ = await in_thread(simulate, tmp_path, fails_at=[n], after=after)
        assert await story(disturbed) == expected, f"call {n}"


async def test_schedules_are_known_once_a_database_away_at_the_start_is_back(tmp_path):
    simulated = Simulated(tmp_path, [a_dag()], script, START)
    await simulated.prepare()
    database = FlakyDatabase(simulated.inline, fails_at=[0])
    database.arm()
    creator = DagRunCreator(settings=simulated.settings, channels=Channels(), database=database, clock=simulated.clock)
    with pytest.raises(StoreUnavailable):
        await creator.tick(START)
    await creator.tick(START)
    assert creator.due_at is not None


async def in_thread(function, *args, **options):
    """Run a simulation beside this test's own event loop."""
    return await asyncio.to_thread(function, *args, **options)
