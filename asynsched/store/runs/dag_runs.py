"""Queries of `dag_run`. State changes of runs that a scheduler owns are written by `transitions.py`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import AlreadyExists
from asynsched.keys import DagRunKey
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType
from asynsched.store.rows import as_struct, portions, to_json
from asynsched.store.runs.deadlines import add_deadlines
from asynsched.store.schema import DagRunRow, dag, dag_run
from asynsched.store.statements import execute_rows, for_each_dialect, insert_of, rows_of
from asynsched.timetables.base import DagRunInfo, DataInterval


def run_of_schedule(
    dag_id: str, run_type: DagRunType, info: DagRunInfo, *, queued_at: datetime, **more: Any
) -> DagRunRow:
    """Return a queued run that a schedule has, under the run_id that Airflow gives it."""
    return DagRunRow(
        dag_id=dag_id, run_id=run_id_of(run_type, info.logical_date), run_type=run_type, state=DagRunState.QUEUED,
        logical_date=info.logical_date, data_interval_start=info.data_interval.start,
        data_interval_end=info.data_interval.end, run_after=info.run_after, queued_at=queued_at, **more,
    )  # fmt: skip


def run_id_of(run_type: DagRunType, instant: datetime) -> str:
    """Return the run_id of a run that nobody has named, as Airflow makes it."""
    return f"{run_type}__{instant.isoformat()}"


class _DagId(NamedTuple):
    dag_id: str


class WantedRun(NamedTuple):
    """A run that may be made."""

    dag_id: str
    run_id: str
    logical_date: datetime


# Literal, as the partial indexes have them: with a parameter in its place, neither database would use the index.
IS_QUEUED = sa.text("dag_run.state = 'queued'")
IS_RUNNING = sa.text("dag_run.state = 'running'")
_IS_SCHEDULED = sa.text("dag_run.run_type = 'scheduled'")

_IS_OF_DAG = dag_run.c.dag_id == sa.bindparam("dag_id")
_IS_OF_STATE = dag_run.c.state == sa.bindparam("state")
_ONE = sa.select(dag_run).where(_IS_OF_DAG, dag_run.c.run_id == sa.bindparam("run_id"))
_ALERTS = "(SELECT dag.deadlines FROM dag WHERE dag.dag_id = dag_run.dag_id) AS alerts"
_INSERT = for_each_dialect(
    lambda dialect: insert_of(
        "dag_run", DagRunRow, dialect, conflict=f"DO NOTHING RETURNING id, dag_id, run_id, {_ALERTS}"
    )
)  # fmt: skip
# Each a look into an index: a join might look through all runs there are.
_ID = "(SELECT t.id FROM dag_run AS t WHERE t.dag_id = v.dag_id AND t.run_id = v.run_id)"
_ID_OF_DATE = "(SELECT t.id FROM dag_run AS t WHERE t.dag_id = v.dag_id AND t.logical_date = v.logical_date)"
_MADE = for_each_dialect(
    lambda dialect: (
        f"SELECT v.dag_id, v.run_id FROM {rows_of(WantedRun, dialect)} AS v"  # noqa: S608 - our own
        f" WHERE {_ID} IS NOT NULL OR {_ID_OF_DATE} IS NOT NULL"
    )
)
_IDS = for_each_dialect(
    lambda dialect: f"SELECT {_ID} AS id FROM {rows_of(DagRunKey, dialect)} AS v"  # noqa: S608 - our own
)
_STATE = "(SELECT t.state FROM dag_run AS t WHERE t.dag_id = v.dag_id AND t.run_id = v.run_id)"
_STATES_OF = for_each_dialect(
    lambda dialect: (
        f"SELECT v.dag_id, v.run_id, {_STATE} AS state FROM {rows_of(DagRunKey, dialect)} AS v"  # noqa: S608 - our own
    )
)
_NEWEST = sa.select(dag_run).order_by(dag_run.c.id.desc()).limit(sa.bindparam("limit"))
_NEWEST_OF_DAG = (
    sa.select(dag_run)
    .where(_IS_OF_DAG)
    .order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
    .limit(sa.bindparam("limit"))
)
# By its beginning, not LIKE: that takes capitals for small letters on SQLite, and `_` for any letter.
_BEGINNING_WITH = _NEWEST_OF_DAG.where(
    sa.func.substr(dag_run.c.run_id, 1, sa.bindparam("length")) == sa.bindparam("beginning")
)


def by_index(name: str, dialect: str) -> str:
    """Return how a statement names the index that it reads `dag_run` by.

    SQLite does not know how few rows a partial index has, and might look through all runs that a DAG has had.
    """
    return f"dag_run INDEXED BY {name}" if dialect == "sqlite" else "dag_run"


def _number_of(state: str, index: str, dialect: str) -> str:
    some = (
        f"SELECT 1 FROM {by_index(index, dialect)} WHERE dag_run.state = '{state}' AND dag_run.backfill_id IS NULL"  # noqa: S608 - our own
        " AND dag_run.dag_id = v.dag_id LIMIT :at_most"
    )
    return f"(SELECT count(*) FROM ({some}) AS few)"  # noqa: S608 - our own


_N_ACTIVE = for_each_dialect(
    lambda dialect: (
        f"SELECT v.dag_id, {_number_of('queued', 'ix_dag_run_queued_of_dag', dialect)}"  # noqa: S608 - our own
        f" + {_number_of('running', 'ix_dag_run_running', dialect)} AS n"
        f" FROM {rows_of(_DagId, dialect)} AS v"
    )
)
_N_ENDED = (
    sa.select(dag_run.c.state, sa.func.count().label("n"))
    .where(dag_run.c.ended_at >= sa.bindparam("since"))
    .group_by(dag_run.c.state)
)
_FAILED_SINCE = (
    sa.select(dag_run)
    .where(dag_run.c.ended_at >= sa.bindparam("since"), dag_run.c.state == DagRunState.FAILED)
    .order_by(dag_run.c.ended_at, dag_run.c.id)
    .limit(sa.bindparam("limit"))
)
# From the DAGs, and for each of them one look into the index: however many runs it has had.
_NEWEST_SCHEDULED = (
    sa.select(dag_run.c.id)
    .where(dag_run.c.dag_id == dag.c.dag_id, _IS_SCHEDULED)
    .order_by(dag_run.c.logical_date.desc())
    .limit(1)
    .correlate(dag)
    .scalar_subquery()
)
_newest = dag_run.alias()
_LAST_SCHEDULED = (
    sa.select(_newest.c.dag_id, _newest.c.data_interval_start, _newest.c.data_interval_end)
    .select_from(dag)
    .join(_newest, _newest.c.id == _NEWEST_SCHEDULED)
    .where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
)
_LAST_STATES = (
    sa.select(dag_run.c.state)
    .where(_IS_OF_DAG)
    .order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
    .limit(sa.bindparam("limit"))
)
_IS_TAKEN = sa.select(sa.literal(1)).where(_IS_OF_DAG, dag_run.c.logical_date == sa.bindparam("date"))
_OF_DATE = sa.select(dag_run).where(_IS_OF_DAG, dag_run.c.logical_date == sa.bindparam("date"))
_PREVIOUS = (
    sa.select(dag_run)
    .where(_IS_OF_DAG, dag_run.c.logical_date < sa.bindparam("before"))
    .order_by(dag_run.c.logical_date.desc())
    .limit(1)
)
_END_QUEUED = (
    sa.update(dag_run)
    .where(dag_run.c.id == sa.bindparam("key"), dag_run.c.state == DagRunState.QUEUED)
    .values(state=sa.bindparam("new_state"), reason=sa.bindparam("new_reason"), ended_at=sa.bindparam("now"))
)


def insert_runs(conn: Connection, runs: Sequence[DagRunRow]) -> dict[DagRunKey, int]:
    """Store new runs with their deadlines, and return the row ids of those that were made.

    Left out is one of which the DAG has the run_id, or a run of that logical date. Give runs of several DAGs in the
    order of these: whoever makes the same ones at this moment is waited for.
    """
    # As a text within the array: what JSON the database itself would make of it may not be the same.
    rows = [msgspec.structs.replace(run, conf=to_json(run.conf).decode()) for run in runs]
    found = execute_rows(conn, _INSERT[conn.dialect.name], rows)
    made = {DagRunKey(row.dag_id, row.run_id): row for row in found}
    add_deadlines(conn, [(row.id, run, row.alerts) for run in runs if (row := made.get(run.key)) and row.alerts])
    return {key: row.id for key, row in made.items()}


def insert_run(conn: Connection, run: DagRunRow) -> int:
    """Store a new run with its deadlines, and return its row's id.

    Raises:
        AlreadyExists: The DAG has a run of that run_id, or of that logical date. The transaction may go on.
    """
    for row_id in insert_runs(conn, [run]).values():
        return row_id
    date = "" if run.logical_date is None else f", or one of the logical date {run.logical_date.isoformat()}"
    raise AlreadyExists(f"The DAG {run.dag_id!r} has a run {run.run_id!r}{date} already.")


def get_run(conn: Connection, dag_id: str, run_id: str) -> DagRunRow | None:
    """Return a run; None when there is none."""
    row = conn.execute(_ONE, {"dag_id": dag_id, "run_id": run_id}).first()
    return None if row is None else as_struct(DagRunRow, row)


def ended_among(conn: Connection, runs: Collection[DagRunKey]) -> list[DagRunKey]:
    """Return those of some runs that have ended."""
    states = execute_rows(conn, _STATES_OF[conn.dialect.name], list(runs))
    return [DagRunKey(row.dag_id, row.run_id) for row in states if row.state in FINISHED_RUN_STATES]


def list_runs(
    conn: Connection, *, dag_id: str | None = None, state: str | None = None, limit: int = 1000
) -> list[DagRunRow]:
    """Return runs, of one DAG or of all, in one state or in any, the newest first."""
    statement = _NEWEST if dag_id is None else _NEWEST_OF_DAG
    if state is not None:
        statement = statement.where(_IS_OF_STATE)
    rows = conn.execute(statement, {"dag_id": dag_id, "state": state, "limit": limit})
    return [as_struct(DagRunRow, row) for row in rows]


def runs_beginning_with(conn: Connection, dag_id: str, beginning: str, limit: int) -> list[DagRunRow]:
    """Return a DAG's runs whose run_id begins with a text, as `list_runs` orders them."""
    given = {"dag_id": dag_id, "beginning": beginning, "length": len(beginning), "limit": limit}
    return [as_struct(DagRunRow, row) for row in conn.execute(_BEGINNING_WITH, given)]


