"""Questions about the versions of DAGs: their numbers, their structure and their sources."""

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, Row

from asynsched.errors import NotFound
from asynsched.queries.context import QueryContext
from asynsched.queries.paging import FIRST_PAGE, Page, Paging, Sorting, one_of, select_page
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.store.dags.dags import get_sources, near_dag_ids
from asynsched.store.rows import count
from asynsched.store.schema import dag, dag_version, source

LONGEST_SOURCE = 4 * 1024**2
"""Characters of a source that are shown."""
MOST_SOURCE_CHARACTERS = 500_000
"""Of all files of a version together."""
REDACTED = "The file defines other DAGs too, which you may not see: so its source is not shown."


class VersionInfo(Struct, frozen=True, kw_only=True):
    """A version of a DAG.

    Attributes:
        number: Counts the versions of its DAG, from 1.
        file: The DAG file, relative to the DAG folder.
    """

    id: int
    dag_id: str
    dag_display_name: str
    number: int
    file: str
    created_at: datetime


class VersionFilter(Struct, frozen=True):
    """Which versions are wanted: of these DAGs, with these numbers; None: all."""

    dag_ids: frozenset[str] | None = None
    numbers: tuple[int, ...] | None = None


SORTING = Sorting(
    {"id": dag_version.c.id, "number": dag_version.c.number, "created_at": dag_version.c.created_at},
    key=dag_version.c.id,
    usual=("id",),
)
DISPLAY_NAME = sa.func.coalesce(dag.c.display_name, dag_version.c.dag_id)
_VERSIONS = sa.select(
    dag_version.c.id,
    dag_version.c.dag_id,
    DISPLAY_NAME.label("dag_display_name"),
    dag_version.c.number,
    dag_version.c.file_path,
    dag_version.c.created_at,
).join(dag, dag.c.dag_id == dag_version.c.dag_id, isouter=True)


def list_versions(conn: Connection, wanted: VersionFilter, paging: Paging = FIRST_PAGE) -> Page[VersionInfo]:
    """Return versions. Raises BadRequest."""
    rows, after = select_page(conn, _VERSIONS.where(*_conditions(wanted)), SORTING, paging)
    return Page(tuple(_info(row) for row in rows), after)


def count_versions(conn: Connection, wanted: VersionFilter) -> int:
    """Count such versions."""
    return count(conn, _VERSIONS.where(*_conditions(wanted)))


def get_version(conn: Connection, dag_id: str, number: int | None = None) -> VersionInfo:
    """Return a version of a DAG, by default the newest. Raises NotFound."""
    return _info(_find(conn, _VERSIONS, dag_id, number))


class SourceInfo(Struct, frozen=True):
    """The text of a version's DAG file.

    Attributes:
        is_cut: Whether it is longer than what is shown.
        dags_of_file: The DAGs that the file has now: those who may see the text may see them all.
    """

    dag_id: str
    dag_display_name: str
    number: int
    text: str
    is_cut: bool
    dags_of_file: frozenset[str]


def get_source(conn: Connection, dag_id: str, number: int | None = None) -> SourceInfo:
    """Return the source of a version of a DAG, by default of the newest. Raises NotFound.

    Who may not see all of `dags_of_file` must not see the text: see `redacted`.
    """
    row = _find(conn, _VERSIONS.add_columns(dag_version.c.sources), dag_id, number)
    content_hash = row.sources[0].content_hash
    shown = sa.func.substr(source.c.text, 1, LONGEST_SOURCE + 1)
    text = conn.scalar(sa.select(shown).where(source.c.content_hash == content_hash))
    if text is None:
        raise NotFound("source", content_hash)
    beside = conn.scalars(sa.select(dag.c.dag_id).where(dag.c.file_path == row.file_path, dag.c.is_active))
    return SourceInfo(
        dag_id, row.dag_display_name, row.number, text[:LONGEST_SOURCE], len(text) > LONGEST_SOURCE,
        frozenset({dag_id, *beside}),
    )  # fmt: skip


