"""Secrets at rest: encrypted with one key for all who use the database, which can be changed while they do."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from asynsched.errors import SecretsUnreadable
from asynsched.fernet_keys import FernetKeys, keys_of
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.runs.transitions import Batch, apply
from asynsched.store.schema import metadata
from asynsched.store.secrets import (
    ConnectionRow,
    change_key,
    check_key,
    connection_names,
    forget_lost,
    get_connection,
    get_variable,
    list_connections,
    list_variables,
    lost_secrets,
    set_connection,
    set_variable,
    variable_names,
)
from tests.store.test_runs import new_run, task

SECRET = "hunter" + "2" * 8


@asynccontextmanager
async def opened(url: str, keys: FernetKeys | None) -> AsyncIterator[Database]:
    database = await open_database(url, synchronous="normal", keys=keys)
    yield database
    await database.close()


def everything(conn: sa.Connection) -> str:
    """Return all that is stored, in every table."""
    return repr([conn.execute(sa.select(table)).all() for table in metadata.sorted_tables])


def of_home(home: Path, **settings: str) -> FernetKeys:
    home.mkdir(exist_ok=True)
    return keys_of(Settings(home=str(home), **settings))


async def store_secrets(database: Database) -> int:
    """Store each kind of secret; return the run whose task is deferred."""
    await database.write(set_variable, "shade", SECRET)
    extra = f'{{"key": "{SECRET}"}}'
    await database.write(set_connection, ConnectionRow("db", "http", host=SECRET, password=SECRET, extra=extra))
    run = await database.write(insert_run, new_run())
    await database.write(apply, Batch(0, new_tasks=[task(run, "waits", "deferred", deferral=SECRET)]))
    return run


async def read_secrets(database: Database, run: int) -> list[str | None]:
    [waiting] = await database.read(load_task_instances, run)
    [variable], [connection] = await database.read(list_variables), await database.read(list_connections)
    assert variable == await database.read(get_variable, "shade")
    assert connection == await database.read(get_connection, "db")
    assert SECRET not in repr([variable, connection])
    return [variable.value, connection.host, connection.password, waiting.deferral]


async def test_secrets_are_stored_as_nobody_can_read_them_without_the_key(new_url: Callable[[], str], tmp_path: Path):
    url, home = new_url(), tmp_path / "one"
    async with opened(url, of_home(home)) as database:
        assert await database.read(check_key) is None
        assert not (home / "fernet.key").exists()
        run = await store_secrets(database)
        assert (home / "fernet.key").stat().st_mode & 0o777 == 0o600
        assert SECRET not in await database.read(everything)
        assert "shade" in await database.read(everything)
    async with opened(url, of_home(home)) as database:
        assert await read_secrets(database, run) == [SECRET] * 4


async def test_another_key_is_refused_in_words_that_name_it_and_its_place(new_url: Callable[[], str], tmp_path: Path):
    url = new_url()
    async with opened(url, of_home(tmp_path / "one")) as database:
        run = await store_secrets(database)
        key_id = await database.read(check_key)
    # Of another home, which has no key; with another key; with nothing said of keys.
    elsewhere = of_home(tmp_path / "two")
    other = of_home(tmp_path / "two", fernet_key=Fernet.generate_key().decode())
    for keys, place in (
        (elsewhere, tmp_path / "two" / "fernet.key"),
        (other, "fernet_key"),
        (None, "without the keys"),
    ):
        async with opened(url, keys) as database:
            for query, *arguments in (
                (check_key,), (get_variable, "shade"), (load_task_instances, run),
                (set_variable, "new", "x"), (set_connection, ConnectionRow("new", "http")),
            ):  # fmt: skip
                with pytest.raises(SecretsUnreadable) as caught:
                    await database.write(query, *arguments)
                assert str(place) in str(caught.value)
                assert keys is None or key_id in str(caught.value)
    assert not (tmp_path / "two" / "fernet.key").exists()


async def test_the_key_is_changed_while_others_use_the_database(new_url: Callable[[], str], tmp_path: Path):
    url, home = new_url(), tmp_path / "one"
    async with opened(url, of_home(home)) as serving, opened(url, keys := of_home(home)) as changing:
        run = await store_secrets(serving)
        before, stored = await serving.read(check_key), await serving.read(everything)
        assert keys.add_new()
        assert await changing.write(change_key) == 3
        assert await serving.read(check_key) not in (None, before)
        assert await serving.read(everything) != stored
        assert await read_secrets(serving, run) == [SECRET] * 4
        await serving.write(set_variable, "later", "x")
    new, old = (home / "fernet.key").read_text().split()
    assert (home / "fernet.key").stat().st_mode & 0o777 == 0o600
    async with opened(url, of_home(home, fernet_key=new)) as database:
        assert await read_secrets_of(database, "later") == "x"
        assert await read_secrets_of(database, "shade") == SECRET
    async with opened(url, of_home(home, fernet_key=old)) as database:
        with pytest.raises(SecretsUnreadable):
            await database.read(get_variable, "shade")


async def test_given_keys_are_changed_without_a_moment_in_which_somebody_lacks_one(
    new_url: Callable[[], str], tmp_path: Path
):
    url, (old, new) = new_url(), (Fernet.generate_key().decode() for _ in range(2))
    async with opened(url, of_home(tmp_path, fernet_key=old)) as first:
        await first.write(set_variable, "shade", SECRET)
        # Restarted with both, one after the other: until the key is changed, the old one is used by all.
        async with opened(url, of_home(tmp_path, fernet_key=f"{new}, {old}")) as second:
            await second.write(set_variable, "shade", SECRET + "!")
            assert await read_secrets_of(first, "shade") == SECRET + "!"
            await second.write(change_key)
            assert await read_secrets_of(second, "shade") == SECRET + "!"
    async with opened(url, of_home(tmp_path, fernet_key=new)) as third:
        assert await read_secrets_of(third, "shade") == SECRET + "!"


async def test_secrets_of_a_lost_key_are_listed_and_deleted(new_url: Callable[[], str], tmp_path: Path):
    url, old = new_url(), Fernet.generate_key().decode()
    async with opened(url, of_home(tmp_path / "one", fernet_key=old)) as database:
        run = await store_secrets(database)
    both = of_home(tmp_path / "one", fernet_key=f"{Fernet.generate_key().decode()},{old}")
    async with opened(url, both) as database:
        assert await database.read(lost_secrets) == []
    async with opened(url, of_home(tmp_path / "two")) as database:
        lost = await database.read(lost_secrets)
        assert lost == [("connection", "db"), ("variable", "shade"), ("deferred task", "d r1 waits")]
        assert await database.read(variable_names) == [("shade", "")]
        assert await database.read(connection_names) == [("db", "http", "")]
        assert await database.write(forget_lost) == 0
        assert await database.read(list_variables) == []
        assert [found.deferral for found in await database.read(load_task_instances, run)] == [None]
        await database.write(set_variable, "shade", SECRET)
        assert await read_secrets_of(database, "shade") == SECRET


async def read_secrets_of(database: Database, key: str) -> str:
    return (await database.read(get_variable, key)).value


def test_a_file_of_keys_that_cannot_be_trusted_is_refused(tmp_path: Path):
    file = tmp_path / "keys"
    keys = of_home(tmp_path, fernet_key_file=str(file))
    with pytest.raises(SecretsUnreadable, match=f"the file {file} has none"):
        keys.first()
    assert not keys.add_new()
    file.write_text(Fernet.generate_key().decode() + "\n")
    file.chmod(0o644)
    with pytest.raises(SecretsUnreadable, match=f"open to everybody .*chmod 600 {file}"):
        keys.first()
    file.chmod(0o640)
    assert keys.first()
    file.write_text("hunter2\n")
    with pytest.raises(SecretsUnreadable, match="is not a Fernet key") as caught:
        of_home(tmp_path, fernet_key_file=str(file)).first()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Settings(fernet_key="hunter2", database="postgresql://me:hunter2@host/db"))
