"""Runs that go from one scheduler to another: whose scheduler is gone, or cannot read them."""

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from asynsched import DAG, BashOperator
from asynsched.bell import Hint
from asynsched.channels import RunsOrphaned, TriggerFired, TryReported
from asynsched.lease.held_lease import unregister
from asynsched.protocol.messages import Deferral, Ended, TriggerOutcome
from asynsched.scheduling.creation.backfills import BackfillPlan, create_backfill
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.store.runs.backfills import list_backfills
from asynsched.store.runs.pools import set_pool
from asynsched.store.schedulers import notify, register_scheduler
from asynsched.store.schema import dag_version, task_instance
from tests.support.peers import CLOCK, N_RUNS, Peer, dag_of, serve_both, two_schedulers
from tests.support.waiting import eventually


@pytest.mark.parametrize("how", ["left", "next of its home"])
async def test_the_runs_of_one_that_is_gone_go_on_with_another(postgres_url, tmp_path, how):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        peers.serve(one)
        await peers.trigger(dag_of(2), 2)
        await eventually(lambda: len(one.running) == 4, "one runs all")
        lost = dict(one.running)
        peers.serve(other)
        if how == "next of its home":
            # Its keeper may still run its tries: no other scheduler may take them, not even for a moment.
            await peers.database.write(
                register_scheduler, scheduler_id="heir", hostname="h", pid=1, home="one", version="1", now=CLOCK.now(),
                lease_until=CLOCK.now(), takeover_seconds=30,
            )  # fmt: skip
            one.limit_to(0)
            other.channels.runs.put_nowait(RunsOrphaned())
            await peers.database.write(create_manual_run, "d", Trigger(run_id="later"), now=CLOCK.now())
            await peers.database.write(notify, Hint("run", "d", "later"))
            await eventually(lambda: other.running, "the other has looked, and runs the ownerless runs")
            assert await peers.owners() == {one.epoch: 2, other.epoch: 1}
            return
        await peers.database.write(unregister, "one", CLOCK.now())
        other.channels.runs.put_nowait(RunsOrphaned())
        # Whether they have begun is not known: they are lost, and begin again.
        await eventually(lambda: sorted(other.running.values()) == sorted(lost.values()), "the other runs all")
        assert not other.running.keys() & lost.keys()
        assert await peers.owners() == {other.epoch: 2}
        # The one that was taken for gone wakes up: nothing that it says counts any more.
        one.end(*lost)
        await eventually(lambda: one.evaluator.n_runs == 0, "it has let go of the runs")
        assert set((await peers.states()).values()) == {"running"}
        other.end(*other.running)
        await peers.until_all_are("success")


@pytest.mark.parametrize("shared", ["pool", "max_active_runs", "max_active_tis_per_dag"])
async def test_what_the_runs_of_one_that_is_gone_have_used_is_free_once_they_end(postgres_url, tmp_path, shared):
    """Others' shares of a limit are known from an earlier refusal: some of them are the heir's own now."""
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        await peers.database.write(set_pool, "narrow", 1)
        task_options = {"pool": {"pool": "narrow"}, "max_active_tis_per_dag": {"max_active_tis_per_dag": 1}}.get(shared)
        dag = dag_of(task_options=task_options, max_active_runs=1 if shared == "max_active_runs" else 16)
        other.limit_to(0)
        for peer in peers.both:
            peers.serve(peer)
        await peers.trigger(dag, 1)
        await eventually(lambda: one.running, "one runs it")
        one.limit_to(1)
        other.limit_to(N_RUNS)
        await peers.database.write(create_manual_run, "d", Trigger(run_id="later"), now=CLOCK.now())
        await peers.database.write(notify, Hint("run", "d", "later"))
        # Once it has nothing to do but to wait, it has been refused.
        await eventually(lambda: has_been_refused(other, shared), "the other knows that the limit is full")
        one.running.clear()  # with that scheduler they are gone
        await peers.database.write(unregister, "one", CLOCK.now())
        other.channels.runs.put_nowait(RunsOrphaned())
        done = await peers.end_one_by_one(2, limit=1)
        assert done == {("r0", "t0"): 1, ("later", "t0"): 1}


