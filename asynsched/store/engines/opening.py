"""Opens the database of a URL: for the event loop, without one, or unprepared, for `asynsched db`."""

import asyncio
from functools import partial
from typing import NoReturn

from sqlalchemy import Connection

from asynsched.errors import DatabaseMissing, SettingsError, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database, DirectDatabase
from asynsched.store.engines.preparation import (
    DEFAULT_POOL_SLOTS,
    HEAD,
    SchemaState,
    bring_to_head,
    current_revision,
    make_file,
    refuse_foreign,
)
from asynsched.store.engines.sqlite_connection import InlineDatabase, SqliteConnection, Synchronous
from asynsched.store.engines.urls import DatabaseUrl, parse_url


async def open_database(
    url: str,
    *,
    synchronous: Synchronous = "full",
    default_pool_slots: int = DEFAULT_POOL_SLOTS,
    keys: FernetKeys | None = None,
) -> Database:
    """Open a database for the event loop, as `open_direct` does.

    Raises:
        SettingsError: Also when the URL names a SQLite database in memory.
    """
    parsed = parse_url(url)
    if parsed.backend == "postgresql":
        return await _open_postgres(parsed, default_pool_slots, keys)
    if parsed.path is None:
        raise SettingsError("database: a scheduler needs a database in a file: sqlite:///PATH")
    from asynsched.store.engines.sqlite_database import SqliteDatabase  # commands do without its driver

    prepare = partial(open_direct, url, synchronous=synchronous, default_pool_slots=default_pool_slots)
    (await asyncio.to_thread(prepare)).close()
    return SqliteDatabase(parsed.path, parsed.shown, synchronous=synchronous, keys=keys)


async def _open_postgres(url: DatabaseUrl, default_pool_slots: int, keys: FernetKeys | None) -> Database:
    from asynsched.store.engines.postgres import PostgresDatabase  # the driver is loaded only where it is used

    database = PostgresDatabase(url, keys=keys)
    try:
        if await database.read(current_revision) != HEAD:
            await database.write(bring_to_head, url.shown, default_pool_slots)
    except BaseException:
        await database.close()
        raise
    return database


def open_direct(
    url: str,
    *,
    synchronous: Synchronous = "full",
    default_pool_slots: int = DEFAULT_POOL_SLOTS,
    keys: FernetKeys | None = None,
    make: bool = True,
) -> DirectDatabase:
    """Open a database; create it if it does not exist and `make` is true, and migrate it if it is behind.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER@HOST/NAME`.
        synchronous: SQLite only: `full` survives a power cut, `normal` may lose its last moment.
        default_pool_slots: Slots of the default_pool of a new database.
        keys: The keys of its secrets; without them no query of secrets is possible.
        make: Whether to create a database that does not exist.

    Raises:
        SettingsError: The URL names no database, or one in a folder that does not exist, or the server refused the
            user, the password or the name.
        DatabaseMissing: The database does not exist, and `make` is false.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: This version of asynsched does not know its schema.
    """
    parsed = parse_url(url)
    if not (make or file_exists(parsed)):
        raise DatabaseMissing(parsed.shown)
    database = connect_direct(parsed, synchronous=synchronous, keys=keys)
    try:
        revision = database.read(current_revision)
        if revision is None and not make:
            database.read(_refuse_missing, parsed.shown)
        elif revision != HEAD:
            database.write(bring_to_head, parsed.shown, default_pool_slots)
    except BaseException:
        database.close()
        raise
    return database


def _refuse_missing(conn: Connection, shown: str) -> NoReturn:
    refuse_foreign(conn, shown)
    raise DatabaseMissing(shown)


def file_exists(url: DatabaseUrl) -> bool:
    """Whether a SQLite file exists; True for databases without a file. Raises StoreUnavailable."""
    try:
        return url.path is None or url.path.exists()
    except OSError as exc:
        raise StoreUnavailable(f"The database {url.shown} cannot be reached: {exc.strerror}") from exc


def connect_direct(
    url: DatabaseUrl, *, synchronous: Synchronous = "full", keys: FernetKeys | None = None
) -> DirectDatabase:
    """Return a database without creating or migrating its tables."""
    if url.backend == "postgresql":
        from asynsched.store.engines.postgres import DirectPostgres  # the driver is loaded only where it is used

        return DirectPostgres(url, keys)
    make_file(url.path)
    return SqliteConnection(url.path, url.shown, synchronous=synchronous, keys=keys)


def open_inline(url: str = "sqlite://", *, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> InlineDatabase:
    """Open a SQLite database, in memory by default, for simulation."""
    parsed = parse_url(url)
    make_file(parsed.path)
    database = InlineDatabase(parsed.path, parsed.shown)
    database.connection.write(bring_to_head, parsed.shown, default_pool_slots)
    return database


def schema_state(url: str) -> SchemaState:
    """Return the revision of a database, and the newest one. Creates nothing.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: It holds another program's tables.
    """
    parsed = parse_url(url)
    if parsed.backend == "sqlite" and (parsed.path is None or not file_exists(parsed)):
        return SchemaState(None, HEAD)
    with connect_direct(parsed) as database:
        current = database.read(current_revision)
        if current is None:
            database.read(refuse_foreign, parsed.shown)
        return SchemaState(current, HEAD)


def upgrade(url: str, *, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> SchemaState:
    """Create or migrate a database. Returns its former revision, and the newest one.

    Raises:
        SettingsError: The URL names no database.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: This version of asynsched does not know its schema.
    """
    before = schema_state(url)
    open_direct(url, default_pool_slots=default_pool_slots).close()
    return before
