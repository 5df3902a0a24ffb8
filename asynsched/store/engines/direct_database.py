"""The database without an event loop: for the command line, for threads of their own, and for simulation."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Concatenate, NoReturn, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.util import greenlet_spawn

from asynsched.errors import DatabaseMissing, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.postgres_hosts import ServerOrder
from asynsched.store.engines.preparation import (
    DEFAULT_POOL_SLOTS,
    HEAD,
    bring_to_head,
    current_revision,
    make_file,
    refuse_foreign,
)
from asynsched.store.engines.sqlite_connection import SqliteConnection, Synchronous
from asynsched.store.engines.urls import DatabaseUrl, parse_url

P = ParamSpec("P")
T = TypeVar("T")


class DirectDatabase(ABC):
    """A database whose methods return when the work is done. Used by one thread at a time."""

    @abstractmethod
    def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that writes nothing. Raises StoreUnavailable when the database cannot be reached."""

    @abstractmethod
    def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a transaction of its own, durable when this returns. Raises StoreUnavailable."""

    @abstractmethod
    def close(self) -> None:
        """Release every connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_direct(
    url: str,
    *,
    synchronous: Synchronous = "full",
    default_pool_slots: int = DEFAULT_POOL_SLOTS,
    keys: FernetKeys | None = None,
    make: bool = True,
) -> DirectDatabase:
    """Open a database; make it where there is none, if that is wanted, and migrate it where it is behind.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER@HOST/NAME`.
        synchronous: SQLite only: `full` survives a power cut, `normal` may lose its last moment.
        default_pool_slots: Slots of the default_pool of a new database.
        keys: Those of its secrets; None: no query of them is possible.
        make: Whether it is made where there is none.

    Raises:
        SettingsError: The URL names no database, or one in a folder that does not exist, or the server refused the
            user, the password or the name.
        DatabaseMissing: There is none, and it is not to be made.
        StoreUnavailable: The database cannot be reached.
        StoreVersionError: It has a schema that this version of asynsched does not know.
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
    """Return whether there is a file; True for what is in no file. Raises StoreUnavailable."""
    try:
        return url.path is None or url.path.exists()
    except OSError as exc:
        raise StoreUnavailable(f"The database {url.shown} cannot be reached: {exc.strerror}") from exc


def connect_direct(
    url: DatabaseUrl, *, synchronous: Synchronous = "full", keys: FernetKeys | None = None
) -> DirectDatabase:
    """Return a database as it is, neither made nor migrated."""
    if url.backend == "postgresql":
        return _DirectPostgres(url, keys)
    return _DirectSqlite(url.path, url.shown, synchronous, keys)


def open_inline(url: str = "sqlite://", *, default_pool_slots: int = DEFAULT_POOL_SLOTS) -> "InlineDatabase":
    """Open a SQLite database, in memory by default, for simulation."""
    parsed = parse_url(url)
    database = InlineDatabase(parsed)
    database.connection.write(partial(bring_to_head, shown=parsed.shown, default_pool_slots=default_pool_slots))
    return database


class InlineDatabase(Database):
    """SQLite on the spot, with the scheduler's interface: nothing waits, so that simulation decides every order."""

    def __init__(self, url: DatabaseUrl) -> None:
        make_file(url.path)
        self.connection = SqliteConnection(url.path, url.shown, synchronous="normal")

    async def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.read(lambda connection: query(connection, *args, **kwargs))

    async def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.write(lambda connection: query(connection, *args, **kwargs))

    async def close(self) -> None:
        self.connection.close()


class _DirectSqlite(DirectDatabase):
    def __init__(self, path: Path | None, shown: str, synchronous: Synchronous, keys: FernetKeys | None) -> None:
        make_file(path)
        self._connection = SqliteConnection(path, shown, synchronous=synchronous, keys=keys)

    def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._connection.read(lambda connection: query(connection, *args, **kwargs))

    def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._connection.write(lambda connection: query(connection, *args, **kwargs))

    def close(self) -> None:
        self._connection.close()


class _DirectPostgres(DirectDatabase):
    """PostgreSQL through an event loop of its own, which runs only while a query does."""

    def __init__(self, url: DatabaseUrl, keys: FernetKeys | None) -> None:
        from asynsched.store.engines import postgres_engine  # the driver is loaded only where it is used

        self._shown = url.shown
        self._runner = asyncio.Runner()
        order = ServerOrder()
        self._engine = postgres_engine.pooled_engine(url, order, pool_size=1, keys=keys)
        self._snapshots = postgres_engine.snapshots_of(self._engine)
        self._for_migrations = partial(postgres_engine.unhurried_engine, url, order)
        self._opening = True

    def read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(self._snapshots, lambda connection: query(connection, *args, **kwargs))

    def write(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        engine = self._for_migrations() if query is bring_to_head else self._engine
        return self._run(engine, lambda connection: query(connection, *args, **kwargs))

    def close(self) -> None:
        self._runner.run(greenlet_spawn(self._engine.dispose))
        self._runner.close()

    def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with store_errors(self._shown, opening=self._opening):
            result: T = self._runner.run(greenlet_spawn(self._transaction, engine, work))
            return result

    def _transaction(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            self._opening = False
            return work(connection)
