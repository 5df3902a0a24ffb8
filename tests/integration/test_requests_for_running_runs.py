"""Requests about a running run are carried out once, in their order, through all failures."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import DAG, BashOperator
from asynsched.channels import RunCreated, RunEdited
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.simulation.script import Outcome
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkTasks, add_request, open_requests
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.flaky_database import FlakyDatabase
from tests.support.simulated import Simulated

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RUN = DagRunKey("dag", "r")


def simulation(tmp_path, *requests, sweep=86_400.0, **failure) -> Simulated:
    """Return a simulation of a run whose tasks take a minute each; after half a minute people want these things."""
    with DAG("dag") as dag:
        BashOperator(task_id="a", bash_command="true") >> BashOperator(task_id="b", bash_command="true")
    simulated = Simulated(tmp_path, [dag], lambda _: Outcome(duration=MINUTE), START)
    simulated.settings = msgspec.structs.replace(simulated.settings, sweep_interval=sweep)
    database = simulated.inline
    flaky = simulated.database = FlakyDatabase(database, **failure)

    async def act(channels):
        await database.write(create_manual_run, RUN.dag_id, Trigger(run_id=RUN.run_id), now=START)
        await channels.runs.put(RunCreated(RUN))
        await simulated.clock.sleep(MINUTE / 2)
        run = await database.read(get_run, *RUN)
        flaky.arm()
        for request in requests:
            await database.write(add_request, run.id, request, actor="ann", now=simulated.clock.now())
        await channels.runs.put(RunEdited(RUN))

    simulated.act = act
    return simulated


async def story(simulated: Simulated, span: timedelta = 15 * MINUTE):
    """Serve, and return the ends of the run and its tasks, the launches, and the remaining requests and processes."""
    await asyncio.to_thread(simulated.run_for, span)
    run = await simulated.inline.read(get_run, *RUN)
    tasks = {row.task_id: row.state for row in await simulated.inline.read(load_task_instances, run.id)}
    launched = [(launch.task_id, launch.try_number) for launch in simulated.executor.launched]
    left = await simulated.inline.read(open_requests, run.lease_epoch), simulated.executor.running
    return run.state, tasks, launched, left


async def test_a_request_that_can_be_done_no_longer_is_refused_and_harms_nothing(tmp_path):
    told = await story(simulation(tmp_path, ClearTasks(("gone",)), MarkTasks(("b",), "success")))
    assert told == ("success", {"a": "success", "b": "success"}, [("a", 1)], ([], {}))


@pytest.mark.parametrize(
    ("requests", "ended", "launched"),
    [
        ([CancelRun(), ClearTasks()], "success", [("a", 1), ("a", 2), ("b", 1)]),
        ([ClearTasks(), CancelRun()], "failed", [("a", 1)]),
    ],
    ids=["cancelled, then cleared", "cleared, then cancelled"],
)
async def test_requests_are_done_in_the_order_in_which_they_were_made(tmp_path, requests, ended, launched):
    state, _, found, left = await story(simulation(tmp_path, *requests))
    assert (state, found, left) == (ended, launched, ([], {}))


REQUESTS = [[ClearTasks(("a",))], [MarkTasks(("a",), "success")], [CancelRun(), ClearTasks()]]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("requests", REQUESTS, ids=["clear", "mark", "cancel and clear"])
async def test_whichever_call_to_the_database_fails_a_request_is_done_all_the_same(tmp_path, requests, after):
    def served(**failure):
        return simulation(tmp_path, *requests, sweep=240.0, **failure)

    undisturbed = served()
    expected = await story(undisturbed)
    assert expected[3] == ([], {})
    for n in range(undisturbed.database.n_calls):
        assert await story(served(fails_at=[n], after=after)) == expected, f"call {n}"
