"""Prepares a database: creates the tables of a new one, migrates an old one, refuses a newer one.

Loading Alembic takes longer than a whole command may take, so it is loaded only for a migration. A new
database gets all tables at once, and is stamped with the newest revision; a test proves that these equal the tables
that the migrations make.
"""

from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched import durable_files
from asynsched._version import __version__
from asynsched.errors import SettingsError, StoreUnavailable, StoreVersionError
from asynsched.store.runs.row_locks import lock_out_others
from asynsched.store.schema import DEFAULT_POOL, OLDEST_BESIDE, REVISIONS, metadata, pool, schema_compatibility
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
        return self.current is not None and self.current not in (*REVISIONS, self.head)

    @property
    def advice(self) -> str:
        """The advice to the user, in a sentence; empty at the newest revision."""
        if self.current == self.head:
            return ""
        if self.current is None:
            return "`asynsched db upgrade` makes it."
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

    Args:
        shown: The database's URL without secrets.
        default_pool_slots: Slots of a new database's default_pool.

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
        if _may_be_used_by(conn, HEAD):
            return
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
        durable_files.make_file(path)
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
    """Raise StoreVersionError if a database that was never prepared holds another program's tables."""
    if foreign := _foreign_table(conn):
        raise StoreVersionError(
            f"The database {shown} has a table {foreign!r} that is not asynsched's. Give it a database of its own."
        )


def _foreign_table(conn: Connection) -> str | None:
    """Return the name of another program's table: in a SQLite file, any table."""
    if conn.dialect.name == "sqlite":
        found: str | None = conn.scalar(_ANY_TABLE)
        return found
    names = (_VERSION_TABLE.name, *metadata.tables)
    return next((name for name in names if _has_table(conn, name)), None)


def _note_compatibility(conn: Connection) -> None:
    row = {"id": _ONLY_ROW, "oldest_revision": OLDEST_BESIDE}
    conn.execute(insert_or_update(conn, schema_compatibility), row)


def _may_be_used_by(conn: Connection, revision: str) -> bool:
    """Whether the newer asynsched that has migrated a database allows schedulers of this revision."""
    oldest: str | None = conn.scalar(sa.select(schema_compatibility.c.oldest_revision))
    return oldest is not None and oldest <= revision


def _has_table(conn: Connection, name: str) -> bool:
    return conn.execute(_HAS_TABLE[conn.dialect.name], {"name": name}).first() is not None
