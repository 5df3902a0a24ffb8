"""Queries of `dag.timetable_plan`: the next runs of DAGs whose timetable is the author's own, and what to ask it."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.serialization.schema import ParseQuestions, TimetableQuestion
from asynsched.store.dag_runs import last_scheduled_interval
from asynsched.store.rows import portions
from asynsched.store.schema.tables import dag, dag_version
from asynsched.timetables import PlannedInterval, TimetablePlan

_PLANS = sa.select(dag.c.dag_id, dag.c.timetable_plan).where(
    dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)), dag.c.timetable_plan.is_not(None)
)
_OF_FILES = (
    sa.select(
        dag.c.file_path, dag.c.dag_id, dag_version.c.version_hash, dag.c.timetable_plan.is_not(None).label("has_plan")
    )
    .join(dag_version, dag_version.c.id == dag.c.version_id, isouter=True)
    .where(dag.c.file_path.in_(sa.bindparam("paths", expanding=True)))
    .order_by(dag.c.dag_id)
)
_FILE = sa.select(dag.c.file_path).where(
    dag.c.dag_id == sa.bindparam("dag_id"), dag.c.is_active, dag.c.timetable_plan.is_not(None)
)
_plan = msgspec.json.Decoder(TimetablePlan)


def get_plans(conn: Connection, dag_ids: Sequence[str]) -> dict[str, TimetablePlan]:
    """Return the runs that the own timetables of DAGs gave, by dag_id; DAGs without such runs are left out."""
    rows = (row for some in portions(dag_ids) for row in conn.execute(_PLANS, {"dag_ids": some}))
    return {row.dag_id: _plan.decode(row.timetable_plan) for row in rows}


def get_plan(conn: Connection, dag_id: str) -> TimetablePlan | None:
    """Return the runs that a DAG's own timetable gave; None when it has given none."""
    return get_plans(conn, [dag_id]).get(dag_id)


def file_to_ask(conn: Connection, dag_id: str) -> str | None:
    """Return the file of a DAG whose timetable is the author's own; None for any other."""
    path: str | None = conn.scalar(_FILE, {"dag_id": dag_id})
    return path


class BeforeParse(NamedTuple):
    """What is stored of a file's DAGs: what to ask their timetables, and the hashes of their newest versions."""

    questions: ParseQuestions
    hashes: dict[str, str]


def before_parses(conn: Connection, paths: Sequence[str], now: datetime) -> dict[str, BeforeParse]:
    """Return what the parse of each of these files has to know of the DAGs that it had."""
    of_files: dict[str, list[sa.Row[Any]]] = {path: [] for path in paths}
    for row in (row for some in portions(paths) for row in conn.execute(_OF_FILES, {"paths": some})):
        of_files[row.file_path].append(row)
    return {path: _before_parse(conn, rows, now) for path, rows in of_files.items()}


def _before_parse(conn: Connection, rows: Sequence["sa.Row[Any]"], now: datetime) -> BeforeParse:
    questions = _questions(conn, [row.dag_id for row in rows if row.has_plan], now)
    return BeforeParse(questions, {row.dag_id: row.version_hash for row in rows if row.version_hash is not None})


def questions_for_file(conn: Connection, path: str, now: datetime) -> ParseQuestions:
    """Return what the next parse of a file is to ask the timetables in it."""
    return before_parses(conn, [path], now)[path].questions


def _questions(conn: Connection, planned: Iterable[str], now: datetime) -> ParseQuestions:
    of_dags = {}
    for dag_id in planned:
        last = last_scheduled_interval(conn, dag_id)
        of_dags[dag_id] = TimetableQuestion(last=None if last is None else PlannedInterval(*last))
    return ParseQuestions(now=now, of_dags=of_dags)