def redacted(found: SourceInfo, dag_ids: frozenset[str] | None) -> SourceInfo:
    """Return a source as somebody may see it who sees these DAGs; None: all."""
    if dag_ids is None or found.dags_of_file <= dag_ids:
        return found
    return replace(found, text=REDACTED, is_cut=False, dags_of_file=found.dags_of_file & dag_ids)


def read_sources(
    conn: Connection, dag_id: str, number: int, seen_dags: frozenset[str] | None = None
) -> list[tuple[str, str]]:
    """Return the path and the text of each file of a version, the DAG file first; of long ones the beginning.

    Raises NotFound.

    Args:
        seen_dags: The DAGs that may be seen: a file that has others now is redacted; None: all.
    """
    sources = _find(conn, _VERSIONS.add_columns(dag_version.c.sources), dag_id, number).sources
    texts = get_sources(conn, [source.content_hash for source in sources])
    hidden = set() if seen_dags is None else _files_of_others(conn, [source.path for source in sources], seen_dags)
    left, found = MOST_SOURCE_CHARACTERS, []
    for one in sources:
        text = REDACTED if one.path in hidden else texts.get(one.content_hash, "")[:left]
        left -= len(text)
        found.append((one.path, text))
    return found


def _files_of_others(conn: Connection, paths: list[str], seen_dags: frozenset[str]) -> set[str]:
    """Return those of these files that have DAGs other than these."""
    query = sa.select(dag.c.dag_id, dag.c.file_path).where(dag.c.file_path.in_(paths), dag.c.is_active)
    return {path for dag_id, path in conn.execute(query) if dag_id not in seen_dags}


class Structure(NamedTuple):
    """A version of a DAG with its tasks, decoded."""

    version: VersionInfo
    dag: SerializedDag


async def read_structure(context: QueryContext, dag_id: str, number: int | None = None) -> Structure:
    """Return a version of a DAG with its tasks, by default the newest. Raises NotFound."""
    from anyio.to_thread import run_sync  # commands, which have no loop, import this module too

    version, serialized = await context.ask(get_serialized, dag_id, number)
    return Structure(version, await run_sync(decode_dag, serialized))


def get_structure(conn: Connection, dag_id: str, number: int | None = None) -> SerializedDag:
    """Return a version of a DAG with its tasks, by default the newest, decoded here. Raises NotFound."""
    return decode_dag(get_serialized(conn, dag_id, number)[1])


def get_serialized(conn: Connection, dag_id: str, number: int | None = None) -> tuple[VersionInfo, bytes]:
    """Return a version of a DAG, by default the newest, with its tasks still encoded. Raises NotFound."""
    row = _find(conn, _VERSIONS.add_columns(dag_version.c.serialized), dag_id, number)
    return _info(row), row.serialized


def _find(conn: Connection, query: "sa.Select[Any]", dag_id: str, number: int | None) -> "Row[Any]":
    query = query.where(dag_version.c.dag_id == dag_id)
    if number is not None:
        query = query.where(dag_version.c.number == number)
    row = conn.execute(query.order_by(dag_version.c.number.desc()).limit(1)).first()
    if row is not None:
        return row
    is_known = conn.scalar(sa.select(dag.c.dag_id).where(dag.c.dag_id == dag_id)) is not None
    if number is not None and is_known:
        raise NotFound("version", str(number), where=f"the DAG {dag_id!r}")
    raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))


def _info(row: "Row[Any]") -> VersionInfo:
    return VersionInfo(
        id=row.id, dag_id=row.dag_id, dag_display_name=row.dag_display_name, number=row.number, file=row.file_path,
        created_at=row.created_at,
    )  # fmt: skip


def _conditions(wanted: VersionFilter) -> list[sa.ColumnElement[bool]]:
    return [*one_of(dag_version.c.dag_id, wanted.dag_ids), *one_of(dag_version.c.number, wanted.numbers)]
