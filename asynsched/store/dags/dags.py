"""Queries of `dag`, `dag_version` and `source`: DAGs, their plans (the next runs of a custom timetable) and versions.

Versions are immutable, and numbered from 1 for each DAG. A version that no run needs is deleted, and then the sources
that no version needs. The newest version of a DAG always stays, and so does one that was superseded only lately: a run
that is being started may still be given it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.serialization.schema import ParseQuestions, TimetableQuestion
from asynsched.store.assets import partition_events
from asynsched.store.rows import as_new, count, fetch, fetch_in, fetch_one, near_names, select_in
from asynsched.store.runs.dag_runs import last_scheduled_run
from asynsched.store.schema import (
    DagColumns,
    DagVersionRow,
    asset_dag_run_queue,
    asset_reference,
    asset_watcher,
    backfill,
    dag,
    dag_run,
    dag_version,
    import_error,
    source,
)
from asynsched.store.statements import insert_ignoring
from asynsched.timetables import PlannedRun, TimetablePlan
from asynsched.timetables.base import DagRunInfo
from asynsched.timetables.own_partitions import keys_to_ask


class DagRow(DagColumns, frozen=True, kw_only=True):
    """A DAG, read without its `deadlines`, its `access_control` and its `timetable_plan`.

    `has_errors`: whether the last parse of its file found an error in the file or the DAG.
    """

    has_errors: bool


HAS_ERRORS = (
    sa.exists()
    .where(
        import_error.c.file_path == dag.c.file_path,
        sa.or_(import_error.c.dag_id.is_(None), import_error.c.dag_id == dag.c.dag_id),
        ~import_error.c.is_warning,
    )
    .label("has_errors")
)
"""Whether the last parse of a DAG's file found an error in the file or the DAG."""
_LARGE = {"deadlines", "access_control", "timetable_plan"}
DAGS: sa.Select[Any] = sa.select(*(column for column in dag.c if column.name not in _LARGE), HAS_ERRORS)
"""The columns of a DagRow."""


def get_dag(conn: Connection, dag_id: str) -> DagRow | None:
    """Return a DAG, active or not; None when there never was one."""
    return get_dags(conn, [dag_id]).get(dag_id)


def get_dags(conn: Connection, dag_ids: Sequence[str]) -> dict[str, DagRow]:
    """Return DAGs by dag_id, active or not, without unknown ones."""
    return {row.dag_id: row for row in fetch_in(conn, DagRow, DAGS, dag.c.dag_id, dag_ids)}


def find_dag(conn: Connection, dag_id: str) -> DagRow:
    """Return an active DAG. Raises NotFound with the nearest names."""
    found = get_dag(conn, dag_id)
    if found is None or not found.is_active:
        raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))
    return found


def list_dags(conn: Connection) -> list[DagRow]:
    """Return the active DAGs, by dag_id."""
    return fetch(conn, DagRow, DAGS.where(dag.c.is_active).order_by(dag.c.dag_id))


def near_dag_ids(conn: Connection, dag_id: str) -> tuple[str, ...]:
    """Return the active DAGs that a wrong dag_id may stand for."""
    return near_names(dag_id, conn.scalars(sa.select(dag.c.dag_id).where(dag.c.is_active).order_by(dag.c.dag_id)))


def all_dag_ids(conn: Connection) -> list[str]:
    """Return the dag_id of every DAG that there ever was."""
    return list(conn.scalars(sa.select(dag.c.dag_id).order_by(dag.c.dag_id)))


# Unequal, not earlier: a clock may have been set back between two changes.
_IS_UNEXAMINED = sa.or_(dag.c.last_examined_at.is_(None), dag.c.last_examined_at != dag.c.updated_at)
_NEXT = dag.c.next_dagrun_create_after
_SCHEDULED = (
    sa.select(dag.c.dag_id, sa.case((_IS_UNEXAMINED, None), else_=_NEXT).label("due_at"))
    .where(dag.c.is_active, ~dag.c.is_paused, sa.or_(_IS_UNEXAMINED, _NEXT.is_not(None)))
    .order_by(dag.c.dag_id)
)
_SCHEDULED_UNTIL = _SCHEDULED.where(sa.or_(_IS_UNEXAMINED, sa.bindparam("until", type_=_NEXT.type) >= _NEXT))
_SET_NEXT = sa.update(dag).where(dag.c.dag_id == sa.bindparam("key"))


