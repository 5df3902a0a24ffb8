"""One SQLite connection that runs queries in transactions; all uses of SQLite build on it."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.pool import NullPool

from asynsched.errors import StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.store.database import Database, DirectDatabase, P, Query, T
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.secrets import execution_options

Work = Callable[[Connection], T]
Synchronous = Literal["full", "normal"]

BUSY_TIMEOUT_SECONDS = 10.0
_CACHE_KIB = 16 * 1024


class _HintingCompiler(SQLiteCompiler):
    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text  # SQLAlchemy leaves the hints of `with_hint` out for SQLite


class Outcome(NamedTuple):
    """The outcome of one query of several: its value, or the error that undid it."""

    value: Any = None
    error: Exception | None = None


class SqliteConnection(DirectDatabase):
    """A connection, opened when first needed and again after a failure.

    Args:
        path: The file; None for a database in memory, which lives as long as the connection.
        synchronous: `full` survives a power cut, `normal` may lose its last moment.
        read_only: Refuse every change.
        keys: The keys of its secrets.
    """

    def __init__(
        self,
        path: Path | None,
        shown: str,
        *,
        synchronous: Synchronous = "full",
        read_only: bool = False,
        keys: FernetKeys | None = None,
    ) -> None:
        self._path = path
        self._shown = shown
        self._engine = _engine(path, synchronous, read_only, keys)
        self._connection: Connection | None = None

    def open(self) -> sqlite3.Connection:
        """Open the connection now, and return the driver's own."""
        with store_errors(self._shown):
            if self._connection is None:
                self._connection = self._engine.connect()
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        return driver

    def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transaction("BEGIN", query, args, kwargs)

    def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transaction("BEGIN IMMEDIATE", query, args, kwargs)

    def write_together(self, queries: Sequence[Work[Any]]) -> list[Outcome]:
        """Run queries in one transaction. A failed query undoes only itself; a lost database undoes all."""
        try:
            if len(queries) == 1:
                return [Outcome(self.write(queries[0]))]
            return self.write(lambda connection: [_apart(connection, query, self._shown) for query in queries])
        except Exception as exc:  # noqa: BLE001 - handed to the callers, each of whom waits for an outcome
            return [Outcome(error=exc)] * len(queries)

    def close(self) -> None:
        """Close the connection. It opens again when it is used."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
        self._engine.dispose()

    def _transaction(self, begin: str, query: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        try:
            with store_errors(self._shown):
                if self._connection is None:
                    self._connection = self._engine.connect()
                self._connection.execution_options(sqlite_begin=begin)
                with self._connection.begin():
                    return query(self._connection, *args, **kwargs)
        except StoreUnavailable:
            if self._path is not None:
                self.close()  # the next use starts afresh
            raise


class InlineDatabase(Database):
    """Synchronous SQLite with the scheduler's interface: nothing waits, so the simulation decides every order."""

    def __init__(self, path: Path | None, shown: str) -> None:
        self.connection = SqliteConnection(path, shown, synchronous="normal")

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.read(query, *args, **kwargs)

    async def write(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.write(query, *args, **kwargs)

    async def close(self) -> None:
        self.connection.close()


def _apart(connection: Connection, query: Work[Any], shown: str) -> Outcome:
    """Run a query in a savepoint. Raises StoreUnavailable: then SQLite may have undone the whole transaction itself."""
    savepoint = connection.begin_nested()
    try:
        with store_errors(shown):
            value = query(connection)
    except StoreUnavailable:
        raise
    except Exception as exc:  # noqa: BLE001 - handed to the caller who waits for this outcome
        savepoint.rollback()
        return Outcome(error=exc)
    savepoint.commit()
    return Outcome(value)


def _engine(path: Path | None, synchronous: Synchronous, read_only: bool, keys: FernetKeys | None) -> Engine:
    def connect() -> sqlite3.Connection:
        driver = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=BUSY_TIMEOUT_SECONDS,
            isolation_level=None,  # transactions begin in `begin` below
            check_same_thread=False,  # one thread at a time, though not always the same
            cached_statements=512,
        )
        try:
            _configure(driver, synchronous, read_only)
        except BaseException:
            driver.close()
            raise
        return driver

    options = execution_options(keys, in_memory=path is None)
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool, execution_options=options)
    engine.dialect.statement_compiler = _HintingCompiler

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options()["sqlite_begin"])

    return engine


def _configure(driver: sqlite3.Connection, synchronous: Synchronous, read_only: bool) -> None:
    mode = driver.execute("PRAGMA journal_mode").fetchone()[0]
    if mode not in {"wal", "memory"} and not _is_foreign(driver):
        driver.execute("PRAGMA journal_mode = wal")
    driver.execute(f"PRAGMA synchronous = {synchronous}")
    driver.execute("PRAGMA foreign_keys = on")
    driver.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    if read_only:
        driver.execute("PRAGMA query_only = on")


def _is_foreign(driver: sqlite3.Connection) -> bool:
    """Whether a file is another program's: then nothing in it is changed, not even its journal mode."""
    tables = {name for (name,) in driver.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(tables) and "schema_compatibility" not in tables
