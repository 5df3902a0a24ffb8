"""Explanations are the scheduler's own decisions: nothing holds a task up exactly when the scheduler starts it now."""

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from asynsched import DAG, BashOperator
from asynsched.channels import PoolsChanged
from asynsched.explaining.explain import explain_task
from asynsched.explaining.snapshot import take_snapshot
from asynsched.keys import DagRunKey
from asynsched.settings import Settings
from asynsched.simulation.script import Outcome
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.pools import set_pool
from tests.support.lone_evaluator import run_on, serving
from tests.support.runs import NOON
from tests.support.simulated import Simulated
from tests.support.stored import store_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = timedelta(minutes=100, seconds=7)
"""An instant at which nothing ends and nothing is due."""
RULES = ["all_success", "all_done", "one_success", "one_failed", "none_failed", "always"]


@st.composite
def workloads(draw):
    """Return DAGs that share small pools, how their tasks end, and the pool that is made larger in the end."""
    dags, outcomes = [], {}
    for number in range(draw(st.integers(1, 2))):
        options = {"max_active_tasks": draw(st.integers(1, 3)), "max_active_runs": draw(st.integers(1, 2))}
        with DAG(f"dag{number}", schedule="*/30 * * * *", **options) as dag:
            made = []
            for name in "abcd":
                task = BashOperator(
                    task_id=name,
                    bash_command="true",
                    pool=draw(st.sampled_from(["one", "two"])),
                    pool_slots=draw(st.integers(1, 2)),
                    retries=draw(st.integers(0, 1)),
                    depends_on_past=draw(st.booleans()),
                    trigger_rule=draw(st.sampled_from(RULES)),
                )
                for before in draw(st.lists(st.sampled_from(made), unique=True)) if made else ():
                    before >> task
                made.append(task)
                minutes = draw(st.sampled_from([5, 20, 50]))
                outcomes[dag.dag_id, name] = (draw(st.sampled_from(["success", "success", "failed"])), minutes)
        dags.append(dag)
    return dags, outcomes, draw(st.sampled_from(["one", "two"]))


def keys(tasks):
    return {(task.run.key.dag_id, task.run.key.run_id, task.task_id) for task in tasks}


async def explained(simulation):
    """Return the unfinished task instances that nothing holds up, and those that something does."""
    found = await take_snapshot(simulation.database, simulation.settings, simulation.clock.now())
    free, held = [], []
    for run in found.evaluation.runs.values():
        for task in run.all_instances():
            if not task.is_finished and task.stored_state not in ("queued", "running"):
                (held if explain_task(found, task).reasons else free).append(task)
    return keys(free), keys(held)


@settings(max_examples=25)
@given(workloads())
def test_nothing_holds_a_task_up_exactly_when_the_scheduler_starts_it_now(tmp_path, workload):
    dags, outcomes, grown = workload

    def script(launch):
        state, minutes = outcomes[launch.run.dag_id, launch.task_id]
        return Outcome(state, timedelta(minutes=minutes))

    simulation = Simulated(tmp_path, dags, script, START)
    seen = {}

    async def look(channels):
        await simulation.clock.sleep(QUIET)
        seen["before"] = await explained(simulation)
        await simulation.database.write(set_pool, grown, 4)
        seen["free"], seen["held"] = await explained(simulation)
        launched = len(simulation.executor.launched)
        await channels.limits.put(PoolsChanged())
        await simulation.clock.sleep(timedelta(seconds=1))
        seen["started"] = {
            (launch.run.dag_id, launch.run.run_id, launch.task_id) for launch in simulation.executor.launched[launched:]
        }

    simulation.act = look
    asyncio.run(make_pools(simulation))
    simulation.run_for(QUIET + timedelta(seconds=2))
    assert seen["before"][0] == set()
    assert seen["started"] == seen["free"]
    assert not seen["started"] & seen["held"]


async def make_pools(simulation):
    await simulation.database.write(set_pool, "one", 1)
    await simulation.database.write(set_pool, "two", 2)


async def test_the_room_of_an_executor_is_that_of_all_schedulers_together(tmp_path):
    database = open_inline()
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true", executor="narrow")
    await database.write(store_dag, dag)
    served = [await serving(database, tmp_path, name, {"local": 8, "narrow": 1}) for name in ("one", "other")]
    for scheduler, run_id in zip([*served, served[0]], ("r0", "r1", "r2"), strict=True):
        await run_on(scheduler, database, run_id)
    snapshot = await take_snapshot(database, Settings(home=str(tmp_path)), NOON)
    [waiting] = snapshot.evaluation.runs[DagRunKey("d", "r2")].all_instances()
    [reason] = explain_task(snapshot, waiting).reasons
    assert reason.text == "executor narrow: 2 of 2 taken, 1 needed"
    assert [cause.text for cause in reason.causes] == ["t of r0 of d: queued", "t of r1 of d: queued"]
    await database.close()