def run_of_date(conn: Connection, dag_id: str, logical_date: datetime) -> DagRunRow | None:
    """Return a DAG's run of that logical date; None when there is none."""
    row = conn.execute(_OF_DATE, {"dag_id": dag_id, "date": logical_date}).first()
    return None if row is None else as_struct(DagRunRow, row)


def logical_date_is_taken(conn: Connection, dag_id: str, logical_date: datetime) -> bool:
    """Return whether a DAG has a run of that logical date."""
    return conn.execute(_IS_TAKEN, {"dag_id": dag_id, "date": logical_date}).first() is not None


def runs_made(conn: Connection, wanted: Sequence[WantedRun]) -> set[WantedRun]:
    """Return those of some runs that cannot be made, for their DAG has one of that run_id, or of that logical date."""
    found = execute_rows(conn, _MADE[conn.dialect.name], wanted)
    made = {(row.dag_id, row.run_id) for row in found}
    return {run for run in wanted if run[:2] in made}


def run_row_ids(conn: Connection, keys: Sequence[DagRunKey]) -> list[int]:
    """Return the row ids of runs; those that there are not are left out."""
    return [row.id for row in execute_rows(conn, _IDS[conn.dialect.name], keys) if row.id is not None]


def count_active_runs(conn: Connection, dag_ids: Collection[str], at_most: int) -> dict[str, int]:
    """Return how many runs are queued or running, backfills aside, by dag_id.

    Args:
        at_most: Counts no further: a DAG may have very many queued runs. Above it, there may be more.
    """
    rows = execute_rows(conn, _N_ACTIVE[conn.dialect.name], [_DagId(dag_id) for dag_id in dag_ids], at_most=at_most)
    return {row.dag_id: row.n for row in rows}