def scheduled_dag_ids(conn: Connection, until: datetime | None = None) -> list[tuple[str, datetime | None]]:
    """Return each unpaused DAG that is to be examined, with the instant from which on.

    The instant is when its next run is due; None: now, as it has changed, and no scheduler has examined it since.
    `until` leaves out later ones.
    """
    rows = conn.execute(_SCHEDULED) if until is None else conn.execute(_SCHEDULED_UNTIL, {"until": until})
    return [(row.dag_id, row.due_at) for row in rows]


def set_next_dagruns(conn: Connection, infos: Mapping[str, DagRunInfo | None], dags: Mapping[str, DagRow]) -> None:
    """Store the next runs of DAGs (None: no run follows), and that the DAGs were examined as they were read.

    A DAG that changes at the same moment will be examined again.
    """
    rows = [
        {
            "key": dag_id,
            # A run of a partition has no dates.
            "next_dagrun_logical_date": info and (None if info.partition_key else info.logical_date),
            "next_dagrun_data_interval_start": info and (None if info.partition_key else info.data_interval.start),
            "next_dagrun_data_interval_end": info and (None if info.partition_key else info.data_interval.end),
            "next_dagrun_create_after": info and info.run_after,
            "last_examined_at": dags[dag_id].updated_at,
        }
        for dag_id, info in sorted(infos.items())
    ]
    if rows:
        conn.execute(_SET_NEXT, rows)


def pause_active(conn: Connection, dag_id: str, now: datetime) -> bool:
    """Pause a DAG. False: it was paused already, or is gone."""
    return conn.execute(_paused(dag_id, True, now).where(~dag.c.is_paused)).rowcount > 0


def set_paused(conn: Connection, dag_id: str, is_paused: bool, now: datetime) -> None:
    """Pause or unpause an active DAG. Raises NotFound with the nearest names."""
    if conn.execute(_paused(dag_id, is_paused, now)).rowcount == 0:
        raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))


def _paused(dag_id: str, is_paused: bool, now: datetime) -> sa.Update:
    return sa.update(dag).where(dag.c.dag_id == dag_id, dag.c.is_active).values(is_paused=is_paused, updated_at=now)


_decoder = msgspec.json.Decoder(TimetablePlan)


@lru_cache(maxsize=256)
def _plan(stored: bytes) -> TimetablePlan:
    """Decode a plan, which may be long, and which every look at its DAG reads again."""
    return _decoder.decode(stored)


_PLANS = sa.select(dag.c.dag_id, dag.c.timetable_plan).where(dag.c.timetable_plan.is_not(None))


def get_plans(conn: Connection, dag_ids: Sequence[str]) -> dict[str, TimetablePlan]:
    """Return the runs that custom timetables returned, by dag_id, without DAGs that have no such runs."""
    rows = select_in(conn, _PLANS, dag.c.dag_id, dag_ids)
    return {row.dag_id: _plan(row.timetable_plan) for row in rows}


def get_plan(conn: Connection, dag_id: str) -> TimetablePlan | None:
    """Return the runs that a DAG's custom timetable returned; None if none are stored."""
    return get_plans(conn, [dag_id]).get(dag_id)


_FILE_TO_ASK = sa.select(
    dag.c.file_path, dag.c.timetable_plan, dag.c.partitions.is_not(None).label("has_partitions")
).where(dag.c.is_active, dag.c.timetable_plan.is_not(None), dag.c.dag_id == sa.bindparam("dag_id"))


def file_to_ask(conn: Connection, dag_id: str, question: TimetableQuestion) -> str | None:
    """Return the file of a DAG whose own code has to answer a question about a run; None: no such code has to."""
    row = conn.execute(_FILE_TO_ASK, {"dag_id": dag_id}).one_or_none()
    if row is None:
        return None
    if row.has_partitions or question.partition_key is not None:
        is_asked = row.has_partitions and question.partition_key is not None
    else:
        run = question.run_by_hand
        is_asked = run is not None and (
            run.needs_interval or (not run.is_named and _plan(row.timetable_plan).names_runs)
        )
    return str(row.file_path) if is_asked else None


