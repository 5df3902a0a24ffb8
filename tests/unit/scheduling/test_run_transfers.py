"""Runs whose scheduler is gone: taken over once, also if an answer is lost, and given back by who cannot read them."""

from collections import Counter
from contextlib import suppress

import pytest
import sqlalchemy as sa
from msgspec import Raw
from structlog.testing import capture_logs

from asynsched import DAG, BashOperator, PythonOperator
from asynsched.channels import RunEdited, RunsOrphaned, TryReported
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.protocol.messages import Ended
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.states import SLOT_TASK_STATES
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.pools import pool_use_elsewhere, set_pool
from asynsched.store.runs.queue import take_over_runs
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkRun, MarkTasks
from asynsched.store.schedulers import register_scheduler, remove_scheduler
from asynsched.store.schema import callback_request, dag_run, dag_version, task_instance, task_instance_history
from tests.support.flaky_database import FlakyDatabase
from tests.support.lone_evaluator import LoneEvaluator, run_on, serving
from tests.support.runs import NOON
from tests.support.stored import store_dag

OF_ITS_HOME = {
    "hostname": "gone", "pid": 2, "home": "gone", "version": "1", "now": NOON, "lease_until": NOON,
    "takeover_seconds": 30,
}  # fmt: skip


@pytest.fixture
async def database():
    database = open_inline()
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="true", pool="narrow", on_success_callback=print)
    await database.write(store_dag, dag)
    await database.write(set_pool, "narrow", 1)
    yield database
    await database.close()


async def owners(database: Database) -> list[tuple[str | None, int, int]]:
    """Return who owns each run, under which epoch, and which epoch its tasks have."""
    query = (
        sa.select(dag_run.c.scheduler_id, dag_run.c.lease_epoch, task_instance.c.lease_epoch)
        .join(task_instance, task_instance.c.dag_run_id == dag_run.c.id)
        .order_by(dag_run.c.id)
    )
    return [tuple(row) for row in await database.read(lambda conn: conn.execute(query).all())]


async def states(database: Database) -> Counter[str]:
    query = sa.select(task_instance.c.state)
    return Counter(await database.read(lambda conn: conn.scalars(query).all()))


async def make_unreadable(database: Database) -> bytes:
    """Replace the DAG's code by a text that only a newer version can read; return the old text."""
    stored = await database.read(lambda conn: conn.scalar(sa.select(dag_version.c.serialized)))
    await write_code(database, b'{"from": "tomorrow"}')
    return stored


async def write_code(database: Database, serialized: bytes) -> None:
    await database.write(lambda conn: conn.execute(sa.update(dag_version).values(serialized=serialized)))


