"""Queries of `dag_version`: immutable, numbered from 1 for each DAG."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import as_struct, portions, to_json
from asynsched.store.schema.tables import dag, dag_version
from sandbox.protocol import SourceRef


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
_LATEST = (
    sa.select(dag_version)
    .where(dag_version.c.dag_id == sa.bindparam("dag_id"))
    .order_by(dag_version.c.number.desc())
    .limit(1)
)
_HASHES = (
    sa.select(dag.c.dag_id, dag_version.c.version_hash)
    .join(dag_version, dag_version.c.id == dag.c.version_id)
    .where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
)
_INSERT = dag_version.insert().returning(dag_version.c.id)


def get_version(conn: Connection, version_id: int) -> DagVersionRow:
    """Return a version. Raises NotFound."""
    row = conn.execute(_ONE, {"id": version_id}).first()
    if row is None:
        raise NotFound("DAG version", str(version_id))
    return _version(row)


def latest_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return a DAG's newest version; None when it has none."""
    row = conn.execute(_LATEST, {"dag_id": dag_id}).first()
    return None if row is None else _version(row)


def latest_hashes(conn: Connection, dag_ids: Sequence[str]) -> dict[str, str]:
    """Return the hashes of the newest versions of those DAGs that have one."""
    return {
        row.dag_id: row.version_hash for some in portions(dag_ids) for row in conn.execute(_HASHES, {"dag_ids": some})
    }


def add_version(
    conn: Connection,
    dag_id: str,
    *,
    version_hash: str,
    file_path: str,
    serialized: bytes,
    sources: Sequence[SourceRef],
    now: datetime,
    is_first: bool = False,
) -> int:
    """Return the id of the version with this hash: the latest one if it is that, else a new one.

    Args:
        is_first: The DAG was not known before: it has no version.
    """
    latest = None if is_first else latest_version(conn, dag_id)
    if latest is not None and (latest.version_hash, latest.file_path) == (version_hash, file_path):
        return latest.id
    version_id: int = conn.execute(
        _INSERT,
        {
            "dag_id": dag_id,
            "number": 1 if latest is None else latest.number + 1,
            "version_hash": version_hash,
            "file_path": file_path,
            "serialized": serialized,
            "sources": to_json(sources),
            "created_at": now,
        },
    ).scalar_one()
    return version_id


_source_refs = msgspec.json.Decoder(list[SourceRef])


def _version(row: "sa.Row[tuple[object, ...]]") -> DagVersionRow:
    return as_struct(DagVersionRow, row, sources=_source_refs.decode(row.sources))
