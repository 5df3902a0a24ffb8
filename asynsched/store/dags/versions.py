"""Queries of `dag_version`, immutable and numbered from 1 for each DAG, and of `source`, the texts that versions have.

A version that no run needs is deleted, and then the sources that no version needs. The newest version of a DAG always
stays, and so does one that was superseded only lately: a run that is being started may still be given it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, bindparam

from asynsched.errors import NotFound
from asynsched.protocol.messages import SourceRef
from asynsched.store.rows import as_struct, portions, to_json
from asynsched.store.schema import Instant, dag, dag_run, dag_version, source
from asynsched.store.statements import insert_ignoring


class NewVersion(Struct, frozen=True):
    """A version that is to be stored, the next in number of its DAG. It has the DAG file first in its `sources`."""

    dag_id: str
    number: int
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
_INSERT = dag_version.insert().returning(dag_version.c.dag_id, dag_version.c.id)


def get_version(conn: Connection, version_id: int) -> DagVersionRow:
    """Return a version. Raises NotFound."""
    row = conn.execute(_ONE, {"id": version_id}).first()
    if row is None:
        raise NotFound("DAG version", str(version_id))
    return _version(row)


def current_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return the version of a new run of a DAG; None if the DAG does not exist, or its file is gone."""
    row = conn.execute(_CURRENT, {"dag_id": dag_id}).first()
    return None if row is None else _version(row)


def get_versions(conn: Connection, version_ids: Sequence[int]) -> list[DagVersionRow]:
    """Return several versions; unknown ones are left out."""
    return [_version(row) for some in portions(version_ids) for row in conn.execute(_SOME, {"ids": some})]


def serialized_versions(conn: Connection, version_ids: Sequence[int]) -> dict[int, bytes]:
    """Return the JSON of the DAGs of several versions, by their ids."""
    rows = (row for some in portions(version_ids) for row in conn.execute(_SERIALIZED, {"ids": some}))
    return {row.id: row.serialized for row in rows}


def latest_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return a DAG's newest version; None when it has none."""
    row = conn.execute(_LATEST, {"dag_id": dag_id}).first()
    return None if row is None else _version(row)


def add_versions(conn: Connection, versions: Sequence[NewVersion]) -> dict[str, int]:
    """Store new versions, each of another DAG; return their ids by dag_id."""
    if not versions:
        return {}
    rows = [{**asdict(new), "sources": to_json(new.sources)} for new in versions]
    return {row.dag_id: row.id for row in conn.execute(_INSERT, rows)}


_source_refs = msgspec.json.Decoder(list[SourceRef])


def _version(row: "sa.Row[tuple[object, ...]]") -> DagVersionRow:
    return as_struct(DagVersionRow, row, sources=_source_refs.decode(row.sources))


_SOME_SOURCES = sa.select(source).where(source.c.content_hash.in_(sa.bindparam("hashes", expanding=True)))
_ONE_SOURCE = sa.select(source.c.text).where(source.c.content_hash == sa.bindparam("hash"))


def put_sources(conn: Connection, texts: Mapping[str, str]) -> None:
    """Store texts by their content hash, unless they are stored."""
    if texts:
        rows = [{"content_hash": content_hash, "text": texts[content_hash]} for content_hash in sorted(texts)]
        conn.execute(insert_ignoring(conn, source), rows)


def get_source(conn: Connection, content_hash: str) -> str:
    """Return a text. Raises NotFound."""
    text: str | None = conn.scalar(_ONE_SOURCE, {"hash": content_hash})
    if text is None:
        raise NotFound("source", content_hash)
    return text


def get_sources(conn: Connection, hashes: Sequence[str]) -> dict[str, str]:
    """Return texts by their content hash; unknown ones are left out."""
    rows = (row for some in portions(hashes) for row in conn.execute(_SOME_SOURCES, {"hashes": some}))
    return {row.content_hash: row.text for row in rows}


_LATER = dag_version.alias("later")
_UNUSED = (
    sa.select(dag_version.c.id)
    .where(
        # Any later one: the very next may have gone, while a run still needed this one.
        sa.exists().where(
            _LATER.c.dag_id == dag_version.c.dag_id,
            _LATER.c.number > dag_version.c.number,
            _LATER.c.created_at < bindparam("before", type_=Instant),
        ),
        ~sa.exists().where(dag.c.dag_id == dag_version.c.dag_id, dag.c.version_id == dag_version.c.id),
        ~sa.exists().where(dag_run.c.version_id == dag_version.c.id),
    )
    .order_by(dag_version.c.id)
    .limit(bindparam("limit"))
)
_DELETE = sa.delete(dag_version).where(dag_version.c.id.in_(bindparam("keys", expanding=True)))
_USED = {
    "sqlite": "SELECT json_extract(value, '$.content_hash') FROM dag_version, json_each(CAST(sources AS TEXT))",
    "postgresql": "SELECT item ->> 'content_hash' FROM dag_version,"
    " jsonb_array_elements(CAST(convert_from(sources, 'UTF8') AS jsonb)) AS item",
}
_HAS_UNUSED_SOURCES = {
    dialect: sa.text(f"SELECT EXISTS (SELECT 1 FROM source WHERE content_hash NOT IN ({used}))")  # noqa: S608 - constants
    for dialect, used in _USED.items()
}
_DELETE_SOURCES = {
    dialect: sa.text(f"DELETE FROM source WHERE content_hash NOT IN ({used})")  # noqa: S608 - constants
    for dialect, used in _USED.items()
}
# A parse stores its sources first, then the version that needs them: wait for transactions between the two.
_LOCK = sa.text("LOCK TABLE source IN SHARE ROW EXCLUSIVE MODE")
_KNOWN = sa.select(source.c.content_hash).where(source.c.content_hash.in_(bindparam("hashes", expanding=True)))


def count_unused_versions(conn: Connection, *, before: datetime) -> int:
    """Count the versions that were superseded before an instant and belong to no run."""
    return len(conn.execute(_UNUSED, {"before": before, "limit": 2**31}).all())


def delete_unused_versions(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` versions that were superseded before an instant and belong to no run. Returns how many."""
    keys = list(conn.scalars(_UNUSED, {"before": before, "limit": limit}))
    if keys:
        conn.execute(_DELETE, {"keys": keys})
    return len(keys)


def has_unused_sources(conn: Connection) -> bool:
    """Whether there is a source that no version needs. Unlike deleting them, this blocks no writer."""
    return bool(conn.scalar(_HAS_UNUSED_SOURCES[conn.dialect.name]))


def delete_unused_sources(conn: Connection) -> int:
    """Delete the sources that no version needs. Returns how many."""
    if conn.dialect.name == "postgresql":
        conn.execute(_LOCK)
    return conn.execute(_DELETE_SOURCES[conn.dialect.name]).rowcount


def unknown_sources(conn: Connection, hashes: Collection[str]) -> set[str]:
    """Return those of the content hashes that are not stored."""
    return set(hashes) - set(conn.scalars(_KNOWN, {"hashes": list(hashes)}))
