"""Opening the database that a URL names, for the scheduler."""

import asyncio
from functools import partial

from asynsched.errors import SettingsError
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database
from asynsched.store.engines.direct_database import open_direct
from asynsched.store.engines.preparation import DEFAULT_POOL_SLOTS, HEAD, bring_to_head, current_revision
from asynsched.store.engines.sqlite_connection import Synchronous
from asynsched.store.engines.sqlite_database import SqliteDatabase
from asynsched.store.engines.urls import DatabaseUrl, parse_url


async def open_database(
    url: str,
    *,
    synchronous: Synchronous = "full",
    default_pool_slots: int = DEFAULT_POOL_SLOTS,
    keys: FernetKeys | None = None,
) -> Database:
    """Open a database for the event loop; what it is given, does and raises is as `open_direct` says.

    Raises:
        SettingsError: The URL names a SQLite database in memory, too.
    """
    parsed = parse_url(url)
    if parsed.backend == "postgresql":
        return await _open_postgres(parsed, default_pool_slots, keys)
    if parsed.path is None:
        raise SettingsError("database: a scheduler needs a database in a file: sqlite:///PATH")
    prepare = partial(open_direct, url, synchronous=synchronous, default_pool_slots=default_pool_slots)
    (await asyncio.to_thread(prepare)).close()
    return SqliteDatabase(parsed.path, parsed.shown, synchronous=synchronous, keys=keys)


async def _open_postgres(url: DatabaseUrl, default_pool_slots: int, keys: FernetKeys | None) -> Database:
    from asynsched.store.engines.postgres_database import PostgresDatabase  # the driver is loaded only where it is used

    database = PostgresDatabase(url, keys=keys)
    try:
        if await database.read(current_revision) != HEAD:
            await database.write(bring_to_head, url.shown, default_pool_slots)
    except BaseException:
        await database.close()
        raise
    return database