def lock_dag(conn: Connection, dag_id: str) -> None:
    """Lock a DAG until this transaction ends: parses that find it come before this or after it."""
    conn.execute(sa.select(dag.c.dag_id).where(dag.c.dag_id == dag_id).with_for_update())


def delete_dag(conn: Connection, dag_id: str) -> None:
    """Delete a DAG that has left its file and has no runs, with its versions and all that names it."""
    for table in (asset_dag_run_queue, asset_reference, asset_watcher, backfill, dag, dag_version):
        conn.execute(sa.delete(table).where(table.c.dag_id == dag_id))


class BeforeParse(NamedTuple):
    """A parse's input about a file's DAGs: questions to their timetables, and the hashes of their newest versions."""

    questions: ParseQuestions
    hashes: dict[str, str]


_DAGS_OF_FILES = (
    sa.select(
        dag.c.file_path,
        dag.c.dag_id,
        dag_version.c.version_hash,
        dag.c.timetable_plan.is_not(None).label("has_plan"),
        dag.c.partitions.is_not(None).label("has_partitions"),
    )
    .join(dag_version, dag_version.c.id == dag.c.version_id, isouter=True)
    .order_by(dag.c.dag_id)
)


def before_parses(conn: Connection, paths: Sequence[str], now: datetime) -> dict[str, BeforeParse]:
    """Return the input of these files' parses, by path, from the DAGs that they had."""
    of_files: dict[str, list[sa.Row[Any]]] = {path: [] for path in paths}
    for row in select_in(conn, _DAGS_OF_FILES, dag.c.file_path, paths):
        of_files[row.file_path].append(row)
    return {path: _before_parse(conn, rows, now) for path, rows in of_files.items()}


def _before_parse(conn: Connection, rows: Sequence["sa.Row[Any]"], now: datetime) -> BeforeParse:
    of_dags = {row.dag_id: _question(conn, row) for row in rows if row.has_plan}
    hashes = {row.dag_id: row.version_hash for row in rows if row.version_hash is not None}
    return BeforeParse(ParseQuestions(now=now, of_dags=of_dags), hashes)


def _question(conn: Connection, row: "sa.Row[Any]") -> TimetableQuestion:
    if row.has_partitions:
        return TimetableQuestion(partitions=keys_to_ask(partition_events(conn, row.dag_id, is_read_only=True)))
    last = last_scheduled_run(conn, row.dag_id)
    return TimetableQuestion(last=None if last is None else PlannedRun.of(last))


def questions_for_file(conn: Connection, path: str, now: datetime) -> ParseQuestions:
    """Return the questions of a file's next parse to the timetables in it."""
    return before_parses(conn, [path], now)[path].questions


_VERSIONS = sa.select(dag_version)
_CURRENT = _VERSIONS.join(dag, dag.c.version_id == dag_version.c.id).where(
    dag.c.dag_id == sa.bindparam("dag_id"), dag.c.is_active
)
_SERIALIZED = sa.select(dag_version.c.id, dag_version.c.serialized)
_SOURCES = sa.select(source)
_HASHES = sa.select(source.c.content_hash)


def get_version(conn: Connection, version_id: int) -> DagVersionRow:
    """Return a version. Raises NotFound."""
    for version in get_versions(conn, [version_id]):
        return version
    raise NotFound("DAG version", str(version_id))


def current_version(conn: Connection, dag_id: str) -> DagVersionRow | None:
    """Return the version of a new run of a DAG; None if the DAG does not exist, or its file is gone."""
    return fetch_one(conn, DagVersionRow, _CURRENT, {"dag_id": dag_id})


def get_versions(conn: Connection, version_ids: Sequence[int]) -> list[DagVersionRow]:
    """Return several versions; unknown ones are left out."""
    return fetch_in(conn, DagVersionRow, _VERSIONS, dag_version.c.id, version_ids)


def serialized_versions(conn: Connection, version_ids: Sequence[int]) -> dict[int, bytes]:
    """Return the JSON of the DAGs of several versions, by their ids."""
    return {row.id: row.serialized for row in select_in(conn, _SERIALIZED, dag_version.c.id, version_ids)}


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
    return {row.content_hash: row.text for row in select_in(conn, _SOURCES, source.c.content_hash, hashes)}


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
    known = select_in(conn, _HASHES, source.c.content_hash, list(hashes))
    return set(hashes) - {row.content_hash for row in known}
