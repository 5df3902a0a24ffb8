"""Opens the database of a URL: for the event loop, without one, or unprepared, for `asynsched db`.

An opened database is prepared: a new one gets its tables, an old one is migrated, and a newer one is refused. Loading
Alembic takes longer than a whole command may take, so it is loaded only for a migration. A new database gets all tables
at once, and is stamped with the newest revision; a test proves that these equal the tables that the migrations make.
"""

import asyncio
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched._version import __version__
from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.errors import DatabaseMissing, SettingsError, StoreUnavailable, StoreVersionError
from asynsched.fernet_keys import FernetKeys, keys_of
from asynsched.home import make_file as make_private_file
from asynsched.settings import Settings
from asynsched.store.database import Database, DirectDatabase
from asynsched.store.engines.sqlite_connection import InlineDatabase, SqliteConnection, Synchronous
from asynsched.store.engines.urls import DatabaseUrl, parse_url
from asynsched.store.runs.row_locks import lock_out_others
from asynsched.store.schema import OLDEST_BESIDE, REVISIONS, metadata, pool, schema_compatibility
from asynsched.store.secrets import check_key
from asynsched.store.statements import insert_or_update

HEAD = REVISIONS[-1]
SCRIPTS = Path(__file__).parents[1] / "migrations"
_ONLY_ROW = 1
DEFAULT_POOL_SLOTS = 128

_ADVISORY_LOCK = 0x6173796E73636864  # "asynschd"
_HAS_TABLE = {
    "sqlite": sa.text("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"),
    # Not to_regclass: it may answer from a cache that lacks another client's latest commit.
    "postgresql": sa.text(
        "SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.relname = :name AND n.nspname = current_schema()"
    ),
}
_ANY_TABLE = sa.text("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'")
_VERSION = sa.text("SELECT version_num FROM alembic_version")
_VERSION_TABLE = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class SchemaState(NamedTuple):
    """The revision of a database (None: it has none of our tables), and the newest one."""

    current: str | None
    head: str

    @property
    def is_newer(self) -> bool:
        """Whether a newer asynsched has created or migrated it."""
        return self.current is not None and self.current not in REVISIONS

    @property
    def advice(self) -> str:
        """The advice to the user, in a sentence; empty at the newest revision."""
        if self.current == self.head:
            return ""
        if self.current is None:
            return "`asynsched db upgrade` creates it."
        if self.is_newer:
            return "A newer asynsched has migrated it: use that one."
        return "`asynsched db upgrade` migrates it."


def current_revision(conn: Connection) -> str | None:
    """Return the revision of a database; None if it was never prepared."""
    # Another program's database may have an alembic_version too, even with the same revision.
    if not _has_table(conn, schema_compatibility.name):
        return None
    revision: str | None = conn.scalar(_VERSION)
    return revision


