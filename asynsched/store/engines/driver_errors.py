"""Turns the drivers' errors into asynsched's; the only place that distinguishes a lost database from a bug."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import exc as sa_exc

from asynsched.errors import AlreadyExists, SettingsError, StoreError, StoreUnavailable

_SQLITE_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another process is writing to it",
    sqlite3.SQLITE_LOCKED: "another process is writing to it",
    sqlite3.SQLITE_PROTOCOL: "another process is writing to it",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "it is not accessible",
    sqlite3.SQLITE_AUTH: "it is not accessible",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted",
    sqlite3.SQLITE_IOERR: "reading or writing the file failed",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}
_SQLITE_DAMAGED = {
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a backup",
}
_SQLITE_KEY_TAKEN = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
_POSTGRES_TRANSIENT = {
    "08": "the connection was lost",
    "40": "it was in conflict with another transaction",
    "53": "the server is out of a resource",
    "55P03": "a lock was not granted in time",
    "57014": "a statement took too long",
    "57P": "the server is stopping or starting",
    "58": "the server's disk failed",
    "25006": "it is read-only",
    "25P0": "the transaction was idle for too long",
    "28": "the server refused the user or the password",
    "3D000": "the server has no database of that name",
    "3F000": "there is no schema for its tables: a search_path in the URL or of the user names none that exists",
}
_MISCONFIGURED = ("28", "3D000", "3F000")
_UNIQUE_VIOLATION = "23505"
_BAD_VALUE = "22"


@contextmanager
def store_errors(shown: str, *, opening: bool = False) -> Iterator[None]:
    """Turn a driver's exceptions into this project's errors; a bug passes unchanged.

    Args:
        shown: The database's URL without secrets.
        opening: Whether a refused password or database name is a SettingsError, not StoreUnavailable.
    """
    try:
        yield
    except Exception as exc:
        # PostgreSQL's driver without SQLAlchemy: its errors have the same attributes as those that SQLAlchemy wraps.
        cause = exc.orig if isinstance(exc, sa_exc.DBAPIError) else exc
        translated = _translated(exc, cause, shown, opening)
        if translated is None:
            raise
        raise translated from exc


def _translated(exc: Exception, cause: BaseException | None, shown: str, opening: bool) -> Exception | None:
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, shown)
    if isinstance(cause, OverflowError) and "SQLite INTEGER" in str(cause):
        return StoreError(f"The database {shown} refused a value: {cause}")
    if isinstance(cause, OSError):
        return StoreUnavailable(
            f"The database {shown} cannot be reached: {cause.strerror or str(cause) or 'no answer in time'}"
        )
    if isinstance(exc, sa_exc.TimeoutError):
        return StoreUnavailable(f"The database {shown} cannot be used: every connection is busy")
    return _of_postgres(exc, cause, shown, opening)


def _of_sqlite(cause: sqlite3.Error, shown: str) -> StoreError | None:
    code: int = getattr(cause, "sqlite_errorcode", 0)
    if code in _SQLITE_KEY_TAKEN:
        return AlreadyExists(f"A row with the same key exists: {str(cause).rpartition(': ')[2]}")
    if reason := _SQLITE_TRANSIENT.get(code & 0xFF):
        return StoreUnavailable(f"The database {shown} cannot be used: {reason} ({cause})")
    if reason := _SQLITE_DAMAGED.get(code & 0xFF):
        return StoreError(f"The database {shown} cannot be used: {reason}")
    return None


def _of_postgres(exc: Exception, cause: Any, shown: str, opening: bool) -> Exception | None:
    sqlstate: str = getattr(cause, "sqlstate", None) or ""
    if sqlstate == _UNIQUE_VIOLATION:
        return AlreadyExists(f"A row with the same key exists: {getattr(cause, 'detail', None) or cause}")
    if sqlstate.startswith(_BAD_VALUE):
        return StoreError(f"The database {shown} refused a value: {_first_line(cause)}")
    reason = next((text for prefix, text in _POSTGRES_TRANSIENT.items() if sqlstate.startswith(prefix)), None)
    if reason and opening and sqlstate.startswith(_MISCONFIGURED):
        return SettingsError(f"database: {shown} cannot be used: {reason}")
    if reason:
        return StoreUnavailable(f"The database {shown} cannot be used: {reason} ({_first_line(cause)})")
    if isinstance(exc, sa_exc.DBAPIError) and exc.connection_invalidated:
        return StoreUnavailable(f"The database {shown} cannot be used: the connection was lost")
    if isinstance(exc, sa_exc.InterfaceError | sa_exc.InternalError) and not sqlstate:
        return StoreUnavailable(f"The database {shown} cannot be used: {_first_line(cause)}")
    return None


def _first_line(cause: object) -> str:
    """Return the server's message, without the class that SQLAlchemy puts before it."""
    return str(cause).partition("\n")[0].rpartition(">: ")[2]
