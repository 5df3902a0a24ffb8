"""Pools, variables, connections, the audit and the schedulers that serve a database."""

import fcntl
from datetime import UTC, datetime, timedelta

import pytest

from asynsched.errors import AlreadyExists, HomeInUse, NotFound, StoreError
from asynsched.home import remember_database
from asynsched.store.audit import acts_since, record_audit
from asynsched.store.database import Database
from asynsched.store.runs.pools import delete_pool, list_pools, pool_capacities, set_pool
from asynsched.store.schedulers import (
    list_schedulers,
    register_scheduler,
    remove_scheduler,
    renew_scheduler,
    sqlite_file,
)
from asynsched.store.secrets import (
    ConnectionRow,
    add_connection,
    delete_connection,
    delete_variable,
    get_connection,
    get_variable,
    list_connections,
    list_variables,
    set_connection,
    set_variable,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=15)


async def test_pools_are_made_changed_and_deleted_but_for_the_default_one(database):
    await database.write(set_pool, "gpu", 2, description="two cards")
    await database.write(set_pool, "gpu", -1, include_deferred=True)
    _, gpu = await database.read(list_pools)
    assert (gpu.name, gpu.slots, gpu.description, gpu.include_deferred) == ("gpu", -1, "", True)
    assert await database.read(pool_capacities) == {"default_pool": 128, "gpu": None}
    with pytest.raises(NotFound, match="Did you mean gpu"):
        await database.write(delete_pool, "gpuu")
    with pytest.raises(StoreError, match="cannot be deleted"):
        await database.write(delete_pool, "default_pool")
    await database.write(delete_pool, "gpu")
    assert [pool.name for pool in await database.read(list_pools)] == ["default_pool"]


@pytest.mark.parametrize(
    ("name", "slots", "says"),
    [
        ("", 1, "1 to 256"),
        ("x" * 257, 1, "1 to 256"),
        ("a\0", 1, "NUL"),
        ("a", -2, "-1 for no limit"),
        ("a", 2**31, "2147483647"),
    ],
)
async def test_a_pool_that_cannot_be_is_refused(database, name, slots, says):
    with pytest.raises(StoreError, match=says):
        await database.write(set_pool, name, slots)


@pytest.mark.parametrize(("text", "says"), [("x" * 5001, "has 5001 characters; at most 5000 "), ("a\0", "a NUL")])
async def test_a_description_that_is_too_long_or_cannot_be_stored_is_refused(database, text, says):
    for kind, write in {
        "pool 'p'": (set_pool, "p", 1),
        "variable 'v'": (set_variable, "v", "x"),
        "connection 'c'": (lambda conn, description: set_connection(conn, ConnectionRow("c", "http", description)),),
    }.items():
        with pytest.raises(StoreError, match=f"description of the {kind} .*{says}"):
            await database.write(*write, description=text)
    with pytest.raises(StoreError, match="A connection type has 1 to 500 characters, not 501"):
        await database.write(set_connection, ConnectionRow("c", "t" * 501))


async def test_variables_are_set_read_and_deleted(database):
    await database.write(set_variable, "colour", "blue", "of the sky")
    await database.write(set_variable, "colour", '{"shade": "€"}')
    assert (await database.read(get_variable, "colour")).value == '{"shade": "€"}'
    assert [(row.key, row.description) for row in await database.read(list_variables)] == [("colour", "")]
    for query in (get_variable, delete_variable):
        with pytest.raises(NotFound, match=r"no variable 'color'\. Did you mean colour\?"):
            await database.write(query, "color")
    with pytest.raises(StoreError, match="NUL"):
        await database.write(set_variable, "colour", "\0")
    await database.write(delete_variable, "colour")
    assert await database.read(list_variables) == []


async def test_connections_are_added_once_and_never_print_their_password(database):
    row = ConnectionRow("db", "postgres", host="h", login="me", password="hunter2", port=5432, extra='{"a": 1}')
    await database.write(add_connection, row)
    assert "hunter2" not in repr(await database.read(list_connections))
    with pytest.raises(AlreadyExists, match="'db' already exists"):
        await database.write(add_connection, row)
    await database.write(set_connection, ConnectionRow("db", "mysql", password="other"))
    found = await database.read(get_connection, "db")
    assert (found.conn_type, found.password, found.host, found.description) == ("mysql", "other", None, "")
    for query in (get_connection, delete_connection):
        with pytest.raises(NotFound, match="Did you mean db"):
            await database.write(query, "dbb")
    await database.write(delete_connection, "db")
    assert await database.read(list_connections) == []


