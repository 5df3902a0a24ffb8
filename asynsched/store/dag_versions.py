"""Queries of `dag_version`: immutable, numbered from 1 for each DAG."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import as_struct, portions, to_json
from asynsched.store.schema.tables import dag, dag_version
from sandbox.protocol import SourceRef


class NewVersion(Struct, frozen=True):
    """A version that is to be stored, unless it is the latest one. It has the DAG file first in its `sources`."""

    dag_id: str
    version_hash: str
    file_path: str
    serialized: bytes
    sources: Sequence[SourceRef]
    created_at: datetime


class DagVersionRow(Struct, frozen=True):
    """A version of a DAG. `serialized` is JSON of a SerializedDag, `sources` has the DAG file first."""

    id: int
    dag_id: str
    number: int
    version_hash: str
    file_path: str
    serialized: bytes
    sources: list[SourceRef]
    created_at: datetime


_ONE = sa.select(dag_version).where(dag_version.c.id == sa.bindparam("id"))
_CURRENT = (
    sa.select(dag_version)
    .join(dag, dag.c.version_id == dag_version.c.id)
    .where(dag.c.dag_id == sa.bindparam("dag_id"), dag.c.is_active)
)
_SOME = sa.select(dag_version).where(dag_version.c.id.in_(sa.bindparam("ids", expanding=True)))
_SERIALIZED = sa.select(dag_version.c.id, dag_version.c.serialized).where(
    dag_version.c.id.in_(sa.bindparam("ids", expanding=True))
)
_LATEST = (
    sa.select(dag_version)
    .where(dag_version.c.dag_id == sa.bindparam("dag_id"))
    .order_by(dag_version.c.number.desc())
    .limit(1)
)
_INSERT = dag_version.insert().returning(dag_version.c.id)
_INSERT_MANY = dag_version.insert().returning(dag_version.c.dag_id, dag_version.c.id)


def get_version(conn: Connection, version_id: int) -> DagVersionRow:
    """Return a version. Raises NotFound."""
    row = conn.execute(_ONE, {"id": version_id}).first()
    if row is None:
        raise NotFound("DAG version", str(version_id))
    return _version(row)


def current_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return the version that a new run of a DAG is of; None when there is no such DAG, or its file is gone."""
    row = conn.execute(_CURRENT, {"dag_id": dag_id}).first()
    return None if row is None else _version(row)


def get_versions(conn: Connection, version_ids: Sequence[int]) -> list[DagVersionRow]:
    """Return several versions; those that there are not are left out."""
    return [_version(row) for some in portions(version_ids) for row in conn.execute(_SOME, {"ids": some})]


def serialized_versions(conn: Connection, version_ids: Sequence[int]) -> dict[int, bytes]:
    """Return the JSON of the DAGs of several versions, by their ids."""
    rows = (row for some in portions(version_ids) for row in conn.execute(_SERIALIZED, {"ids": some}))
    return {row.id: row.serialized for row in rows}


def latest_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return a DAG's newest version; None when it has none."""
    row = conn.execute(_LATEST, {"dag_id": dag_id}).first()
    return None if row is None else _version(row)


def add_version(conn: Connection, new: NewVersion, *, is_first: bool = False) -> int:
    """Return the id of the version with this hash: the latest one if it is that, else a new one.

    Args:
        new: The version.
        is_first: The DAG was not known before: it has no version.
    """
    latest = None if is_first else latest_version(conn, new.dag_id)
    if latest is not None and (latest.version_hash, latest.file_path) == (new.version_hash, new.file_path):
        return latest.id
    number = 1 if latest is None else latest.number + 1
    version_id: int = conn.execute(_INSERT, _values(new, number)).scalar_one()
    return version_id


def add_first_versions(conn: Connection, versions: Iterable[NewVersion]) -> dict[str, int]:
    """Store the first version of each of several DAGs; return their ids by dag_id."""
    return {row.dag_id: row.id for row in conn.execute(_INSERT_MANY, [_values(new, 1) for new in versions])}


def _values(new: NewVersion, number: int) -> dict[str, Any]:
    return {**asdict(new), "number": number, "sources": to_json(new.sources)}


_source_refs = msgspec.json.Decoder(list[SourceRef])


def _version(row: "sa.Row[tuple[object, ...]]") -> DagVersionRow:
    return as_struct(DagVersionRow, row, sources=_source_refs.decode(row.sources))