def count_ended_since(conn: Connection, since: datetime) -> dict[str, int]:
    """Return how many runs have ended since an instant, by state; states that none has are left out."""
    return {row.state: row.n for row in conn.execute(_N_ENDED, {"since": since})}


def failed_since(conn: Connection, since: datetime, *, limit: int) -> list[DagRunRow]:
    """Return the first runs that have failed since an instant."""
    rows = conn.execute(_FAILED_SINCE, {"since": since, "limit": limit})
    return [as_struct(DagRunRow, row) for row in rows]


def last_scheduled_intervals(conn: Connection, dag_ids: Sequence[str]) -> dict[str, DataInterval]:
    """Return the data interval of the newest scheduled run of each DAG; those that have had none are left out."""
    rows = (row for some in portions(dag_ids) for row in conn.execute(_LAST_SCHEDULED, {"dag_ids": some}))
    return {row.dag_id: DataInterval(row.data_interval_start, row.data_interval_end) for row in rows}


def last_scheduled_interval(conn: Connection, dag_id: str) -> DataInterval | None:
    """Return the data interval of a DAG's newest scheduled run; None when it has had none."""
    return last_scheduled_intervals(conn, [dag_id]).get(dag_id)


def last_run_states(conn: Connection, dag_id: str, n: int) -> list[str]:
    """Return the states of a DAG's newest `n` runs at most, the newest first."""
    return list(conn.scalars(_LAST_STATES, {"dag_id": dag_id, "limit": n}))


def previous_run(
    conn: Connection, dag_id: str, *, before: datetime | None, state: str | None = None
) -> DagRunRow | None:
    """Return a DAG's newest run of an earlier logical date, of that state if given; None when there is none."""
    if before is None:
        return None
    statement = _PREVIOUS if state is None else _PREVIOUS.where(_IS_OF_STATE)
    row = conn.execute(statement, {"dag_id": dag_id, "before": before, "state": state}).first()
    return None if row is None else as_struct(DagRunRow, row)


def end_queued_run(conn: Connection, run_row_id: int, state: DagRunState, reason: str, now: datetime) -> bool:
    """End a run that has not started. False: it is no longer queued."""
    ended = {"key": run_row_id, "new_state": state, "new_reason": reason, "now": now}
    return conn.execute(_END_QUEUED, ended).rowcount > 0
