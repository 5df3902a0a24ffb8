"""Queries of `source`: the texts that DAG files consist of, by content hash."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.store.conflicts import insert_ignoring
from asynsched.store.rows import portions
from asynsched.store.schema.tables import source

_SOME = sa.select(source).where(source.c.content_hash.in_(sa.bindparam("hashes", expanding=True)))
_ONE = sa.select(source.c.text).where(source.c.content_hash == sa.bindparam("hash"))


def put_sources(conn: Connection, texts: Mapping[str, str]) -> None:
    """Store texts by their content hash. Those that are there already stay as they are."""
    if texts:
        rows = [{"content_hash": content_hash, "text": texts[content_hash]} for content_hash in sorted(texts)]
        conn.execute(insert_ignoring(conn, source), rows)


def get_source(conn: Connection, content_hash: str) -> str:
    """Return a text. Raises NotFound."""
    text: str | None = conn.scalar(_ONE, {"hash": content_hash})
    if text is None:
        raise NotFound("source", content_hash)
    return text


def get_sources(conn: Connection, hashes: Sequence[str]) -> dict[str, str]:
    """Return texts by their content hash; unknown ones are left out."""
    rows = (row for some in portions(hashes) for row in conn.execute(_SOME, {"hashes": some}))
    return {row.content_hash: row.text for row in rows}
