"""Queries of `import_error`: why a file, or a DAG of it, could not be used, and its warnings."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.serialization.schema import FileError
from asynsched.store.rows import as_struct, portions, storable
from asynsched.store.schema.tables import import_error


class ImportErrorRow(Struct, frozen=True):
    """An error, or a warning, of a file. The first of a file has what its code printed, as `output`."""

    file_path: str
    kind: str
    message: str
    traceback: str
    line: int | None
    dag_id: str | None
    output: str
    is_warning: bool
    created_at: datetime


_COLUMNS = tuple(import_error.c[name] for name in ImportErrorRow.__struct_fields__)
_ALL = sa.select(*_COLUMNS).order_by(import_error.c.file_path, import_error.c.id)
_OF_FILE = _ALL.where(import_error.c.file_path == sa.bindparam("path"))
_OF_FILES = _ALL.where(import_error.c.file_path.in_(sa.bindparam("paths", expanding=True)))
_DELETE = sa.delete(import_error).where(import_error.c.file_path == sa.bindparam("path"))
_LONGEST_KIND = 32


def list_errors(conn: Connection, file_path: str | None = None) -> list[ImportErrorRow]:
    """Return the errors and warnings of a file, or of all, by file, in the order in which they were found."""
    rows = conn.execute(_ALL) if file_path is None else conn.execute(_OF_FILE, {"path": file_path})
    return [as_struct(ImportErrorRow, row) for row in rows]


def list_errors_of(conn: Connection, file_paths: Sequence[str]) -> list[ImportErrorRow]:
    """Return the errors and warnings of some files."""
    rows = (row for some in portions(file_paths) for row in conn.execute(_OF_FILES, {"paths": some}))
    return [as_struct(ImportErrorRow, row) for row in rows]


def replace_errors(
    conn: Connection,
    file_path: str,
    errors: Sequence[FileError],
    *,
    now: datetime,
    warnings: Sequence[FileError] = (),
    output: str = "",
) -> None:
    """Store all that is wrong with a file now, in place of what was."""
    conn.execute(_DELETE, {"path": file_path})
    found = [(error, False) for error in errors] + [(warning, True) for warning in warnings]
    if found:
        rows = [_values(file_path, error, is_warning, now) for error, is_warning in found]
        rows[0]["output"] = storable(output)
        conn.execute(import_error.insert(), rows)


def _values(file_path: str, error: FileError, is_warning: bool, now: datetime) -> dict[str, object]:
    return {
        "file_path": file_path,
        "kind": storable(error.kind)[:_LONGEST_KIND],
        "message": storable(error.message),
        "traceback": storable(error.traceback),
        "line": error.line,
        "dag_id": None if error.dag_id is None else storable(error.dag_id),
        "output": "",
        "is_warning": is_warning,
        "created_at": now,
    }
