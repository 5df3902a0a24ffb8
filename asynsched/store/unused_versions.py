"""Versions of DAGs that no run needs, and sources that no version needs.

The newest version of a DAG always stays, and so does one that was superseded only lately: a run that is being started
may still be given it.
"""

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from asynsched.store.schema.column_types import Instant
from asynsched.store.schema.tables import dag, dag_run, dag_version, source

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
# A parse stores its sources first, then the version that needs them. Whoever is between the two is waited for.
_LOCK = sa.text("LOCK TABLE source IN SHARE ROW EXCLUSIVE MODE")
_KNOWN = sa.select(source.c.content_hash).where(source.c.content_hash.in_(bindparam("hashes", expanding=True)))


def count_unused_versions(conn: Connection, *, before: datetime) -> int:
    """Return how many versions were superseded before an instant and belong to no run."""
    return len(conn.execute(_UNUSED, {"before": before, "limit": 2**31}).all())


def delete_unused_versions(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` versions that were superseded before an instant and belong to no run. Returns how many."""
    keys = list(conn.scalars(_UNUSED, {"before": before, "limit": limit}))
    if keys:
        conn.execute(_DELETE, {"keys": keys})
    return len(keys)


def has_unused_sources(conn: Connection) -> bool:
    """Whether there is a source that no version needs. It keeps nobody from writing, as deleting them does."""
    return bool(conn.scalar(_HAS_UNUSED_SOURCES[conn.dialect.name]))


def delete_unused_sources(conn: Connection) -> int:
    """Delete the sources that no version needs. Returns how many."""
    if conn.dialect.name == "postgresql":
        conn.execute(_LOCK)
    return conn.execute(_DELETE_SOURCES[conn.dialect.name]).rowcount


def unknown_sources(conn: Connection, hashes: Collection[str]) -> set[str]:
    """Return those of the content hashes that are not stored."""
    return set(hashes) - set(conn.scalars(_KNOWN, {"hashes": list(hashes)}))