async def test_the_audit_tells_what_was_done_to_one_dag_since_an_instant(database):
    for number, dag_id in enumerate(("d", "e", "d")):
        at = NOW + timedelta(seconds=number)
        detail = {"n": number}
        await database.write(record_audit, at=at, actor="me@here", action="dag.pause", dag_id=dag_id, detail=detail)
    [act] = await database.read(acts_since, "d", NOW + timedelta(seconds=1))
    assert (act.actor, act.action, act.detail) == ("me@here", "dag.pause", {"n": 2})


async def register(database, scheduler_id: str, home: str = "/home") -> int:
    return await database.write(
        register_scheduler, scheduler_id=scheduler_id, hostname="h", pid=1, home=home, version="1", now=NOW,
        lease_until=LATER, takeover_seconds=30,
    )  # fmt: skip


async def test_no_lease_epoch_is_given_twice(database):
    epochs = [await register(database, "a"), await register(database, "b", "/elsewhere")]
    await database.write(remove_scheduler, "b", NOW)
    epochs.append(await register(database, "c", "/elsewhere"))
    await database.write(remove_scheduler, "c", NOW)
    epochs.append(await register(database, "d", "/elsewhere"))
    assert epochs == [1, 2, 3, 4]


async def test_a_scheduler_serves_until_its_lease_lapses_or_its_home_restarts(database):
    epoch = await register(database, "a")
    await register(database, "b", "/elsewhere")
    assert [row.id for row in await database.read(list_schedulers, NOW)] == ["a", "b"]
    renewed = LATER + timedelta(seconds=15)
    assert await database.write(renew_scheduler, "a", epoch, now=LATER, lease_until=renewed)
    (row,) = await database.read(list_schedulers, LATER)
    assert (row.id, row.lease_until, row.heartbeat_at, row.started_at) == ("a", renewed, LATER, NOW)
    assert not await database.write(renew_scheduler, "a", epoch + 1, now=LATER, lease_until=renewed)
    await register(database, "c")
    assert not await database.write(renew_scheduler, "a", epoch, now=LATER, lease_until=renewed)
    await database.write(remove_scheduler, "c", NOW)
    assert [row.id for row in await database.read(list_schedulers, NOW)] == ["b"]


of_one_scheduler = pytest.mark.parametrize("database", ["sqlite", "inline"], indirect=True)


async def enter_alone(database: Database, scheduler_id: str, home: str, seconds: float = 0.0) -> None:
    now = NOW + timedelta(seconds=seconds)
    await database.write(
        register_scheduler, scheduler_id=scheduler_id, hostname="h", pid=1, home=home, version="1", now=now,
        lease_until=now + timedelta(seconds=15), takeover_seconds=31, is_alone=True,
    )  # fmt: skip


@of_one_scheduler
async def test_on_sqlite_another_home_is_refused_while_old_tries_may_run(database):
    await enter_alone(database, "dead", "/home")
    for seconds in (1, 16, 30):
        with pytest.raises(HomeInUse, match=r"with the home /home\..* try again after 2026-03-01T12:00:31\+00:00"):
            await enter_alone(database, "other", "/elsewhere", seconds)
    await enter_alone(database, "other", "/elsewhere", 31)
    await enter_alone(database, "successor", "/elsewhere", 32)
    await database.write(remove_scheduler, "successor", NOW)
    await enter_alone(database, "back", "/home", 33)


@pytest.mark.parametrize("lock", ["lock", "keeper.lock"])
@of_one_scheduler
async def test_on_sqlite_another_home_is_refused_while_one_is_locked_whatever_the_time(database, tmp_path, lock):
    await enter_alone(database, "silent", str(tmp_path))
    with (tmp_path / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remember_database(tmp_path, await database.read(sqlite_file))
        with pytest.raises(HomeInUse, match="stop that one first, or use PostgreSQL"):
            await enter_alone(database, "other", "/elsewhere", 3600)
        await enter_alone(database, "next", str(tmp_path), 3600)
        remember_database(tmp_path, "/the/original/of/a/copy.db")
        await enter_alone(database, "of a copy", "/elsewhere", 7200)
