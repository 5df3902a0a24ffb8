"""The database goes away while real tasks run: the scheduler waits, says so once, and goes on; tasks notice nothing."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import anyio
import asyncpg
import pytest
from structlog.testing import capture_logs

from asynsched import Scheduler
from asynsched.fernet_keys import keys_of
from asynsched.results import FinishedRun
from asynsched.settings import ParseSettings
from asynsched.store.dags.dags import list_dags
from asynsched.store.dags.files import list_errors
from asynsched.store.engines import postgres as postgres_engine
from asynsched.store.engines import sqlite_connection
from asynsched.store.engines.opening import open_database
from asynsched.store.engines.sqlite_connection import SqliteConnection
from asynsched.store.schema import pool
from asynsched.store.secrets import set_variable
from tests.support.database_gate import gate_before
from tests.support.flaky_database import FlakyDatabase
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.waiting import eventually

DAGS = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, Variable, task

    with DAG("asks"):
        @task(retries=3, retry_delay=0)
        def asks():
            folder = Path(os.environ["FOLDER"])
            with (folder / "begun").open("a") as begun:
                begun.write("x")
            while not (folder / "away").exists():
                time.sleep(0.01)
            Variable.set("colour", "green")
            return Variable.get("colour")

        asks()
"""
Outage = Callable[[], Awaitable[Callable[[], Awaitable[None]]]]
"""Takes the database away, and returns the function that brings it back."""


async def serve_through(options: dict, outage: Outage) -> tuple[FinishedRun, list[dict]]:
    """Serve a run whose task asks for something while the database is away; return the run, and the log."""
    folder = options["dags"].parent
    scheduler = Scheduler(**options)
    finished = []

    async def run() -> None:
        finished.append(await scheduler.run("asks"))

    with capture_logs() as logs:

        def said(event: str) -> list[dict]:
            return [line for line in logs if line["event"] == event]

        async with anyio.create_task_group() as tasks:
            await tasks.start(scheduler.serve)
            tasks.start_soon(run)
            await eventually((folder / "begun").exists, "the task has begun", seconds=60)
            bring_back = await outage()
            (folder / "away").touch()
            await eventually(lambda: said("store.unavailable"), "the database is missed", seconds=60)
            await anyio.sleep(1)
            await bring_back()
            await eventually(lambda: finished, "the run has ended", seconds=60)
            await eventually(lambda: said("store.available"), "the database is found again", seconds=60)
            scheduler.request_stop()
    return finished[0], logs


def assert_unnoticed(run: FinishedRun, logs: list[dict], folder: Path) -> None:
    [task] = run.tasks
    assert (run.state, task.state, task.try_number, task.result) == ("success", "success", 1, "green")
    assert (folder / "begun").read_text() == "x"
    told = [line for line in logs if line["log_level"] in ("warning", "error") or "store." in line["event"]]
    told = [line for line in told if line["event"] != "loop.stalled"]  # it is the machine that is busy then
    assert [line["event"] for line in told] == ["store.unavailable", "store.available"], told


@pytest.fixture
def options(program, monkeypatch) -> dict:
    program.write(DAGS)
    monkeypatch.setenv("FOLDER", str(program.root))
    return program.options(sweep_interval=0.2)


