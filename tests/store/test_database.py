"""The promises of every database: a write is done or not done, at once and for good, and its failures have names."""

import asyncio
import threading

import pytest
import sqlalchemy as sa

from asynsched.errors import AlreadyExists, NotFound, StoreError, StoreUnavailable
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database, open_direct
from asynsched.store.engines.sqlite_database import N_READERS
from asynsched.store.runs.pools import delete_pool, list_pools, set_pool
from asynsched.store.schema import pool


def add_pool(conn: sa.Connection, name: str) -> str:
    conn.execute(pool.insert(), {"name": name, "slots": 1})
    return name


def add_then_fail(conn: sa.Connection, name: str) -> None:
    add_pool(conn, name)
    raise ZeroDivisionError(name)


def names(conn: sa.Connection) -> set[str]:
    return {pool.name for pool in list_pools(conn)} - {"default_pool"}


async def test_a_write_that_fails_leaves_nothing_and_gives_its_error(database):
    with pytest.raises(ZeroDivisionError):
        await database.write(add_then_fail, "half")
    await database.write(add_pool, "name")
    with pytest.raises(NotFound, match=r"no pool 'nome'\. Did you mean name\?"):
        await database.write(delete_pool, "nome")
    assert await database.read(names) == {"name"}


async def test_writes_that_come_together_succeed_and_fail_each_for_itself(database):
    await database.write(add_pool, "taken")
    queries = [(add_pool, "a"), (add_then_fail, "b"), (add_pool, "taken"), (add_pool, "c"), (add_pool, "d")]
    results = await asyncio.gather(*(database.write(query, name) for query, name in queries), return_exceptions=True)
    assert [value for value in results if isinstance(value, str)] == ["a", "c", "d"]
    assert isinstance(results[1], ZeroDivisionError)
    assert isinstance(results[2], AlreadyExists)
    assert await database.read(names) == {"taken", "a", "c", "d"}


async def test_a_bug_in_a_query_is_not_taken_for_a_lost_database(database):
    with pytest.raises(sa.exc.DBAPIError) as raised:
        await database.write(lambda conn: conn.execute(sa.text("SELECT nothing FROM pool")))
    assert not isinstance(raised.value, StoreError)
    with pytest.raises(sa.exc.IntegrityError):
        await database.write(lambda conn: conn.execute(pool.insert(), {"name": "null", "slots": None}))


async def test_what_is_written_is_seen_by_another_client_and_survives_closing(new_url):
    url = new_url()
    database = await open_database(url)
    await database.write(add_pool, "kept")
    with_other = await asyncio.to_thread(_names_directly, url)
    await database.close()
    assert with_other == await asyncio.to_thread(_names_directly, url) == {"kept"}


def _names_directly(url: str) -> set[str]:
    with open_direct(url) as database:
        return database.read(names)


async def test_reads_cannot_write(new_url):
    database = await open_database(new_url())
    with pytest.raises(StoreUnavailable, match=r"read-?only"):
        await database.read(set_pool, "sneaked", 1)
    assert await database.read(names) == set()
    await database.close()


async def test_closing_waits_for_the_writes_that_were_asked_for(new_url):
    database = await open_database(new_url())
    writes = [asyncio.create_task(database.write(add_pool, f"pool {n}")) for n in range(20)]
    await asyncio.sleep(0)
    await asyncio.wait(writes)
    await database.close()
    assert all(write.exception() is None for write in writes)


