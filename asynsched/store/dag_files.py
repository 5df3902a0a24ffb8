"""Queries of `dag_file`: what was last parsed of each file, so that a start with nothing changed parses nothing."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.conflicts import insert_or_update
from asynsched.store.rows import as_struct, portions, to_json
from asynsched.store.schema.tables import dag_file


class LocalModule(Struct, frozen=True):
    """A local module that a file imported, with the SHA-256 of its text."""

    path: str
    content_hash: str


class DagFileRow(Struct, frozen=True):
    """A file at its last parse. `path` is relative to the DAG folder, `runtime` names what parsed it."""

    path: str
    content_hash: str
    modified_ns: int
    size: int
    local_modules: list[LocalModule]
    parsed_at: datetime
    parse_seconds: float
    n_dags: int
    n_errors: int
    runtime: str = ""


_ALL = sa.select(dag_file).order_by(dag_file.c.path)
_ONE = sa.select(dag_file).where(dag_file.c.path == sa.bindparam("path"))
_SOME = sa.select(dag_file).where(dag_file.c.path.in_(sa.bindparam("paths", expanding=True)))
_SOME_PATHS = sa.select(dag_file.c.path).where(dag_file.c.path.in_(sa.bindparam("paths", expanding=True)))
_INSERT = dag_file.insert()
_DELETE = sa.delete(dag_file).where(dag_file.c.path == sa.bindparam("key"))
_local_modules = msgspec.json.Decoder(list[LocalModule])


def known_files(conn: Connection) -> list[DagFileRow]:
    """Return every file that was parsed and is not gone, by path."""
    return [_file(row) for row in conn.execute(_ALL)]


def get_file(conn: Connection, path: str) -> DagFileRow | None:
    """Return a file; None when it was never parsed, or is gone."""
    row = conn.execute(_ONE, {"path": path}).first()
    return None if row is None else _file(row)


def get_files(conn: Connection, paths: Sequence[str]) -> dict[str, DagFileRow]:
    """Return files by their paths, without those that were never parsed, or are gone."""
    return {row.path: _file(row) for some in portions(paths) for row in conn.execute(_SOME, {"paths": some})}


def put_file(conn: Connection, file: DagFileRow) -> None:
    """Store what was parsed of a file."""
    conn.execute(insert_or_update(conn, dag_file), _values(file))


def put_new_files(conn: Connection, files: Sequence[DagFileRow]) -> None:
    """Store what was parsed of files that were not known."""
    conn.execute(_INSERT, [_values(file) for file in files])


def known_paths(conn: Connection, paths: Sequence[str]) -> set[str]:
    """Return those of the paths whose files are known."""
    return {path for some in portions(paths) for path in conn.scalars(_SOME_PATHS, {"paths": some})}


def delete_file(conn: Connection, path: str) -> None:
    """Forget a file."""
    conn.execute(_DELETE, {"key": path})


def _values(file: DagFileRow) -> dict[str, object]:
    return {**msgspec.structs.asdict(file), "local_modules": to_json(file.local_modules)}


def _file(row: "sa.Row[tuple[object, ...]]") -> DagFileRow:
    return as_struct(DagFileRow, row, local_modules=_local_modules.decode(row.local_modules))