async def test_while_somebody_keeps_sqlite_locked(options, program, monkeypatch):
    monkeypatch.setattr(sqlite_connection, "BUSY_TIMEOUT_SECONDS", 1.0)  # more than a commit takes on a busy machine

    async def lock():
        other = sqlite3.connect(program.home / "asynsched.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        async def unlock() -> None:
            other.close()

        return unlock

    assert_unnoticed(*await serve_through(options, lock), program.root)


async def test_while_the_disk_of_sqlite_is_full(options, program, monkeypatch):
    is_full = threading.Event()
    write = SqliteConnection.write

    def write_on_this_disk(connection, query, *args, **kwargs):
        def fitting(conn):
            conn.exec_driver_sql(f"PRAGMA max_page_count = {1 if is_full.is_set() else 2**30}")
            if is_full.is_set():
                # SQLite may find room in the pages that it has. A disk that is full has none for its log either.
                conn.execute(pool.insert(), {"name": "big", "slots": 1, "description": "x" * 1_000_000})
            return query(conn, *args, **kwargs)

        return write(connection, fitting)

    monkeypatch.setattr(SqliteConnection, "write", write_on_this_disk)

    async def fill():
        is_full.set()

        async def empty() -> None:
            is_full.clear()

        return empty

    run, logs = await serve_through(options, fill)
    assert_unnoticed(run, logs, program.root)
    assert "the disk is full" in next(line["error"] for line in logs if line["event"] == "store.unavailable")


@pytest.mark.parametrize("kind", ["gone", "silent", "read-only"])
async def test_while_postgresql_is(options, program, monkeypatch, postgres_server: PostgresServer, kind, tmp_path):
    monkeypatch.setattr(postgres_engine, "command_timeout", lambda dsn: 4.0)
    url = postgres_server.new_database()
    name = urlsplit(url).path.lstrip("/")

    async with gate_before(url, tmp_path) as gate:

        async def take_away():
            if kind == "gone":
                await gate.cut()
            elif kind == "silent":
                gate.silence()
            else:
                postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
                await gate.cut()
                await gate.open()
            return bring_back

        async def bring_back() -> None:
            if kind == "read-only":
                postgres_server.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
                await gate.cut()
            await gate.open()

        assert_unnoticed(*await serve_through(options | {"database": gate.url}, take_away), program.root)


UNTIL_IT_RUNS = """DO $$ BEGIN
    WHILE NOT EXISTS (SELECT 1 FROM task_instance WHERE state = 'running') LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$"""
# All of it is done by the server: the event loop of the scheduler may be late on a busy machine.
CLOSE_THE_RING = """DO $$ BEGIN
    WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM 1 FROM dag_run FOR UPDATE;
END $$"""


async def test_while_postgresql_ends_a_transaction_of_it_for_a_deadlock(options, program, postgres_server):
    url = f"{postgres_server.new_database()}&lock_timeout=60s"
    # The server looks for a ring when a lock was waited for so long: here on behalf of the scheduler, never of another.
    postgres_server.execute(f"ALTER DATABASE {urlsplit(url).path.lstrip('/')} SET deadlock_timeout = '4s'")
    other = await asyncpg.connect(url, server_settings={"deadlock_timeout": "1h"})
    ring = other.transaction()

    async def take_a_row():
        await other.execute(UNTIL_IT_RUNS)
        await ring.start()
        await other.execute("SELECT 1 FROM task_instance FOR UPDATE")
        closing = asyncio.create_task(other.execute(CLOSE_THE_RING))

        async def let_go() -> None:
            await closing
            await ring.rollback()

        return let_go

    run, logs = await serve_through(options | {"database": url}, take_a_row)
    assert_unnoticed(run, logs, program.root)
    assert "deadlock detected" in next(line["error"] for line in logs if line["event"] == "store.unavailable")
    await other.close()


async def test_while_postgresql_fails_over_to_a_second_server(options, program):
    with running_postgres() as first, first.standby() as second:
        url = urlsplit(first.new_database())
        hosts = f"{dict(parse_qsl(url.query))['host']},{second.socket_folder}"

        async def fail():
            first.stop()
            return fail_over

        async def fail_over() -> None:
            await anyio.to_thread.run_sync(second.promote)

        database = url._replace(query=f"host={hosts}").geturl()
        assert_unnoticed(*await serve_through(options | {"database": database}, fail), program.root)


READS = """
    from asynsched import DAG, Variable

    dag = DAG("reads", tags=[Variable.get("colour")])
"""


def parsing_processes(program) -> frozenset[int]:
    servers = program.processes("asynsched: parse server")
    return frozenset(process.pid for server in servers for process in server.children(recursive=True))


async def test_a_parse_that_asks_for_a_variable_meanwhile_begins_again(program):
    program.write(READS)
    options = program.options(parse=ParseSettings(timeout=20, import_timeout=20))
    program.home.mkdir()
    database = FlakyDatabase(
        await open_database(options["settings"].database_url, keys=keys_of(options["settings"])), fails_at=()
    )
    await database.write(set_variable, "colour", "green")
    asked_by: list[frozenset[int]] = []

    def is_away(query: str) -> bool:
        """Whether the database is away from questions: until the third one."""
        if query != "stored_secret":
            return False
        asked_by.append(parsing_processes(program))
        return len(asked_by) < 3

    database.is_away = is_away
    scheduler = Scheduler(database=database, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        errors = await database.read(list_errors)
        [dag] = await database.read(list_dags)
        scheduler.request_stop()
    await database.close()
    assert errors == []
    assert dag.tags == ["green"]
    assert len(set(asked_by)) == 3, "each parse asks once"