async def test_a_takeover_with_a_lost_answer_loses_no_try_and_doubles_no_slot(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    lost = await run_on(gone, database, "r0")
    flaky = FlakyDatabase(database, after=True)
    heir = await serving(flaky, tmp_path, "heir")
    await database.write(remove_scheduler, "gone", NOON)
    flaky.away = {"take_over_runs"}
    with pytest.raises(StoreUnavailable):
        await heir.tick(RunsOrphaned())
    assert await owners(database) == [("heir", heir.epoch, heir.epoch)], "it was done"
    # Whether it was begun is not known: it may have ended on the other home. So it is lost, and gives back its slot.
    begun = await run_on(heir, database, "r1")
    assert [*begun.values()] == ["r1"]
    counted = await states(database)
    assert sum(counted[state] for state in SLOT_TASK_STATES) == 1, "the pool has one slot"
    heir.end(*begun)
    await heir.tick()
    heir.clock.leap(2)
    another = await heir.tick()
    assert [*another.values()] == ["r0"]
    assert not another.keys() & lost.keys()


async def test_a_waiting_try_of_the_own_home_is_launched_again_with_its_token(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    launched = await run_on(gone, database, "r0")
    epoch = await database.write(register_scheduler, scheduler_id="next", **OF_ITS_HOME)
    following = LoneEvaluator(database, tmp_path, "next", epoch, {})
    await following.evaluator.recover(Held(), NOON)
    assert await following.tick() == launched


async def test_a_try_submitted_before_the_machine_started_is_never_started(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    launched = await run_on(gone, database, "r0")
    epoch = await database.write(register_scheduler, scheduler_id="next", **OF_ITS_HOME)
    following = LoneEvaluator(database, tmp_path, "next", epoch, {}, boot="second")
    await following.evaluator.recover(Held(), NOON)
    assert await following.tick() == {}
    assert await states(database) == {"up_for_retry": 1}, "the machine ended it: that is made up for"
    following.clock.leap(2)
    another = await following.tick()
    assert [*another.values()] == ["r0"]
    assert not another.keys() & launched.keys()


async def test_a_try_that_ended_without_a_scheduler_keeps_its_end_when_cleared(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    [token] = await run_on(gone, database, "r")
    run = DagRunKey("d", "r")
    await database.write(remove_scheduler, "gone", NOON)
    await database.write(submit_request, run, ClearTasks(("t",)), actor="ann", now=NOON)
    epoch = await database.write(register_scheduler, scheduler_id="next", **OF_ITS_HOME)
    following = LoneEvaluator(database, tmp_path, "next", epoch, {})
    following.end(token)
    with capture_logs() as logs:
        await following.evaluator.recover(Held(ended=frozenset({token})), NOON)
        again = await following.tick()
    assert "run.ended" not in {line["event"] for line in logs}, "it has a task that is to run again"
    assert [*again.values()] == ["r"]
    assert token not in again
    kept = sa.select(task_instance_history.c.try_number, task_instance_history.c.state, task_instance_history.c.token)
    assert await database.read(lambda conn: conn.execute(kept).all()) == [(1, "success", token)]
    called = sa.select(callback_request.c.try_number, callback_request.c.event)
    assert await database.read(lambda conn: conn.execute(called).all()) == [(1, "on_success")]
    following.end(*again)
    await following.tick()
    assert (await database.read(get_run, *run)).state == "success"


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["", "taken over by the next on this home"])
async def test_a_run_waits_for_the_process_of_a_task_marked_while_it_ran(database, tmp_path, is_taken_over):
    scheduler = await serving(database, tmp_path, "home")
    begun = await run_on(scheduler, database, "r")
    run = DagRunKey("d", "r")
    await database.write(submit_request, run, MarkTasks(("t",), "success"), actor="ann", now=NOON)
    await scheduler.tick(RunEdited(run))
    assert await states(database) == {"success": 1}
    if is_taken_over:
        await database.write(remove_scheduler, "home", NOON)
        scheduler = await serving(database, tmp_path, "home", runs=frozenset(begun))
    assert (await database.read(get_run, *run)).state == "running", "cleared, it might be begun on another machine"
    assert not scheduler.evaluator.is_at_a_standstill
    with capture_logs() as logs:
        for _ in range(3):
            await scheduler.sweep()
    warned = [line["tokens"] for line in logs if line["event"] == "run.waits_for_processes"]
    assert warned == [[*begun]], "once, that something there cannot be killed"
    scheduler.end(*begun)
    await scheduler.tick()
    assert (await database.read(get_run, *run)).state == "success"


@pytest.mark.parametrize(
    ("wanted", "state", "reason", "n_ends"),
    [
        ([ClearTasks()], "running", "", 0),
        ([CancelRun()], "failed", "ann cancelled the run", 1),
        ([ClearTasks(), MarkRun("failed"), ClearTasks()], "running", "", 1),
        ([ClearTasks(latest=True)], "running", "", 0),
    ],
    ids=["clear", "cancel", "clear the marked task again", "clear onto a newer version"],
)
@pytest.mark.parametrize("is_away", [False, True], ids=["", "an answer is lost"])
async def test_requests_made_without_a_scheduler_come_before_any_decision(
    database, tmp_path, wanted, state, reason, n_ends, is_away
):
    scheduler = await serving(database, tmp_path, "home")
    await run_on(scheduler, database, "r")
    run = DagRunKey("d", "r")
    await database.write(submit_request, run, MarkTasks(("t",), "success"), actor="ann", now=NOON)
    await scheduler.tick(RunEdited(run))
    # Its scheduler dies, and then the process that the run has waited for: the next one would end the run at once.
    await database.write(remove_scheduler, "home", NOON)
    for request in wanted:
        await database.write(submit_request, run, request, actor="ann", now=NOON)
    with DAG("d") as dag:
        BashOperator(task_id="t", bash_command="echo newer", pool="narrow")
    await database.write(store_dag, dag)
    flaky = FlakyDatabase(database, after=True)
    flaky.away = {"do_request"} if is_away else set()
    epoch = await database.write(register_scheduler, scheduler_id="next", **OF_ITS_HOME)
    heir = LoneEvaluator(flaky, tmp_path, "next", epoch, {})
    with capture_logs() as logs:
        with suppress(StoreUnavailable):
            await heir.evaluator.recover(Held(), NOON)
        flaky.away = set()
        launched = await heir.tick()
    stored = await database.read(get_run, *run)
    assert (stored.state, stored.reason) == (state, reason)
    assert sum(line["event"] == "run.ended" for line in logs) == n_ends, "it ends as was wanted, or not at all"
    assert [*launched.values()] == ["r"] * (state == "running")


async def test_a_takeover_that_removes_an_instance_awaits_no_process_elsewhere(
    tmp_path,
):
    database = open_inline()
    with DAG("d") as dag:
        source = PythonOperator(task_id="source", python_callable=list)
        BashOperator.partial(task_id="t", bash_command="true").expand(env=source.output)
    await database.write(store_dag, dag)
    gone = await serving(database, tmp_path, "gone")
    [token] = await run_on(gone, database, "r")
    result = Ended(token, "success", NOON, return_value=Raw(b"[]"), result_length=2)
    gone.channels.reports.put_nowait(TryReported(result))
    assert len(await gone.tick()) == 2
    # As if it had been cleared, and had returned less.
    of, values = task_instance.c, sa.update(task_instance).values
    for change in (
        values(result_length=1).where(of.task_id == "source"),
        values(state=None, token=None).where(of.task_id == "t", of.map_index == 0),
    ):
        await database.write(lambda conn, change=change: conn.execute(change))
    await database.write(remove_scheduler, "gone", NOON)
    heir = await serving(database, tmp_path, "heir")
    heir.end(*heir.evaluator.evaluation.tries.awaited)
    await heir.tick()
    assert await states(database) == {"success": 2, "removed": 1}
    assert (await database.read(get_run, "d", "r")).state == "success"
    await database.close()


async def test_a_run_waits_for_the_process_of_a_removed_and_cleared_instance(tmp_path):
    database = open_inline()
    run = DagRunKey("d", "r")
    with DAG("d") as dag:
        source = PythonOperator(task_id="source", python_callable=list)
        BashOperator.partial(task_id="t", bash_command="true").expand(env=source.output)
    await database.write(store_dag, dag)
    scheduler = await serving(database, tmp_path, "home")

    async def returned(token: str, length: int) -> list[str]:
        result = Ended(token, "success", NOON, return_value=Raw(b"[1, 2]"), result_length=length)
        scheduler.channels.reports.put_nowait(TryReported(result))
        return [*await scheduler.tick()]

    async def clear(task_id: str, map_index: int | None = None) -> list[str]:
        request = ClearTasks((task_id,), map_index=map_index)
        await database.write(submit_request, run, request, actor="ann", now=NOON)
        return [*await scheduler.tick(RunEdited(run))]

    await returned(*await run_on(scheduler, database, "r"), 2)
    tokens = sa.select(task_instance.c.token).where(task_instance.c.task_id == "t").order_by(task_instance.c.map_index)
    first, second = await database.read(lambda conn: conn.scalars(tokens).all())
    scheduler.end(first)
    await scheduler.tick()
    await returned(*await clear("source"), 1)
    again = await clear("t", map_index=0)
    assert await states(database) == {"success": 1, "queued": 1, "removed": 1}
    await clear("t", map_index=1)
    scheduler.end(*again)
    await scheduler.tick()
    assert (await database.read(get_run, *run)).state == "running"
    scheduler.end(second)
    await scheduler.tick()
    assert (await database.read(get_run, *run)).state == "success"
    await database.close()


async def test_a_try_that_was_stored_beside_a_stale_change_is_launched(tmp_path):
    database = open_inline()
    with DAG("d", fail_fast=True) as dag:
        setup, fails, down, _ = (BashOperator(task_id=name, bash_command="true") for name in ("su", "f", "td", "o"))
        setup >> fails >> down.as_teardown(setups=setup)
    await database.write(store_dag, dag)
    scheduler = await serving(database, tmp_path, "home")
    await run_on(scheduler, database, "r")
    stored = sa.select(task_instance.c.task_id, task_instance.c.token).where(task_instance.c.token.is_not(None))

    async def tokens() -> dict[str, str]:
        return dict(tuple(row) for row in await database.read(lambda conn: conn.execute(stored).all()))

    scheduler.end((await tokens())["su"])
    await scheduler.tick()
    elsewhere = sa.update(task_instance).where(task_instance.c.task_id == "o").values(state="skipped")
    await database.write(lambda conn: conn.execute(elsewhere))
    failed = Ended((await tokens())["f"], "failed", NOON, NOON)
    scheduler.channels.reports.put_nowait(TryReported(failed))
    scheduler.end((await tokens())["o"])
    launched = await scheduler.tick()
    assert launched.keys() == {(await tokens())["td"]}
    scheduler.end(*launched)
    await scheduler.tick()
    assert (await database.read(get_run, "d", "r")).state == "failed"
    await database.close()


async def test_a_run_that_others_ended_and_cleared_before_it_was_taken_up_starts_at_once(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    begun = await run_on(gone, database, "r")
    flaky = FlakyDatabase(database)
    heir = await serving(flaky, tmp_path, "heir")
    await database.write(remove_scheduler, "gone", NOON)
    flaky.away = {"load_task_instances"}
    with pytest.raises(StoreUnavailable):
        await heir.tick(RunsOrphaned())
    for table in (dag_run, task_instance):
        again = sa.update(table).values(state="queued" if table is dag_run else None, lease_epoch=0)
        await database.write(lambda conn, again=again: conn.execute(again))
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(scheduler_id=None)))
    launched = await heir.tick(RunEdited(DagRunKey("d", "r")))
    assert [*launched.values()] == ["r"]
    assert not launched.keys() & begun.keys()


async def test_one_that_was_given_up_takes_over_nothing(database, tmp_path):
    gone, sleeper = [await serving(database, tmp_path, name) for name in ("gone", "sleeper")]
    await run_on(gone, database, "r0")
    for name in ("gone", "sleeper"):
        await database.write(remove_scheduler, name, NOON)
    assert await database.write(take_over_runs, "sleeper", sleeper.epoch) == []
    assert await sleeper.tick(RunsOrphaned()) == {}
    assert await owners(database) == [("gone", gone.epoch, gone.epoch)]


async def test_a_run_that_only_a_newer_version_can_read_is_given_back_once(database, tmp_path):
    gone = await serving(database, tmp_path, "gone")
    lost = await run_on(gone, database, "r0")
    older = await serving(database, tmp_path, "older")
    stored = await make_unreadable(database)
    await database.write(remove_scheduler, "gone", NOON)
    with capture_logs() as logs:
        assert await older.tick(RunsOrphaned()) == {}
        for _ in range(2):
            await older.sweep()
            assert await older.tick(RunsOrphaned()) == {}
    assert [line["event"] for line in logs] == ["runs.taken_over", "run.given_back"]
    assert await owners(database) == [(None, 0, 0)]
    used = await database.read(pool_use_elsewhere, older.epoch, frozenset())
    assert used == {"narrow": 1}, "its slots are another task's"
    await write_code(database, stored)
    newer = await serving(database, tmp_path, "newer")
    newer.clock.leap(2)
    another = await newer.tick()
    assert [*another.values()] == [*lost.values()]
    newer.end(*another)
    await newer.tick()
    assert await states(database) == {"success": 1}


@pytest.mark.parametrize("is_earlier", [False, True], ids=["", "an earlier try"])
async def test_a_run_that_cannot_be_read_stays_while_a_try_of_it_runs_here(database, tmp_path, is_earlier):
    gone = await serving(database, tmp_path, "gone")
    [token] = await run_on(gone, database, "r0")
    if is_earlier:
        for request in (MarkTasks(("t",), "failed"), ClearTasks(("t",))):
            await database.write(submit_request, DagRunKey("d", "r0"), request, actor="ann", now=NOON)
        assert await gone.tick(RunEdited(DagRunKey("d", "r0"))), "it is begun once more"
    await database.write(remove_scheduler, "gone", NOON)
    older = LoneEvaluator(database, tmp_path, "older", 2, {})
    await database.write(register_scheduler, scheduler_id="older", **OF_ITS_HOME)
    await make_unreadable(database)
    await older.evaluator.recover(Held(running=frozenset({token})), NOON)
    assert [message.token for message in older.channels.ready.take()] == [token], "the try is to be ended"
    await older.sweep()
    assert await owners(database) == [("older", 2, 2)]
    older.end(token)
    await older.tick()
    await older.sweep()
    assert await owners(database) == [(None, 0, 0)]