class Gate:
    """A query of SQLite that waits in its thread until the test lets it go on."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self, conn: sa.Connection) -> str:
        add_pool(conn, "gate")
        self.began.set()
        self.may_end.wait(30)
        return "gate"


@pytest.fixture
async def sqlite(tmp_path):
    database = await open_database(f"sqlite:///{tmp_path / 'asynsched.db'}")
    yield database
    await database.close()


async def test_a_write_that_is_cancelled_while_it_waits_is_never_done(sqlite):
    gate = Gate()
    first = asyncio.create_task(sqlite.write(gate))
    await asyncio.to_thread(gate.began.wait)
    waiting = [asyncio.create_task(sqlite.write(add_pool, name)) for name in ("cancelled", "kept")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    gate.may_end.set()
    assert await first == "gate"
    assert await waiting[1] == "kept"
    assert await sqlite.read(names) == {"gate", "kept"}


async def test_a_write_that_is_cancelled_half_way_is_finished_first(sqlite):
    gate = Gate()
    write = asyncio.create_task(sqlite.write(gate))
    await asyncio.to_thread(gate.began.wait)
    write.cancel()
    await asyncio.sleep(0)
    assert not write.done()
    gate.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert await sqlite.read(names) == {"gate"}
    assert await sqlite.write(add_pool, "next") == "next"


async def test_writes_that_wait_share_one_transaction_and_keep_their_order(sqlite):
    gate, seen = Gate(), []

    def note(conn: sa.Connection, number: int) -> None:
        driver = conn.connection.dbapi_connection
        seen.append((number, driver.total_changes, driver.in_transaction))
        conn.execute(pool.insert(), {"name": f"pool {number}", "slots": len(seen)})

    begun = []
    first = asyncio.create_task(sqlite.write(gate))
    await asyncio.to_thread(gate.began.wait)
    waiting = [asyncio.create_task(sqlite.write(note, number)) for number in range(10)]
    await asyncio.sleep(0)
    sa.event.listen(sqlite._writer.queries._engine, "commit", lambda conn: begun.append(len(seen)))
    gate.may_end.set()
    await asyncio.gather(first, *waiting)
    assert [number for number, _, _ in seen] == list(range(10))
    assert begun == [0, 10]


async def test_a_full_disk_undoes_all_that_was_together_and_the_next_write_works(sqlite):
    def fill(conn: sa.Connection) -> None:
        n_pages = conn.exec_driver_sql("PRAGMA page_count").scalar()
        conn.exec_driver_sql(f"PRAGMA max_page_count = {n_pages + 2}")
        conn.execute(pool.insert(), {"name": "big", "slots": 1, "description": "x" * 1_000_000})

    gate = Gate()
    first = asyncio.create_task(sqlite.write(gate))
    await asyncio.to_thread(gate.began.wait)
    together = [
        asyncio.create_task(sqlite.write(query, *args)) for query, *args in ((add_pool, "a"), (fill,), (add_pool, "b"))
    ]
    await asyncio.sleep(0)
    gate.may_end.set()
    await first
    results = await asyncio.gather(*together, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    assert "the disk is full" in str(results[0])
    assert await sqlite.write(add_pool, "after") == "after"
    assert await sqlite.read(names) == {"gate", "after"}


async def test_a_file_that_another_process_keeps_locked_is_said_to_be_busy(sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr("asynsched.store.engines.sqlite_connection.BUSY_TIMEOUT_SECONDS", 0.01)
    other = sa.create_engine(f"sqlite:///{tmp_path / 'asynsched.db'}", isolation_level="AUTOCOMMIT")
    with other.connect() as holding:
        holding.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process is writing"):
            await sqlite.write(add_pool, "late")
        holding.exec_driver_sql("ROLLBACK")
    other.dispose()
    assert await sqlite.write(add_pool, "late") == "late"


@pytest.mark.parametrize("use", ["read", "write"])
async def test_a_database_that_could_not_be_opened_is_opened_by_the_next_use(sqlite, tmp_path, monkeypatch, use):
    folder, elsewhere = tmp_path / "asynsched.db", tmp_path / "elsewhere.db"
    folder.rename(elsewhere)
    folder.mkdir()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the file cannot be opened"):
            await getattr(sqlite, use)(names)
    folder.rmdir()
    elsewhere.rename(folder)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse_a_thread)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            await getattr(sqlite, use)(names)
    assert await getattr(sqlite, use)(names) == set()


def _refuse_a_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_first_read_that_is_cancelled_leaves_the_connection_usable(sqlite):
    for _ in range(2 * N_READERS):
        reading = asyncio.create_task(sqlite.read(names))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await sqlite.read(names) == set()


async def test_a_closed_database_says_so_and_may_be_closed_again(sqlite):
    await sqlite.write(add_pool, "kept")
    await sqlite.close()
    for use in (sqlite.read, sqlite.write):
        with pytest.raises(StoreError, match=r"asynsched\.db is closed"):
            await use(names)
    await sqlite.close()


def test_an_event_loop_that_ends_during_a_commit_leaves_nobody_waiting(tmp_path):
    gate = Gate()

    async def leave_a_write_behind() -> tuple[Database, asyncio.Task[str]]:
        database = await open_database(f"sqlite:///{tmp_path / 'asynsched.db'}")
        write = asyncio.create_task(database.write(gate))
        await asyncio.to_thread(gate.began.wait)
        asyncio.get_running_loop().call_soon(gate.may_end.set)
        return database, write

    with asyncio.Runner() as runner:
        database, write = runner.run(leave_a_write_behind())
        _cancel_all_tasks(runner.get_loop())
        assert write.cancelled()
        runner.run(database.close())
    with open_direct(f"sqlite:///{tmp_path / 'asynsched.db'}") as direct:
        assert direct.read(names) == {"gate"}


def _cancel_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Act like an event loop's runner at its end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30))


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "notes.db").write_text("not a database, by far" * 100)
    with pytest.raises(StoreError, match=r"notes\.db cannot be used: the file is not a SQLite database"):
        open_direct(f"sqlite:///{tmp_path / 'notes.db'}")
