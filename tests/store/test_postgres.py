"""PostgreSQL alone: its errors, its URLs, a connection that goes away."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import anyio
import asyncpg
import pytest
import sqlalchemy as sa

from asynsched.bell import Hint, decode_hints
from asynsched.clock import Clock
from asynsched.errors import AlreadyExists, AsynschedError, SettingsError, StoreError, StoreUnavailable
from asynsched.queries.context import QueryContext
from asynsched.queries.run_actions import delete_dag
from asynsched.settings import Settings
from asynsched.store.dags.dags import before_parses
from asynsched.store.engines import opening
from asynsched.store.engines import postgres as postgres_database
from asynsched.store.engines import postgres as postgres_engine
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.pools import list_pools, set_pool
from asynsched.store.schedulers import CHANNEL, LONGEST_PAYLOAD_BYTES, notify
from asynsched.store.schema import dag
from tests.support.history import fill
from tests.support.waiting import eventually_true

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
async def postgres(postgres_url):
    database = await open_database(postgres_url)
    yield database
    await database.close()


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("08006", StoreUnavailable), ("40001", StoreUnavailable), ("40P01", StoreUnavailable),
        ("53100", StoreUnavailable), ("55P03", StoreUnavailable), ("57014", StoreUnavailable),
        ("57P01", StoreUnavailable), ("25006", StoreUnavailable), ("58030", StoreUnavailable),
        ("22021", StoreError), ("23505", AlreadyExists), ("42703", sa.exc.DBAPIError), ("23502", sa.exc.IntegrityError),
    ],
)  # fmt: skip
async def test_errors_of_the_server_are_told_apart(postgres, sqlstate, expected):
    block = f"DO $$ BEGIN RAISE EXCEPTION 'as asked for' USING ERRCODE = '{sqlstate}'; END $$"
    with pytest.raises(expected) as raised:
        await postgres.write(lambda conn: conn.execute(sa.text(block)))
    assert type(raised.value) is expected or issubclass(expected, sa.exc.DBAPIError)
    assert len(await postgres.read(list_pools)) == 1


async def test_a_dag_that_a_parse_finds_again_at_this_moment_is_not_deleted(postgres, postgres_url, tmp_path):
    row = {"dag_id": "d", "file_path": "d.py", "is_active": False, "is_paused": False, "max_active_runs": 1}
    await postgres.write(lambda conn: conn.execute(dag.insert(), {**row, "updated_at": NOW}))
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    parse = await asyncpg.connect(postgres_url)
    await parse.execute("BEGIN; UPDATE dag SET is_active = true WHERE dag_id = 'd'")
    deletion = asyncio.ensure_future(delete_dag(QueryContext(postgres, tmp_path, Settings(), Clock()), "ada", "d"))
    await eventually_true(postgres, lambda conn: conn.scalar(waiting))
    await parse.execute("COMMIT")
    await parse.close()
    with pytest.raises(AsynschedError, match=r"is in the file d\.py"):
        await deletion
    assert await postgres.read(lambda conn: conn.scalars(sa.select(dag.c.dag_id)).all()) == ["d"]


def backend_pid(conn: sa.Connection) -> int:
    return conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


async def test_a_connection_that_is_cut_is_made_again(postgres):
    kill = sa.text("SELECT pg_terminate_backend(pg_backend_pid())")
    for run in (postgres.write, postgres.read):
        with pytest.raises(StoreUnavailable):
            await run(lambda conn: conn.execute(kill))
    await postgres.write(set_pool, "after", 1)
    assert len(await postgres.read(list_pools)) == 2


async def test_a_connection_that_was_cut_is_noticed_when_its_plans_are_old(postgres, postgres_url, monkeypatch):
    pid = await postgres.read(backend_pid)
    other = await asyncpg.connect(postgres_url)
    assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
    await other.close()
    monkeypatch.setattr(postgres_engine, "PLANS_SECONDS", 0.0)
    assert await postgres.read(backend_pid) != pid


async def test_connections_to_a_server_that_takes_no_writes_any_more_are_made_anew(postgres):
    def become_standby(conn: sa.Connection) -> None:
        conn.execute(sa.text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))

    await postgres.write(become_standby)
    with pytest.raises(StoreUnavailable, match="it is read-only"):
        await postgres.write(set_pool, "lost", 1)
    await postgres.write(set_pool, "after", 1)
    assert {pool.name for pool in await postgres.read(list_pools)} == {"default_pool", "after"}


async def test_statements_of_a_connection_are_planned_again_as_tables_grow(postgres, monkeypatch):
    n_searches = sa.text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'dag'")

    def searches(conn: sa.Connection) -> int:
        """Return how often a query by key reads all DAGs."""
        before = conn.execute(n_searches).scalar_one()
        before_parses(conn, ["a.py", "b.py", "c.py", "d.py"], NOW)
        return int(conn.execute(n_searches).scalar_one() - before)

    monkeypatch.setattr(postgres_engine, "PLANS_SECONDS", 3600.0)
    await postgres.write(fill, n_runs=0, n_dags=100)
    for _ in range(10):
        await postgres.read(searches)
    await postgres.write(multiply_dags)
    assert await postgres.read(searches) == 1, "it goes by the plan that it made for few rows"
    monkeypatch.setattr(postgres_engine, "PLANS_SECONDS", 0.0)
    assert await postgres.read(searches) == 0


def multiply_dags(conn: sa.Connection) -> None:
    others = (
        "is_active, is_paused, schedule_summary, timetable, owners, tags, about, max_active_runs, deadlines, updated_at"
    )
    copies = f"SELECT dag_id || '-' || n, file_path || n, {others} FROM dag, generate_series(1, 200) AS n"
    conn.execute(sa.text(f"INSERT INTO dag (dag_id, file_path, {others}) {copies}"))


async def test_a_cancelled_query_is_undone_and_its_connection_usable(postgres):
    def write_and_sleep(conn: sa.Connection) -> None:
        set_pool(conn, "half", 1)
        conn.execute(sa.text("SELECT pg_sleep(60)"))

    with anyio.move_on_after(0.2) as scope:
        await postgres.write(write_and_sleep)
    assert scope.cancelled_caught
    await asyncio.gather(*(postgres.write(set_pool, f"pool {n}", 1) for n in range(20)))
    assert "half" not in {pool.name for pool in await postgres.read(list_pools)}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process of the server's, as if the way to it were cut without a word."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_server_that_stops_answering_is_given_up(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres_engine, "ANSWER_SECONDS", -28.0)
    monkeypatch.setattr(postgres_database, "ROLLBACK_TIMEOUT_SECONDS", 0.1)
    database = await open_database(postgres_url)
    pid = await database.write(backend_pid)
    with stopped(pid), anyio.fail_after(30):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await database.write(set_pool, "lost", 1)
        assert await database.write(backend_pid) != pid
    assert len(await database.read(list_pools)) == 1
    await database.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_commit_without_an_answer_is_given_up(postgres, monkeypatch, is_cancelled):
    monkeypatch.setattr(postgres_database, "COMMIT_TIMEOUT_SECONDS", 2.0)
    cancelling = anyio.CancelScope()
    said = []

    def stop_before_commit(conn: sa.Connection) -> None:
        set_pool(conn, "unsure", 1)
        halted.enter_context(stopped(backend_pid(conn)))
        if is_cancelled:
            cancelling.cancel()

    with ExitStack() as halted:
        async with asyncio.timeout(30):
            with cancelling:
                try:
                    await postgres.write(stop_before_commit)
                except StoreUnavailable as exc:
                    said.append(str(exc))
            await postgres.write(set_pool, "after", 1)
    assert "no answer to a commit within 2 s" in said[0]


async def test_a_statement_that_is_its_own_transaction_is_given_up_as_a_commit_is(postgres, monkeypatch):
    monkeypatch.setattr(postgres_database, "COMMIT_TIMEOUT_SECONDS", 2.0)
    pid = await postgres.write(backend_pid)
    with stopped(pid), anyio.fail_after(30):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await postgres.write_at_once(set_pool, "unsure", 1)
        assert await postgres.write(backend_pid) != pid


async def test_a_server_that_stops_answering_does_not_hold_up_the_end(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres_engine, "CLOSE_TIMEOUT_SECONDS", 0.2)
    database = await open_database(postgres_url)
    pids = set(await asyncio.gather(*(database.read(backend_pid) for _ in range(4))))
    with ExitStack() as halted:
        for pid in pids:
            halted.enter_context(stopped(pid))
        closing = asyncio.create_task(database.close())
        await asyncio.wait({closing}, timeout=30)  # the driver's own limit is 35 s for each connection
        assert closing.done()


async def test_migrating_may_take_longer_than_any_query(new_postgres_database, monkeypatch):
    url = new_postgres_database()
    monkeypatch.setattr(postgres_engine, "ANSWER_SECONDS", -29.0)
    monkeypatch.setattr(opening, "_create", lambda conn, *_: conn.execute(sa.text("SELECT pg_sleep(1.5)")))
    monkeypatch.setattr(opening, "current_revision", lambda conn: None)
    database = await open_database(url)
    await database.write(opening.bring_to_head, "shown")
    await database.close()


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("", 35), ("?statement_timeout=2min", 125), ("?statement_timeout=1500", 6.5), ("?statement_timeout=0", None),
        ("?statement_timeout=never", 35),
    ],
)  # fmt: skip
def test_an_answer_is_waited_for_somewhat_longer_than_the_server_works_on_it(query, seconds):
    assert postgres_engine.command_timeout(f"postgresql://host/name{query}") == seconds


async def test_all_that_one_read_sees_is_of_one_moment(postgres, postgres_url):
    def read_twice(conn: sa.Connection) -> tuple[int, int]:
        before = len(list_pools(conn))
        conn.execute(sa.text("SELECT pg_advisory_xact_lock_shared(1)"))
        return before, len(list_pools(conn))

    other = await asyncpg.connect(postgres_url)
    await other.execute("SELECT pg_advisory_lock(1)")
    reading = asyncio.create_task(postgres.read(read_twice))
    while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
        pass
    await other.execute("INSERT INTO pool VALUES ('new', 1, '', false); SELECT pg_advisory_unlock(1)")
    assert await reading == (1, 1)
    await other.close()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (("/test_", "/no_such_"), SettingsError, "no database of that name"),
        (("postgres:@", "nobody:hunter2@"), SettingsError, "refused the user"),
        (("?", "?sslmode=sometimes&"), SettingsError, "sslmode"),
        (("?", "?connect_timeout=soon&"), SettingsError, "connect_timeout"),
        (("?", "?statement_timeout=never&"), SettingsError, "statement_timeout"),
        (("?", "?foo=1&"), SettingsError, "foo"),
        (("?", "?options=-csearch_path%3Dnowhere&"), StoreUnavailable, "search_path"),
        (("host=", "host=/nowhere&x="), StoreUnavailable, "cannot be reached"),
    ],
)
async def test_an_address_that_does_not_work_is_explained_without_its_password(postgres_url, change, error, says):
    with pytest.raises(error, match=says) as raised:
        await open_database(postgres_url.replace(*change))
    assert "hunter2" not in str(raised.value)


async def test_parameters_of_libpq_are_understood(postgres_url):
    url = postgres_url.replace("postgresql:", "postgresql+asyncpg:")
    database = await open_database(f"{url}&connect_timeout=3&application_name=mine&sslmode=disable&lock_timeout=7s")
    shown = {
        name: await database.read(lambda conn, name=name: conn.execute(sa.text(f"SHOW {name}")).scalar())
        for name in ("application_name", "lock_timeout", "statement_timeout", "timezone")
    }
    assert shown == {"application_name": "mine", "lock_timeout": "7s", "statement_timeout": "30s", "timezone": "UTC"}
    await database.close()


async def test_a_notification_arrives_when_its_transaction_is_committed(postgres, postgres_url):
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(postgres_url)
    await listener.add_listener(CHANNEL, lambda *message: heard.put_nowait(message[3]))
    with pytest.raises(ZeroDivisionError):
        await postgres.write(lambda conn: (notify(conn, Hint("undone")), 1 / 0))
    too_long = Hint("file", path="a" * LONGEST_PAYLOAD_BYTES)
    hints = [Hint("run", f"dag {number}", "€" * 250) for number in range(30)]
    await postgres.write(notify, *hints[:10], too_long, *hints[10:])
    arrived: list[Hint] = []
    while len(arrived) < len(hints):
        arrived += decode_hints(await heard.get())
    assert arrived == hints
    await listener.close()
