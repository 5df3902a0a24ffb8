"""Queries of `dag_version`, immutable and numbered from 1 for each DAG, and of `source`, the texts that versions have.

A version that no run needs is deleted, and then the sources that no version needs. The newest version of a DAG always
stays, and so does one that was superseded only lately: a run that is being started may still be given it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.rows import as_new, count, fetch_in, fetch_one, select_in
from asynsched.store.schema import DagVersionRow, dag, dag_run, dag_version, source
from asynsched.store.statements import insert_ignoring

_VERSIONS = sa.select(dag_version)


def get_version(conn: Connection, version_id: int) -> DagVersionRow:
    """Return a version. Raises NotFound."""
    for version in get_versions(conn, [version_id]):
        return version
    raise NotFound("DAG version", str(version_id))


def current_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return the version of a new run of a DAG; None if the DAG does not exist, or its file is gone."""
    query = _VERSIONS.join(dag, dag.c.version_id == dag_version.c.id).where(dag.c.dag_id == dag_id, dag.c.is_active)
    return fetch_one(conn, DagVersionRow, query)


def get_versions(conn: Connection, version_ids: Sequence[int]) -> list[DagVersionRow]:
    """Return several versions; unknown ones are left out."""
    return fetch_in(conn, DagVersionRow, _VERSIONS, dag_version.c.id, version_ids)


def serialized_versions(conn: Connection, version_ids: Sequence[int]) -> dict[int, bytes]:
    """Return the JSON of the DAGs of several versions, by their ids."""
    query = sa.select(dag_version.c.id, dag_version.c.serialized)
    return {row.id: row.serialized for row in select_in(conn, query, dag_version.c.id, version_ids)}


def latest_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return a DAG's newest version; None when it has none."""
    query = _VERSIONS.where(dag_version.c.dag_id == dag_id).order_by(dag_version.c.number.desc()).limit(1)
    return fetch_one(conn, DagVersionRow, query)


def add_versions(conn: Connection, versions: Sequence[DagVersionRow]) -> dict[str, int]:
    """Store new versions, each of another DAG; return their ids by dag_id."""
    if not versions:
        return {}
    insert = dag_version.insert().returning(dag_version.c.dag_id, dag_version.c.id)
    return {row.dag_id: row.id for row in conn.execute(insert, [as_new(new) for new in versions])}


def put_sources(conn: Connection, texts: Mapping[str, str]) -> None:
    """Store texts by their content hash, unless they are stored."""
    if texts:
        rows = [{"content_hash": content_hash, "text": texts[content_hash]} for content_hash in sorted(texts)]
        conn.execute(insert_ignoring(conn, source), rows)


def get_source(conn: Connection, content_hash: str) -> str:
    """Return a text. Raises NotFound."""
    found = get_sources(conn, [content_hash])
    if not found:
        raise NotFound("source", content_hash)
    return found[content_hash]


def get_sources(conn: Connection, hashes: Sequence[str]) -> dict[str, str]:
    """Return texts by their content hash; unknown ones are left out."""
    return {row.content_hash: row.text for row in select_in(conn, sa.select(source), source.c.content_hash, hashes)}


_USED = {
    "sqlite": "SELECT json_extract(value, '$.content_hash') FROM dag_version, json_each(CAST(sources AS TEXT))",
    "postgresql": "SELECT item ->> 'content_hash' FROM dag_version,"
    " jsonb_array_elements(CAST(convert_from(sources, 'UTF8') AS jsonb)) AS item",
}


def count_unused_versions(conn: Connection, *, before: datetime) -> int:
    """Count the versions that were superseded before an instant and belong to no run."""
    return count(conn, _unused(before))


def delete_unused_versions(conn: Connection, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` versions that were superseded before an instant and belong to no run. Returns how many."""
    unused = _unused(before).order_by(dag_version.c.id).limit(limit)
    return conn.execute(sa.delete(dag_version).where(dag_version.c.id.in_(list(conn.scalars(unused))))).rowcount


def _unused(before: datetime) -> sa.Select[Any]:
    later = dag_version.alias("later")
    # Any later one: the very next may have gone, while a run still needed this one.
    is_superseded = sa.exists().where(
        later.c.dag_id == dag_version.c.dag_id, later.c.number > dag_version.c.number, later.c.created_at < before
    )
    is_newest = sa.exists().where(dag.c.dag_id == dag_version.c.dag_id, dag.c.version_id == dag_version.c.id)
    is_of_run = sa.exists().where(dag_run.c.version_id == dag_version.c.id)
    return sa.select(dag_version.c.id).where(is_superseded, ~is_newest, ~is_of_run)


def has_unused_sources(conn: Connection) -> bool:
    """Whether there is a source that no version needs. Unlike deleting them, this blocks no writer."""
    return conn.scalar(sa.select(source.c.content_hash).where(_is_unused(conn)).limit(1)) is not None


def delete_unused_sources(conn: Connection) -> int:
    """Delete the sources that no version needs. Returns how many."""
    if conn.dialect.name == "postgresql":
        # A parse stores its sources first, then the version that needs them: wait for transactions between the two.
        conn.execute(sa.text("LOCK TABLE source IN SHARE ROW EXCLUSIVE MODE"))
    return conn.execute(sa.delete(source).where(_is_unused(conn))).rowcount


def _is_unused(conn: Connection) -> sa.TextClause:
    return sa.text(f"source.content_hash NOT IN ({_USED[conn.dialect.name]})")


def unknown_sources(conn: Connection, hashes: Collection[str]) -> set[str]:
    """Return those of the content hashes that are not stored."""
    query = sa.select(source.c.content_hash)
    return set(hashes) - {row.content_hash for row in select_in(conn, query, source.c.content_hash, list(hashes))}
