"""What is PostgreSQL's own: its errors, its URLs, a connection that goes away."""

import asyncio

import anyio
import asyncpg
import pytest
import sqlalchemy as sa

from asynsched.errors import AlreadyExists, SettingsError, StoreError, StoreUnavailable
from asynsched.store.async_database import open_database
from asynsched.store.notifications import CHANNEL, notify
from asynsched.store.pools import list_pools, set_pool


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


async def test_a_connection_that_is_cut_is_made_again(postgres):
    kill = sa.text("SELECT pg_terminate_backend(pg_backend_pid())")
    for run in (postgres.write, postgres.read):
        with pytest.raises(StoreUnavailable):
            await run(lambda conn: conn.execute(kill))
    await postgres.write(set_pool, "after", 1)
    assert len(await postgres.read(list_pools)) == 2


async def test_a_cancelled_query_is_undone_and_its_connection_usable(postgres):
    def write_and_sleep(conn: sa.Connection) -> None:
        set_pool(conn, "half", 1)
        conn.execute(sa.text("SELECT pg_sleep(60)"))

    with anyio.move_on_after(0.2) as scope:
        await postgres.write(write_and_sleep)
    assert scope.cancelled_caught
    await asyncio.gather(*(postgres.write(set_pool, f"pool {n}", 1) for n in range(20)))
    assert "half" not in {pool.name for pool in await postgres.read(list_pools)}


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
        (("?", "?statement_timeout=never&"), StoreError, "statement_timeout"),
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
        await postgres.write(lambda conn: (notify(conn, "undone"), 1 / 0))
    await postgres.write(notify, "done")
    await postgres.write(notify, "too long" * 1000)
    assert [await heard.get(), await heard.get()] == ["done", ""]
    await listener.close()
