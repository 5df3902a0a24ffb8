"""Each stored change of a run or a task instance has a number, in the order in which readers may rely on it."""

import random
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import asyncpg
import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.states import DagRunState
from asynsched.store.changes import (
    StoredNumbers,
    count_old_changes,
    delete_old_changes,
    read_changes,
    stored_numbers,
)
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.imported import ImportedRun, store_imported_run
from asynsched.store.runs.dag_runs import end_queued_run, insert_run
from asynsched.store.runs.queue import begin_again
from asynsched.store.runs.transitions import Batch, RunWrite, TaskWrite, apply, apply_at_once, take_for_begun
from asynsched.store.schema import Change, TaskInstanceRow, change, dag_run, task_instance
from tests.store.test_runs import NOW, new_run, task

ALL = 1_000_000


async def changes(database: Database, after: int = 0) -> list[Change]:
    return (await database.read_at_once(read_changes, after, limit=ALL)).changes


async def told(database: Database, after: int = 0) -> list[tuple[Any, ...]]:
    return [(c.kind, c.run_id, c.task_id, c.map_index, c.try_number, c.state) for c in await changes(database, after)]


def follow(row: TaskWrite, state: str | None, **fields: Any) -> TaskWrite:
    """Return the write that changes a task instance as `row` left it."""
    return msgspec.structs.replace(row, before_state=row.state, before_try=row.try_number, state=state, **fields)


async def test_every_kind_of_change_gets_a_number(database):
    run = await database.write(insert_run, new_run("r"))
    assert await told(database) == [("run", "r", "", -1, 0, "queued")]
    await database.write(begin_again, run, "s", 0, NOW)
    rows = [task(run, "a", None), task(run, "m", None, map_index=7)]
    await database.write(apply, Batch(0, new_tasks=rows))
    rows = [follow(row, "queued", try_number=1, reason="x" * 5000) for row in rows]
    await database.write(apply, Batch(0, tasks=rows))
    rows = [follow(row, "queued", try_number=2) for row in rows]
    assert await database.write_at_once(apply_at_once, Batch(0, tasks=rows), {})
    await database.write(take_for_begun, [run])
    ended = RunWrite(run, "running", 0, "success", "done", NOW, NOW, None, None, 0, NOW)
    await database.write(apply, Batch(0, runs=[ended]))
    of_tasks = [("task", "r", task_id, index) for task_id, index in (("a", -1), ("m", 7))]
    assert await told(database) == [
        ("run", "r", "", -1, 0, "queued"),
        ("run", "r", "", -1, 0, "running"),
        *[(*key, 0, None) for key in of_tasks],
        *[(*key, 1, "queued") for key in of_tasks],
        *[(*key, 2, "queued") for key in of_tasks],
        *[(*key, 2, "running") for key in of_tasks],
        ("run", "r", "", -1, 0, "success"),
    ]
    found = await changes(database)
    assert [c.number for c in found] == list(range(1, 12))
    assert {c.dag_id for c in found} == {"d"}
    assert (found[-1].reason, len(found[4].reason)) == ("done", 1000)
    assert all(datetime.now(UTC) - c.at < timedelta(minutes=5) for c in found)


async def test_what_changes_no_state_gets_no_number(database):
    run = await database.write(insert_run, new_run("r"))
    await database.write(apply, Batch(0, new_tasks=[task(run, "a", None)]))
    newest = len(await changes(database))

    def change_nothing(conn: Connection) -> None:
        conn.execute(sa.update(task_instance).values(lease_epoch=5, state=None, reason="other"))
        conn.execute(sa.update(dag_run).values(lease_epoch=5, state="queued"))
        conn.execute(sa.update(task_instance).where(sa.false()).values(state="queued"))
        conn.execute(sa.delete(task_instance))

    await database.write(change_nothing)

    def fail(conn: Connection) -> None:
        end_queued_run(conn, run, DagRunState.FAILED, "", NOW)
        raise ValueError("undone")

    with pytest.raises(ValueError, match="undone"):
        await database.write(fail)
    ended = new_run("old", logical_date=None, state="success", started_at=NOW, ended_at=NOW)
    of_run = TaskInstanceRow(dag_run_id=0, task_id="a", state="success", pool="default_pool")
    await database.write(store_imported_run, ImportedRun(ended, (of_run,)))
    assert await changes(database, newest) == []
    await database.write(store_imported_run, ImportedRun(new_run("next", logical_date=None)))
    assert await told(database, newest) == [("run", "next", "", -1, 0, "queued")]


