"""Queries of `dag.timetable_plan`: the next runs of DAGs whose timetable is the author's own, and what to ask it."""

from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.serialization.schema import ParseQuestions, TimetableQuestion
from asynsched.store.dag_runs import last_scheduled_interval
from asynsched.store.schema.tables import dag
from asynsched.timetables import PlannedInterval, TimetablePlan

_PLAN = sa.select(dag.c.timetable_plan).where(dag.c.dag_id == sa.bindparam("dag_id"))
_PLANNED = (
    sa.select(dag.c.dag_id)
    .where(dag.c.file_path == sa.bindparam("path"), dag.c.timetable_plan.is_not(None))
    .order_by(dag.c.dag_id)
)
_FILE = sa.select(dag.c.file_path).where(
    dag.c.dag_id == sa.bindparam("dag_id"), dag.c.is_active, dag.c.timetable_plan.is_not(None)
)
_plan = msgspec.json.Decoder(TimetablePlan)


def get_plan(conn: Connection, dag_id: str) -> TimetablePlan | None:
    """Return the runs that a DAG's own timetable gave; None when it has given none."""
    stored = conn.scalar(_PLAN, {"dag_id": dag_id})
    return None if stored is None else _plan.decode(stored)


def file_to_ask(conn: Connection, dag_id: str) -> str | None:
    """Return the file of a DAG whose timetable is the author's own; None for any other."""
    path: str | None = conn.scalar(_FILE, {"dag_id": dag_id})
    return path


def questions_for_file(conn: Connection, path: str, now: datetime) -> ParseQuestions:
    """Return what the next parse of a file is to ask the timetables in it."""
    of_dags = {}
    for dag_id in conn.scalars(_PLANNED, {"path": path}):
        last = last_scheduled_interval(conn, dag_id)
        of_dags[dag_id] = TimetableQuestion(last=None if last is None else PlannedInterval(*last))
    return ParseQuestions(now=now, of_dags=of_dags)
