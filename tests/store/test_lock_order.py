"""Transactions that change the same rows on PostgreSQL wait for one another, and never in a ring."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from asynsched import DAG, EmptyOperator
from asynsched.errors import StoreError
from asynsched.executors.tokens import new_callback_token
from asynsched.keys import DagRunKey
from asynsched.lease.held_lease import register
from asynsched.scheduling.creation.backfills import cancel_backfill
from asynsched.scheduling.requests.run_requests import run_again
from asynsched.serialization.encode import serialize_dag
from asynsched.states import DagRunState
from asynsched.store import rows
from asynsched.store.dags.dags import add_versions
from asynsched.store.dags.files import claim_from_the_gone, claim_unclaimed, drop_claims
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.backfills import add_backfill, add_dates
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.queue import give_back_run, take_over_runs
from asynsched.store.runs.transitions import Batch, ExpandedWrite, RunWrite, Stale, TaskWrite, apply, apply_at_once
from asynsched.store.runs.xcoms import get_xcoms, put_xcom_of_try
from asynsched.store.schedulers import remove_scheduler
from asynsched.store.schema import CallbackRequest, DagVersionRow, XComRow, callback_request, task_instance
from asynsched.store.tickets import add_tickets
from tests.store.test_runs import NOW, new_run, task
from tests.store.test_tickets import launch_of

RUNS = (1, 2, 3)
NAMES = "abcdef"
FILES = ["b.py", "a.py", "B.py", "_.py"]
KEYS = [(run, name, -1) for run in RUNS for name in NAMES]
Work = Callable[[sa.Connection], Any]
WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
WAITS_FOR_US = "SELECT bool_or(pg_backend_pid() = ANY (pg_blocking_pids(pid))) FROM pg_locks WHERE NOT granted"
BLOCKED = "SELECT DISTINCT pid, pg_blocking_pids(pid) AS by FROM pg_locks WHERE NOT granted"


def prepare(conn: sa.Connection) -> None:
    """Give three runs to the scheduler `gone`, with rows that lie on the disk in no order of theirs."""
    for name, home in (("gone", "one"), ("me", "other")):
        register(
            conn, scheduler_id=name, hostname="host", pid=1, home=home, version="1", now=NOW, lease_until=NOW,
            takeover_seconds=30.0,
        )  # fmt: skip
    for run in RUNS:
        run_id = insert_run(conn, new_run(f"r{run}", logical_date=None, state=DagRunState.RUNNING))
        assert run_id == run
    conn.execute(sa.text("UPDATE dag_run SET scheduler_id = 'gone', lease_epoch = 1"))
    apply(conn, Batch(1, new_tasks=[task(*key[:2], "running", try_number=1) for key in KEYS]))
    claim_unclaimed(conn, FILES, "gone", NOW)
    conn.execute(sa.text("UPDATE parse_claim SET claimed_at = claimed_at WHERE path IN ('B.py', '_.py')"))
    for table in ("task_instance", "dag_run"):
        conn.execute(sa.text(f"UPDATE {table} SET reason = 'moved' WHERE id % 2 = 0"))


def ends_of(keys: list[tuple[int, str, int]], *runs: int, state: str = "success") -> Batch:
    """Return the batch of the ends of these tasks, and of these runs."""
    tasks: list[TaskWrite] = [task(*key[:2], state, before_state="running", before_try=1, try_number=1) for key in keys]
    return Batch(
        1, tasks=tasks, runs=[RunWrite(run, "running", 1, state, "", NOW, NOW, None, "gone", 1, NOW) for run in runs]
    )


def ended(*keys_and_runs: Any, state: str = "success") -> Callable[[sa.Connection], Stale]:
    """Return the query that stores these ends."""
    return lambda conn: apply(conn, ends_of(*keys_and_runs, state=state))


def ended_at_once(*keys_and_runs: Any, state: str = "success") -> Callable[[sa.Connection], Stale]:
    """Return the query that stores these ends, in one statement if possible."""
    batch = ends_of(*keys_and_runs, state=state)
    nothing = Stale(frozenset(), frozenset())
    return lambda conn: nothing if apply_at_once(conn, batch, {}) else apply(conn, batch)


def expanded(conn: sa.Connection) -> int:
    """Store that tasks of a run have got their instances, and that the run goes on."""
    gone = [ExpandedWrite(2, name, -1, "running") for name in NAMES]
    apply(
        conn, Batch(1, expanded=gone, runs=[RunWrite(2, "running", 1, "running", "", NOW, None, None, "gone", 1, NOW)])
    )
    return len(gone)


def know_dag(conn: sa.Connection) -> None:
    with DAG("d") as dag:
        EmptyOperator(task_id="a")
    serialized = msgspec.json.encode(serialize_dag(dag))
    add_versions(conn, [DagVersionRow("d", 1, "1", "d.py", serialized, (), NOW)])


def take_over(conn: sa.Connection) -> int:
    remove_scheduler(conn, "gone", NOW)
    return len(take_over_runs(conn, "me", 2))


def give_back(conn: sa.Connection) -> bool:
    return give_back_run(conn, 2, "gone", 1)


def start_again(conn: sa.Connection) -> int:
    return register(
        conn, scheduler_id="heir", hostname="host", pid=2, home="one", version="1", now=NOW, lease_until=NOW,
        takeover_seconds=30.0,
    )  # fmt: skip


def take_claims(conn: sa.Connection) -> int:
    return len(claim_from_the_gone(conn, FILES, "me", NOW, silent=["gone"]))


def drop_own_claims(conn: sa.Connection) -> int:
    for way in ("indexscan", "bitmapscan"):  # in every plan of the server: here, in the order of the rows on disk
        conn.execute(sa.text(f"SET LOCAL enable_{way} = off"))
    return len(drop_claims(conn, FILES, "gone"))


FORTH, BACK = ended(KEYS), ended(KEYS[::-1], state="failed")
ENDED_RUNS, ENDED_RUNS_BACK = ended(KEYS, *RUNS), ended(KEYS[::-1], *RUNS[::-1], state="failed")
AT_ONCE, AT_ONCE_BACK = ended_at_once(KEYS, *RUNS), ended_at_once(KEYS[::-1], *RUNS[::-1], state="failed")
TASK, RUN, CLAIM = "task_instance WHERE id = 9", "dag_run WHERE id = 2", "parse_claim WHERE path = '_.py'"
"""The row at which the two meet: a third transaction holds it until both wait."""
MEETINGS = {
    "two-batches": (FORTH, BACK, TASK),
    "two-batches-with-runs": (ENDED_RUNS, ENDED_RUNS_BACK, RUN),
    "batch-and-takeover": (BACK, take_over, TASK),
    "takeover-and-batch": (take_over, BACK, TASK),
    "takeover-and-ended-runs": (take_over, ENDED_RUNS_BACK, TASK),
    "ended-runs-and-takeover": (ENDED_RUNS_BACK, take_over, RUN),
    "expanded-and-takeover": (expanded, take_over, TASK),
    "given-back-and-ended": (give_back, ENDED_RUNS, RUN),
    "ended-and-given-back": (ENDED_RUNS_BACK, give_back, TASK),
    "ended-and-inherited": (ENDED_RUNS_BACK, start_again, RUN),
    "inherited-and-ended": (start_again, ENDED_RUNS_BACK, RUN),
    "claims-taken-and-dropped": (take_claims, drop_own_claims, CLAIM),
    "claims-dropped-and-taken": (drop_own_claims, take_claims, CLAIM),
    "two-batches-at-once": (AT_ONCE, AT_ONCE_BACK, RUN),
    "at-once-and-batch": (AT_ONCE, ENDED_RUNS_BACK, TASK),
    "at-once-and-batch-of-runs": (AT_ONCE, ENDED_RUNS_BACK, RUN),
    "batch-and-at-once": (ENDED_RUNS, AT_ONCE_BACK, TASK),
    "at-once-and-takeover": (AT_ONCE_BACK, take_over, RUN),
    "takeover-and-at-once": (take_over, AT_ONCE_BACK, TASK),
    "at-once-and-inherited": (AT_ONCE_BACK, start_again, TASK),
}


@pytest.fixture
async def opened(postgres_url):
    # On a busy machine it may take a while until both wait.
    database = await open_database(f"{postgres_url}&lock_timeout=60s&statement_timeout=60s")
    await database.write(prepare)
    holder = await asyncpg.connect(postgres_url)
    yield database, holder
    await holder.close()
    await database.close()


def n_ended(conn: sa.Connection) -> int:
    return conn.scalar(sa.text("SELECT count(*) FROM task_instance WHERE state <> 'running'"))


async def meet(opened, one: Work, other: Work, held: str) -> list[Any]:
    """Make both wait for a row of a third transaction, then for one another; return their results."""
    database, holder = opened

    async def until_it_waits(*begun: asyncio.Task[Any]) -> None:
        while sum(not one.done() for one in begun) > await holder.fetchval(WAITING):
            pass

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute(f"SELECT 1 FROM {held} FOR NO KEY UPDATE")
        first = tasks.create_task(database.write(one))
        await until_it_waits(first)
        second = tasks.create_task(database.write(other))
        await until_it_waits(first, second)
        blocked = {row["pid"]: set(row["by"]) for row in await holder.fetch(BLOCKED)}
        do_meet = any(by & blocked.keys() for by in blocked.values())
        passes_by = other is take_over and second.done()  # it leaves locked runs alone
        assert do_meet or passes_by, "one waits for the other"
    return [first.result(), second.result()]


@pytest.mark.parametrize(("one", "other", "held"), MEETINGS.values(), ids=MEETINGS)
async def test_two_that_change_the_same_rows_in_opposite_order_both_end(opened, one, other, held):
    results = await meet(opened, one, other, held)
    said = [len(KEYS) - len(result.tasks) for result in results if isinstance(result, Stale)]
    assert await opened[0].read(n_ended) == sum(said), "a batch knows the rows that it could not write"


async def test_more_runs_than_one_statement_takes_are_locked_in_order(opened, monkeypatch):
    monkeypatch.setattr(rows, "MOST_PARAMETERS", 1)
    one, other = await meet(opened, ended([], *RUNS), ended([], *RUNS[::-1], state="failed"), RUN)
    assert sorted([*one.runs, *other.runs]) == list(RUNS), "one of them has ended them all"


@pytest.mark.parametrize(
    ("table", "column", "value"), [("dag_run", "queued_at", "now()"), ("task_instance", "priority_weight", "7")]
)
async def test_ends_are_written_at_once_beside_another_change_of_their_rows(opened, table, column, value):
    database, holder = opened
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute(f"UPDATE {table} SET {column} = {value} WHERE id = 2")
        written = tasks.create_task(database.write_at_once(apply_at_once, ends_of(KEYS, *RUNS), {}))
        while not written.done() and not await holder.fetchval(WAITS_FOR_US):
            pass
    assert written.result()
    assert await database.read(n_ended) == len(KEYS)
    assert await holder.fetchval("SELECT count(*) FROM dag_run WHERE state = 'success'") == len(RUNS)


async def test_runs_of_a_cancelled_backfill_are_locked_by_their_ids(opened):
    database, holder = opened

    def plan(conn: sa.Connection) -> int:
        know_dag(conn)
        conn.execute(sa.text("UPDATE dag_run SET state = 'queued'"))
        backfill_id = add_backfill(
            conn, {}, dag_id="d", from_date=NOW, to_date=NOW, reprocess="none", is_reverse=True, max_active_runs=1,
            actor="me", created_at=NOW,
        )  # fmt: skip
        add_dates(conn, backfill_id, [(NOW + timedelta(days=run), run, None) for run in RUNS[::-1]])
        return backfill_id

    backfill_id = await database.write(plan)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute("SELECT 1 FROM dag_run WHERE id = 2 FOR NO KEY UPDATE")
        cancelled = tasks.create_task(database.write(partial(cancel_backfill, actor="me", now=NOW), backfill_id))
        while not cancelled.done() and not await holder.fetchval(WAITS_FOR_US):
            pass
        assert not cancelled.done(), "it waits for the run"
        await holder.execute("SELECT 1 FROM dag_run WHERE id = 3 FOR NO KEY UPDATE NOWAIT")
    assert (cancelled.result().cancelled_at, cancelled.result().n_failed) == (NOW, 3)


async def test_a_callbacks_run_is_locked_before_it_when_its_ticket_is_added(opened):
    database, holder = opened
    launch = replace(launch_of(new_callback_token()), callback={"event": "on_failure"})
    add = partial(add_tickets, digests={launch.token: "digest"}, executor="far", owner="me", epoch=2, now=NOW)

    def begin(conn: sa.Connection) -> None:
        request = CallbackRequest(
            id=1, dag_run_id=2, event="on_failure", state="running", token=launch.token, created_at=NOW,
            scheduler_id="me",
        )  # fmt: skip
        conn.execute(callback_request.insert(), msgspec.structs.asdict(request))

    await database.write(begin)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute("SELECT 1 FROM dag_run WHERE id = 2 FOR UPDATE")  # as its deletion does
        added = tasks.create_task(database.write(add, [launch]))
        while not added.done() and not await holder.fetchval(WAITS_FOR_US):
            pass
        assert not added.done(), "it waits for the run"
        await holder.execute("SELECT 1 FROM callback_request FOR UPDATE NOWAIT")
    assert added.result().own == {launch.token}


async def test_what_an_old_try_pushes_while_its_task_is_cleared_is_refused(opened):
    database, holder = opened

    def set_token(conn: sa.Connection, token: str | None) -> None:
        conn.execute(sa.update(task_instance).where(task_instance.c.id == 1).values(token=token))

    await database.write(set_token, "old")
    value = XComRow(1, "a", -1, "k", b"1", NOW)
    async with asyncio.timeout(60), holder.transaction():
        # As a clear does, which has not committed yet.
        await holder.execute("UPDATE task_instance SET token = NULL WHERE id = 1")
        pushed = asyncio.create_task(database.write(put_xcom_of_try, value, "old"))
        while not pushed.done() and not await holder.fetchval(WAITS_FOR_US):
            pass
        assert not pushed.done(), "it waits for the clear"
    with pytest.raises(StoreError, match="goes on without this try"):
        await pushed
    assert await database.read(get_xcoms, 1, key="return_value") == []


async def test_a_run_that_starts_again_is_locked_before_its_tasks(opened):
    database, holder = opened

    def end(conn: sa.Connection) -> None:
        know_dag(conn)
        ENDED_RUNS(conn)

    await database.write(end)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, holder.transaction():
        await holder.execute("SELECT 1 FROM dag_run WHERE id = 2 FOR NO KEY UPDATE")
        again = tasks.create_task(database.write(run_again, DagRunKey("d", "r2"), NOW, latest=True))
        while not again.done() and not await holder.fetchval(WAITS_FOR_US):
            pass
        assert not again.done(), "it waits for the run"
        await holder.execute("SELECT 1 FROM task_instance WHERE dag_run_id = 2 FOR NO KEY UPDATE NOWAIT")