async def test_a_reader_of_concurrent_writers_sees_every_change_once_and_in_order(database):
    n_writers, n_writes, draw = 6, 25, random.Random(7)
    ids = [await database.write(insert_run, new_run(f"r{n}", logical_date=None)) for n in range(n_writers)]
    position = len(await changes(database))
    seen: list[Change] = []

    def write(conn: Connection, rows: list[int], state: str, is_lost: bool) -> None:
        for row in sorted(rows):
            conn.execute(sa.update(dag_run).where(dag_run.c.id == row).values(state=state))
        if is_lost:
            raise ValueError("undone")

    async def write_often(number: int) -> None:
        for n in range(n_writes):
            try:
                await database.write(write, draw.sample(ids, 2), f"{number}.{n}", draw.random() < 0.2)
            except ValueError:
                await anyio.lowlevel.checkpoint()
        ended.append(number)

    ended: list[int] = []
    async with anyio.create_task_group() as group:
        for number in range(n_writers):
            group.start_soon(write_often, number)
        is_last = False
        while not is_last:
            is_last = len(ended) == n_writers
            found = await database.read_at_once(read_changes, position, limit=7)
            seen += found.changes
            is_last = is_last and found.is_last
            position = found.until
            await anyio.lowlevel.checkpoint()
    assert all(one.number < other.number for one, other in pairwise(seen))
    numbers = await database.read(lambda conn: list(conn.scalars(sa.select(change.c.number).order_by(change.c.number))))
    assert [c.number for c in seen] == numbers[n_writers:]
    last = {c.run_id: c.state for c in seen}
    rows = await database.read(lambda conn: conn.execute(sa.select(dag_run.c.run_id, dag_run.c.state)).all())
    assert last == dict(map(tuple, rows))


async def test_a_late_commit_is_waited_for_and_not_passed_over(postgres_url):
    update = "UPDATE dag_run SET state = $1 WHERE id = $2"
    async with AsyncExitStack() as stack:
        database = await open_database(postgres_url)
        stack.push_async_callback(database.close)
        ids = [await database.write(insert_run, new_run(f"r{n}", logical_date=None)) for n in (1, 2)]
        early, late, other = [await asyncpg.connect(postgres_url) for _ in range(3)]
        for connection in (early, late, other):
            stack.push_async_callback(connection.close)

        async def seen() -> list[tuple[str, str | None]]:
            return [(c.run_id, c.state) for c in await changes(database, 2)]

        # A transaction of another application does not matter, however long it takes.
        await other.execute("BEGIN; CREATE TABLE elsewhere (id integer); SELECT pg_advisory_xact_lock(7)")
        await late.execute("BEGIN")
        await late.execute(update, "a", ids[0])
        await early.execute(update, "b", ids[1])
        numbers = await database.read_at_once(stored_numbers)
        assert (numbers.settled, numbers.newest) == (2, 4)
        assert await seen() == []
        # It changes the same row as the one that has committed: the numbers follow the order of the row's states.
        await late.execute(update, "c", ids[1])
        assert await seen() == []
        # The locks of all transactions share one table, so a transaction of many statements takes a single one.
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1"
        assert await early.fetchval(locks, late.get_server_pid()) == 1
        await late.execute("COMMIT")
        assert await seen() == [("r1", "a"), ("r2", "b"), ("r2", "c")]
        # What a savepoint undoes, the lock included, the rest of the transaction does again.
        await late.execute("BEGIN; SAVEPOINT s")
        await late.execute(update, "undone", ids[0])
        await late.execute("ROLLBACK TO s")
        await late.execute(update, "e", ids[0])
        await early.execute(update, "f", ids[1])
        assert (await seen())[3:] == []
        await late.execute("COMMIT")
        assert (await seen())[3:] == [("r1", "e"), ("r2", "f")]
        await late.execute("BEGIN")
        await late.execute(update, "undone", ids[0])
        await early.execute(update, "d", ids[1])
        await late.execute("ROLLBACK")
        assert (await seen())[5:] == [("r2", "d")]


async def test_old_changes_go_by_age_and_number_in_small_batches(database):
    for n in range(10):
        await database.write(insert_run, new_run(f"r{n}", logical_date=None))
    future, past = datetime.now(UTC) + timedelta(days=1), datetime.now(UTC) - timedelta(days=1)
    assert await database.read(count_old_changes, before=past, most=None) == 0
    assert await database.read(count_old_changes, before=None, most=7) == 3
    assert await database.write(delete_old_changes, before=past, most=None, limit=100) == 0
    assert await database.write(delete_old_changes, before=None, most=7, limit=2) == 2
    assert await database.write(delete_old_changes, before=past, most=7, limit=2) == 1
    assert await database.write(delete_old_changes, before=None, most=7, limit=2) == 0
    assert await database.read_at_once(stored_numbers) == StoredNumbers(oldest=4, settled=10, newest=10)
    assert await database.read(count_old_changes, before=future, most=None) == 7
    assert await database.write(delete_old_changes, before=future, most=None, limit=100) == 7
    # Numbers never come back.
    assert await database.read_at_once(stored_numbers) == StoredNumbers(oldest=None, settled=10, newest=10)
    await database.write(insert_run, new_run("next", logical_date=None))
    assert [c.number for c in await changes(database)] == [11]