async def test_who_takes_over_a_deferred_task_waits_for_its_trigger(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        peers.serve(one)
        await peers.trigger(dag_of(), 1)
        await eventually(lambda: one.running, "one runs it")
        [token] = one.running
        deferral = Deferral("module.Trigger", {"a": 1}, "go_on")
        deferred = Ended(token, "deferred", CLOCK.now(), CLOCK.now(), "waits", deferral=deferral)
        one.channels.reports.put_nowait(TryReported(deferred))
        await eventually(lambda: one.channels.triggers.qsize(), "it is stored as deferred")
        peers.serve(other)
        await peers.database.write(unregister, "one", CLOCK.now())
        other.channels.runs.put_nowait(RunsOrphaned())
        await eventually(lambda: other.channels.triggers.qsize(), "the other wants the trigger")
        [wanted] = other.channels.triggers.take()
        assert (wanted.trigger.id, wanted.trigger.kwargs) == (token, {"a": 1})
        assert not other.running
        other.channels.reports.put_nowait(TriggerFired(TriggerOutcome(token, "event", payload=3)))
        await eventually(lambda: other.running, "it goes on")
        other.end(*other.running)
        await peers.until_all_are("success")
        tries = await peers.database.read(lambda conn: conn.scalars(sa.select(task_instance.c.try_number)).all())
        assert tries == [1], "it was the same try all the time"


async def test_a_backfill_keeps_its_own_limit_when_its_runs_are_taken_over(postgres_url, tmp_path):
    first, last = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
    plan = BackfillPlan("d", first, last, max_active_runs=2, is_reverse=True)
    with DAG("d", schedule="@daily", start_date=first, max_active_runs=1) as dag:
        BashOperator(task_id="t0", bash_command="true")
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        await peers.trigger(dag, 0)
        await peers.database.write(create_backfill, plan, actor="me", now=CLOCK.now())
        serve_both(peers, n_runs=N_RUNS)
        other.limit_to(0)
        await peers.database.write(notify, Hint("backfill", "d"))
        await eventually(lambda: len(one.running) == 2, "one runs as many as may run")
        other.limit_to(N_RUNS)
        one.limit_to(0)
        one.running.clear()  # with that scheduler they are gone
        await peers.database.write(unregister, "one", CLOCK.now())
        other.channels.runs.put_nowait(RunsOrphaned())
        done = await peers.end_one_by_one(4, limit=2)
        assert set(done.values()) == {1}
        await peers.until_all_are("success")
        [found] = await peers.database.read(list_backfills)
        assert (found.state, found.n_success) == ("completed", 4)


def has_been_refused(peer: Peer, shared: str) -> bool:
    """Whether a scheduler knows others' shares of a limit."""
    evaluator = peer.evaluator
    if shared == "max_active_runs":
        return bool(evaluator._intake.places.queue._elsewhere)
    if shared == "pool":
        return evaluator.evaluation.ready.pool("narrow").elsewhere == 1
    return any(limit.elsewhere for limit in evaluator.evaluation.ready.all_shared)


async def test_a_run_that_waited_here_when_another_began_it_is_taken_over_once(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        one, other = peers.both
        one.limit_to(1)
        other.limit_to(0)
        assert not other.evaluator.is_idle, "it does not know the waiting runs yet"
        peers.serve(other)
        await eventually(lambda: other.evaluator.is_idle, "it knows that nothing waits")
        await peers.trigger(dag_of(max_active_runs=100), 1)
        await eventually(lambda: other.evaluator._intake.may_start_any, "the other takes it for queued")
        peers.serve(one)
        await eventually(lambda: one.running, "one runs it")
        await peers.database.write(unregister, "one", CLOCK.now())
        other.channels.runs.put_nowait(RunsOrphaned())
        other.limit_to(N_RUNS)
        await eventually(lambda: other.running, "the other has it")
        await peers.database.write(create_manual_run, "d", Trigger(run_id="later"), now=CLOCK.now())
        await peers.database.write(notify, Hint("run", "d", "later"))
        await eventually(lambda: ("later", "t0") in other.running.values(), "the queue has been examined")
        assert sorted(other.running.values()) == [("later", "t0"), ("r0", "t0")]
        other.end(*other.running)
        await peers.until_all_are("success")


async def test_a_run_whose_code_only_a_newer_version_can_read_is_left_to_that_one(postgres_url, tmp_path):
    async with two_schedulers(postgres_url, tmp_path) as peers:
        dag = dag_of()
        await peers.trigger(dag, 1)
        stored = await peers.database.read(lambda conn: conn.scalar(sa.select(dag_version.c.serialized)))
        newer = sa.update(dag_version).values(serialized=b'{"from": "tomorrow"}')
        await peers.database.write(lambda conn: conn.execute(newer))
        with capture_logs() as logs:
            serve_both(peers)
            await eventually(
                lambda: [line["event"] for line in logs].count("run.left_to_others") >= 2, "both have seen it"
            )
        assert await peers.states() == {"r0": "queued"}

        def can_be_read(conn: sa.Connection) -> None:
            conn.execute(sa.update(dag_version).values(serialized=stored))
            notify(conn, Hint("run", "d", "r0"))

        await peers.database.write(can_be_read)
        await eventually(lambda: len(peers.running) == 1, "it starts with who can read it")
