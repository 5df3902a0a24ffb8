"""What may go on goes on at once, in virtual time, and not only once a sweep finds it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from asynsched import DAG, BashOperator
from asynsched.authoring.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from asynsched.channels import BackfillChanged, Channels, DagChanged, RunCreated, RunEdited
from asynsched.protocol.messages import Launch
from asynsched.scheduling.creation.backfills import BackfillPlan, create_backfill
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.simulation.script import Outcome
from asynsched.store.dags.dags import set_paused
from asynsched.store.runs.requests import ClearTasks
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.schema import TaskInstanceRow, deadline
from tests.support.simulated import Simulated

START = datetime(2026, 1, 10, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NEVER = 1e6
"""Seconds between two sweeps."""


@pytest.fixture
def simulated(tmp_path) -> Callable[..., Simulated]:
    def make(dag: DAG, duration: Callable[[str, str], timedelta], sweep_interval: float = NEVER) -> Simulated:
        def script(launch: Launch) -> Outcome:
            return Outcome(duration=duration(launch.run.run_id, launch.task_id))

        made = Simulated(tmp_path, [dag], script, START)
        made.settings = replace(made.settings, sweep_interval=sweep_interval, dags_are_paused_at_creation=False)
        return made

    return make


async def tasks_of(simulated: Simulated) -> dict[tuple[str, str], TaskInstanceRow]:
    """Return the task instances of the DAG `d`, by run and task."""
    found = {}
    for run in await simulated.runs("d"):
        for row in await simulated.database.read(load_task_instances, run.id):
            found[run.run_id, row.task_id] = row
    return found


async def trigger(simulated: Simulated, channels: Channels, name: str, day: int) -> None:
    date, now = datetime(2026, 1, day, tzinfo=UTC), simulated.clock.now()
    key = await simulated.database.write(create_manual_run, "d", Trigger(run_id=name, logical_date=date), now=now)
    await channels.runs.put(RunCreated(key))


def simulate(simulated: Simulated, act: Callable | None, lasts: timedelta) -> dict[tuple[str, str], TaskInstanceRow]:
    """Act while a scheduler serves, and return the task instances in the end."""
    found: dict[tuple[str, str], TaskInstanceRow] = {}

    async def act_and_read(channels: Channels) -> None:
        if act is not None:
            await act(channels)
        await simulated.clock.sleep(lasts - (simulated.clock.now() - START) - MINUTE)
        found.update(await tasks_of(simulated))

    simulated.act = act_and_read
    simulated.run_for(lasts)
    return found


@pytest.mark.parametrize("maker", ["a person", "a backfill"])
def test_a_run_follows_one_that_is_made_between_it_and_the_run_before(simulated, maker):
    with DAG("d", schedule="@daily", start_date=START - timedelta(days=20), end_date=START - timedelta(days=19)) as dag:
        wait = BashOperator(task_id="wait", bash_command="true")
        depends = BashOperator(task_id="depends", bash_command="true", depends_on_past=True)
        wait >> depends >> BashOperator(task_id="long", bash_command="true")
    lasting = {("first", "long"): 600 * MINUTE, ("later", "wait"): 60 * MINUTE}

    def duration(run_id: str, task_id: str) -> timedelta:
        usual = 90 * MINUTE if task_id == "depends" and run_id not in ("first", "later") else MINUTE
        return lasting.get((run_id, task_id), usual)

    made = simulated(dag, duration, 30.0)

    async def act(channels: Channels) -> None:
        await trigger(made, channels, "first", 1)
        await made.clock.sleep(30 * MINUTE)
        await trigger(made, channels, "later", 9)
        await made.clock.sleep(5 * MINUTE)
        if maker == "a person":
            await trigger(made, channels, "between", 5)
        else:
            date = datetime(2026, 1, 5, tzinfo=UTC)
            plan = BackfillPlan("d", date, date, reprocess="completed")
            await made.database.write(create_backfill, plan, actor="me", now=made.clock.now())
            await channels.limits.put(BackfillChanged("d"))

    found = simulate(made, act, timedelta(hours=5))
    [between] = [row for (run_id, name), row in found.items() if name == "depends" and run_id not in ("first", "later")]
    assert between.ended_at > found["later", "wait"].ended_at
    assert found["later", "depends"].queued_at == between.ended_at


@pytest.mark.parametrize("max_active_runs", [1, 16])
def test_a_run_begins_in_the_instant_in_which_the_one_it_depends_on_ends(simulated, max_active_runs):
    with DAG("d", schedule="*/10 * * * *", start_date=START, catchup=True, max_active_runs=max_active_runs) as dag:
        BashOperator(task_id="t", bash_command="true", depends_on_past=True)
    found = simulate(simulated(dag, lambda *_: 10 * MINUTE), None, timedelta(hours=1))
    rows = sorted(found.values(), key=lambda row: row.queued_at)
    assert len(rows) > 4
    assert [after.queued_at for after in rows[1:]] == [before.ended_at for before in rows if before.ended_at]


def test_a_dag_that_was_unpaused_while_it_had_no_run_starts_its_backfill(simulated):
    with DAG("d", schedule="@daily", start_date=START - timedelta(days=20), catchup=False) as dag:
        BashOperator(task_id="t", bash_command="true")
    made = simulated(dag, lambda *_: 10 * MINUTE)

    async def pause(channels: Channels, *, paused: bool) -> None:
        await made.database.write(set_paused, "d", paused, made.clock.now())
        await channels.dag_changes.put(DagChanged("d"))
        await channels.limits.put(DagChanged("d"))

    async def act(channels: Channels) -> None:
        await made.clock.sleep(MINUTE)
        await pause(channels, paused=True)
        await made.clock.sleep(14 * MINUTE)
        await pause(channels, paused=False)
        plan = BackfillPlan("d", START - timedelta(days=5), START - timedelta(days=3))
        await made.database.write(create_backfill, plan, actor="me", now=made.clock.now())
        await channels.limits.put(BackfillChanged("d"))

    found = simulate(made, act, timedelta(hours=2))
    backfilled = [row for (run_id, _), row in found.items() if run_id.startswith("backfill")]
    assert [row.queued_at - START for row in backfilled] == [15 * MINUTE] * len(backfilled) != []


def test_a_run_that_is_cleared_has_its_deadline_again(simulated):
    alert = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, 20 * SECOND, callback=AsyncCallback("m.f"))
    with DAG("d", schedule=None, start_date=START, deadline=alert) as dag:
        BashOperator(task_id="t", bash_command="true")
    durations = chain([5 * SECOND], repeat(600 * SECOND))
    made, states = simulated(dag, lambda *_: next(durations)), []

    async def act(channels: Channels) -> None:
        await trigger(made, channels, "r", 1)
        await made.clock.sleep(100 * SECOND)
        [run] = await made.runs("d")
        await made.database.write(submit_request, run.key, ClearTasks(), actor="me", now=made.clock.now())
        await channels.runs.put(RunEdited(run.key))
        for _ in range(2):
            await made.clock.sleep(15 * SECOND)
            states.extend(await made.database.read(lambda conn: conn.scalars(sa.select(deadline.c.state)).all()))

    simulate(made, act, timedelta(minutes=30))
    assert states == ["pending", "missed"]