def bring_to_head(conn: Connection, shown: str, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> None:
    """Create or migrate the tables, in the transaction of `conn`. Cheap if they are up to date.

    Raises:
        StoreVersionError: A newer version has migrated the database, and this one may not use it; or it holds another
            program's tables.
    """
    revision = current_revision(conn)
    if revision == HEAD:
        return
    if conn.dialect.name == "postgresql":
        # A second process waits here, then finds the work done. On SQLite the write transaction does the same.
        conn.execute(sa.text("SET LOCAL statement_timeout = 0"))
        conn.execute(sa.text("SET LOCAL lock_timeout = 0"))
        lock_out_others(conn, _ADVISORY_LOCK)
        revision = current_revision(conn)
    if revision is None:
        _create(conn, shown, default_pool_slots)
    elif revision not in REVISIONS:
        oldest: str | None = conn.scalar(sa.select(schema_compatibility.c.oldest_revision))
        if oldest is not None and oldest <= HEAD:
            return  # the newer asynsched that has migrated it allows schedulers of this revision
        raise StoreVersionError(
            f"The database {shown} has schema version {revision!r}; asynsched {__version__} knows versions up to"
            f" {HEAD}. Use the asynsched that made it, or a newer one."
        )
    elif revision != HEAD:
        migrate(conn, HEAD)
        _note_compatibility(conn)


def migrate(conn: Connection, revision: str) -> None:
    """Bring the tables to `revision` by Alembic's scripts, in the transaction of `conn`."""
    from alembic import command  # loaded only for a migration
    from alembic.config import Config

    config = Config()  # no alembic.ini, no second connection
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = conn
    command.upgrade(config, revision)


def make_file(path: Path | None) -> None:
    """Create a SQLite file that only its owner can read, in a folder that exists.

    Raises:
        SettingsError: The folder does not exist: its name is probably misspelt.
        StoreUnavailable: The file cannot be created; the message names the path.
    """
    if path is None:
        return
    try:
        if path.exists():
            return
        if not path.parent.exists():
            raise SettingsError(
                f"database: the file {path} cannot be made: the folder {path.parent} does not exist. Make it, or name"
                " another database"
            )
        make_private_file(path)
    except OSError as exc:
        raise StoreUnavailable(f"The database file {path} cannot be made: {exc.strerror}") from exc


def _create(conn: Connection, shown: str, default_pool_slots: int) -> None:
    refuse_foreign(conn, shown)
    metadata.create_all(conn, checkfirst=False)
    _VERSION_TABLE.create(conn)
    _note_compatibility(conn)
    conn.execute(_VERSION_TABLE.insert().values(version_num=HEAD))
    conn.execute(pool.insert().values(name=DEFAULT_POOL, slots=default_pool_slots, description="Default pool"))


def refuse_foreign(conn: Connection, shown: str) -> None:
    """Raise StoreVersionError if a database that was never prepared holds another program's tables: on SQLite, any."""
    if conn.dialect.name == "sqlite":
        foreign: str | None = conn.scalar(_ANY_TABLE)
    else:
        names = (_VERSION_TABLE.name, *metadata.tables)
        foreign = next((name for name in names if _has_table(conn, name)), None)
    if foreign:
        raise StoreVersionError(
            f"The database {shown} has a table {foreign!r} that is not asynsched's. Give it a database of its own."
        )


def _note_compatibility(conn: Connection) -> None:
    row = {"id": _ONLY_ROW, "oldest_revision": OLDEST_BESIDE}
    conn.execute(insert_or_update(conn, schema_compatibility), row)


def _has_table(conn: Connection, name: str) -> bool:
    return conn.execute(_HAS_TABLE[conn.dialect.name], {"name": name}).first() is not None


async def open_database(
    url: str,
    *,
    synchronous: Synchronous = "full",
    default_pool_slots: int = DEFAULT_POOL_SLOTS,
    keys: FernetKeys | None = None,
) -> Database:
    """Open a database for the event loop, as `open_direct` does. Raises SettingsError also for SQLite in memory."""
    parsed = parse_url(url)
    if parsed.backend == "postgresql":
        return await _open_postgres(parsed, default_pool_slots, keys)
    if parsed.path is None:
        raise SettingsError("database: a scheduler needs a database in a file: sqlite:///PATH")
    from asynsched.store.engines.sqlite_database import SqliteDatabase  # commands do without its driver

    prepare = partial(open_direct, url, synchronous=synchronous, default_pool_slots=default_pool_slots)
    (await asyncio.to_thread(prepare)).close()
    return SqliteDatabase(parsed.path, parsed.shown, synchronous=synchronous, keys=keys)


async def open_as_set(settings: Settings) -> Database:
    """Open the database of these settings for the event loop, with its keys. Raises as `open_database` does."""
    database = await open_database(
        settings.database_url,
        synchronous=settings.sqlite_synchronous,
        default_pool_slots=settings.default_pool_slots,
        keys=keys_of(settings),
    )
    try:
        if await database.read(check_key) is not None:
            await asyncio.to_thread(import_module, "cryptography.fernet")  # before the event loop needs it
    except BaseException:
        await database.close()
        raise
    return database


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
    """Return the revision of a database, and the newest one. Creates nothing. Raises as `open_direct` does."""
    parsed = parse_url(url)
    if parsed.backend == "sqlite" and (parsed.path is None or not file_exists(parsed)):
        return SchemaState(None, HEAD)
    with connect_direct(parsed) as database:
        current = database.read(current_revision)
        if current is None:
            database.read(refuse_foreign, parsed.shown)
        return SchemaState(current, HEAD)


def upgrade(url: str, *, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> SchemaState:
    """Create or migrate a database. Returns its former revision, and the newest one. Raises as `open_direct` does."""
    before = schema_state(url)
    open_direct(url, default_pool_slots=default_pool_slots).close()
    return before
