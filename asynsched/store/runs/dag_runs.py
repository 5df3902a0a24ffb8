"""Queries of `dag_run`. `transitions.py` writes the state changes of runs that a scheduler owns."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import AlreadyExists
from asynsched.keys import DagRunKey
from asynsched.serialization.schema import MAX_ID_LENGTH
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType
from asynsched.store.rows import fetch, fetch_one, select_in, to_json
from asynsched.store.runs.deadlines import add_deadlines
from asynsched.store.schema import DagRunRow, dag, dag_run
from asynsched.store.statements import execute_rows, for_each_dialect, insert_of, rows_of
from asynsched.timetables.base import DagRunInfo, DataInterval


def run_of_schedule(
    dag_id: str, run_type: DagRunType, info: DagRunInfo, *, queued_at: datetime, **more: Any
) -> DagRunRow:
    """Return a queued run of a schedule. That of a partition has no dates."""
    start, end = (None, None) if info.partition_key is not None else info.data_interval
    return DagRunRow(
        dag_id=dag_id, run_id=run_id_of_schedule(run_type, info), run_type=run_type, state=DagRunState.QUEUED,
        logical_date=start, data_interval_start=start, data_interval_end=end, run_after=info.run_after,
        queued_at=queued_at, partition_key=info.partition_key, partition_date=info.partition_date, **more,
    )  # fmt: skip


def run_id_of_schedule(run_type: DagRunType, info: DagRunInfo) -> str:
    """Return the name that an author's timetable gives a run, else Airflow's: for a partition, without its key."""
    return info.run_id or run_id_of(run_type, info.run_after if info.partition_key is None else info.logical_date)


def run_id_of(run_type: DagRunType, instant: datetime) -> str:
    """Return the run_id that Airflow gives a run without a name."""
    return f"{run_type}__{instant.isoformat()}"


class WantedRun(NamedTuple):
    """A run that may be created. `run_id`: empty if any will do."""

    dag_id: str
    run_id: str
    logical_date: datetime


class _DagId(NamedTuple):
    dag_id: str


# Literal, as in the partial indexes: with a parameter, neither database would use the index.
IS_QUEUED = sa.text("dag_run.state = 'queued'")
IS_RUNNING = sa.text("dag_run.state = 'running'")
HAS_NO_BACKFILL = sa.text("dag_run.backfill_id IS NULL")
HAS_BACKFILL = sa.text("dag_run.backfill_id IS NOT NULL")


def _ids_by(index: str, *conditions: sa.TextClause) -> "sa.Select[tuple[int]]":
    # SQLite does not know how few rows a partial index has, and might look through all runs.
    return (
        sa.select(dag_run.c.id).correlate(None).where(*conditions).with_hint(dag_run, f"INDEXED BY {index}", "sqlite")
    )


_UNFINISHED_IDS: dict[str, tuple["sa.Select[tuple[int]]", ...]] = {
    DagRunState.RUNNING: (_ids_by("ix_dag_run_running", IS_RUNNING),),
    DagRunState.QUEUED: (
        _ids_by("ix_dag_run_queued_of_dag", IS_QUEUED, HAS_NO_BACKFILL),
        _ids_by("ix_dag_run_queued_of_backfill", IS_QUEUED, HAS_BACKFILL),
    ),
}
UNFINISHED_RUN_STATES = frozenset(_UNFINISHED_IDS)


def ids_of_unfinished(states: Collection[str]) -> "sa.CompoundSelect[tuple[int]]":
    """Return a query of the row ids of all runs in these unfinished states, which uses their indexes alone."""
    return sa.union_all(*(query for state in sorted(states) for query in _UNFINISHED_IDS[state]))


def _number_of(state: str, index: str, dialect: str) -> str:
    # SQLite does not know how few rows a partial index has, and might look through all runs that a DAG has had.
    by_index = f"INDEXED BY {index}" if dialect == "sqlite" else ""
    # Runs that were triggered for a later time hold up none.
    is_due = " AND dag_run.run_after <= dag_run.queued_at" if state == "queued" else ""
    some = (
        f"SELECT 1 FROM dag_run {by_index} WHERE dag_run.state = '{state}' AND dag_run.backfill_id IS NULL"  # noqa: S608 - our own
        f" AND dag_run.dag_id = v.dag_id{is_due} LIMIT :at_most"
    )
    return f"(SELECT count(*) FROM ({some}) AS few)"  # noqa: S608 - our own


_ALERTS = "(SELECT dag.deadlines FROM dag WHERE dag.dag_id = dag_run.dag_id) AS alerts"
_INSERT = for_each_dialect(
    lambda dialect: insert_of(
        "dag_run", DagRunRow, dialect, conflict=f"DO NOTHING RETURNING id, dag_id, run_id, {_ALERTS}"
    )
)


def _of_key(column: str, key: str = "run_id") -> str:
    """Return a column of the run of `v`: a look into an index each time, where a join might look through all runs."""
    return f"(SELECT t.{column} FROM dag_run AS t WHERE t.dag_id = v.dag_id AND t.{key} = v.{key})"  # noqa: S608 - our own


_MADE = for_each_dialect(
    lambda dialect: (
        f"SELECT v.dag_id, v.run_id FROM {rows_of(WantedRun, dialect)} AS v"  # noqa: S608 - our own
        f" WHERE {_of_key('id')} IS NOT NULL OR {_of_key('id', 'logical_date')} IS NOT NULL"
    )
)


def _of_keys(column: str) -> dict[str, sa.TextClause]:
    return for_each_dialect(
        lambda dialect: (
            f"SELECT v.dag_id, v.run_id, {_of_key(column)} AS {column}"  # noqa: S608 - our own
            f" FROM {rows_of(DagRunKey, dialect)} AS v"
        )
    )


_IDS, _STATES = _of_keys("id"), _of_keys("state")
_N_ACTIVE = for_each_dialect(
    lambda dialect: (
        f"SELECT v.dag_id, {_number_of('queued', 'ix_dag_run_queued_of_dag', dialect)}"  # noqa: S608 - our own
        f" + {_number_of('running', 'ix_dag_run_running', dialect)} AS n FROM {rows_of(_DagId, dialect)} AS v"
    )
)
_RUNS = sa.select(dag_run)
_IS_OF_DAG = dag_run.c.dag_id == sa.bindparam("dag_id")
_ONE = _RUNS.where(_IS_OF_DAG, dag_run.c.run_id == sa.bindparam("run_id"))
_OF_DATE = _RUNS.where(_IS_OF_DAG, dag_run.c.logical_date == sa.bindparam("date"))
_NEWEST_FIRST = _RUNS.order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
_NEWEST_IDS = _NEWEST_FIRST.with_only_columns(dag_run.c.run_id)
# From the DAGs, with one look into the index for each, however many runs it has had.
_NEWEST_SCHEDULED = (
    sa.select(dag_run.c.id)
    .where(
        dag_run.c.dag_id == dag.c.dag_id,
        sa.text("dag_run.run_type = 'scheduled'"),
        # A DAG that was scheduled by partitions before has runs without one, which PostgreSQL would place first.
        dag_run.c.logical_date.is_not(None),
    )
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
)


# Those of a timetable by partitions have no logical date.
_NEWEST_OF_PARTITIONS = (
    sa.select(dag_run.c.run_after)
    .where(
        dag_run.c.dag_id == sa.bindparam("dag_id"),
        sa.text("dag_run.run_type = 'scheduled'"),
        dag_run.c.logical_date.is_(None),
    )
    .order_by(dag_run.c.run_after.desc())
    .limit(1)
)


def insert_runs(conn: Connection, runs: Sequence[DagRunRow]) -> dict[DagRunKey, int]:
    """Store new runs with their deadlines, and return the row ids of those that were created.

    A run is left out if its DAG has that run_id, or a run of that logical date. Pass runs of several DAGs in the order
    of their dag_ids: the call waits for another scheduler that creates the same ones at this moment.
    """
    # As a text within the array: the JSON that the database itself would write may not be the same.
    rows = [msgspec.structs.replace(run, conf=to_json(run.conf).decode()) for run in runs]
    found = execute_rows(conn, _INSERT[conn.dialect.name], rows)
    made = {DagRunKey(row.dag_id, row.run_id): row for row in found}
    add_deadlines(conn, [(row.id, run, row.alerts) for run in runs if (row := made.get(run.key)) and row.alerts])
    return {key: row.id for key, row in made.items()}


def insert_run(conn: Connection, run: DagRunRow) -> int:
    """Store a new run with its deadlines, and return its row's id.

    Raises AlreadyExists if the DAG has a run of that run_id or logical date; the transaction may go on.
    """
    for row_id in insert_runs(conn, [run]).values():
        return row_id
    date = "" if run.logical_date is None else f", or one of the logical date {run.logical_date.isoformat()}"
    raise AlreadyExists(f"The DAG {run.dag_id!r} has a run {run.run_id!r}{date} already.")


def insert_under_free_id(conn: Connection, run: DagRunRow) -> dict[DagRunKey, int]:
    """Store a run whose run_id another one of its DAG has, under another id; return its row id by its key.

    Two runs of a schedule may become due together, and versions of Airflow have named the runs that are imported in
    other ways. Nothing is stored if there is a run of that logical date, or if the run has none.
    """
    if run.logical_date is None or run_of_date(conn, run.dag_id, run.logical_date) is not None:
        return {}
    return insert_runs(conn, [msgspec.structs.replace(run, run_id=free_run_id(conn, run.dag_id, run.run_id, 2)[0])])


def free_run_id(conn: Connection, dag_id: str, plain: str, number: int = 1) -> tuple[str, int]:
    """Return a run_id, made from a plain one and a number, that no run of a DAG has; and the number to try next."""

    def is_taken(number: int) -> bool:
        return get_run(conn, dag_id, _numbered(plain, number)) is not None

    taken, free = number - 1, number
    # Bisect: where an author names runs, thousands may share a name.
    while is_taken(free):
        taken, free = free, 2 * free
    while free - taken > 1:
        middle = (taken + free) // 2
        taken, free = (middle, free) if is_taken(middle) else (taken, middle)
    return _numbered(plain, free), free + 1


def _numbered(run_id: str, number: int) -> str:
    """Return a run_id that ends with a number; that of the first, 1, does not show it."""
    end = "" if number == 1 else f"_{number}"
    return f"{run_id[: MAX_ID_LENGTH - len(end)]}{end}"


def end_queued_run(conn: Connection, run_row_id: int, state: DagRunState, reason: str, now: datetime) -> bool:
    """End a run that has not started. False: it is no longer queued."""
    is_queued = sa.and_(dag_run.c.id == run_row_id, dag_run.c.state == DagRunState.QUEUED)
    ended = sa.update(dag_run).where(is_queued).values(state=state, reason=reason, ended_at=now)
    return conn.execute(ended).rowcount > 0


def delete_run(conn: Connection, run_row_id: int) -> None:
    """Delete a run with all its rows."""
    conn.execute(sa.delete(dag_run).where(dag_run.c.id == run_row_id))


def get_run(conn: Connection, dag_id: str, run_id: str) -> DagRunRow | None:
    """Return a run; None if it does not exist."""
    return fetch_one(conn, DagRunRow, _ONE, {"dag_id": dag_id, "run_id": run_id})


def run_of_date(conn: Connection, dag_id: str, logical_date: datetime) -> DagRunRow | None:
    """Return a DAG's run of that logical date; None if it does not exist."""
    return fetch_one(conn, DagRunRow, _OF_DATE, {"dag_id": dag_id, "date": logical_date})


def runs_of_partitions(conn: Connection, dag_id: str, first: datetime, last: datetime) -> list[DagRunRow]:
    """Return a DAG's runs of partitions whose dates are in a span, its ends included, in the order of creation."""
    of_dag = _RUNS.where(dag_run.c.dag_id == dag_id, dag_run.c.partition_date.between(first, last))
    return fetch(conn, DagRunRow, of_dag.order_by(dag_run.c.id))


def previous_run(
    conn: Connection, dag_id: str, *, before: datetime | None, state: str | None = None
) -> DagRunRow | None:
    """Return a DAG's newest run of an earlier logical date, of that state if given; None if none matches."""
    if before is None:
        return None
    query = _RUNS.where(dag_run.c.dag_id == dag_id, dag_run.c.logical_date < before)
    if state is not None:
        query = query.where(dag_run.c.state == state)
    return fetch_one(conn, DagRunRow, query.order_by(dag_run.c.logical_date.desc()).limit(1))


def list_runs(
    conn: Connection, *, dag_id: str | None = None, state: str | None = None, limit: int = 1000
) -> list[DagRunRow]:
    """Return runs, of one DAG or of all, in one state or in any, the newest first."""
    newest = _RUNS.order_by(dag_run.c.id.desc()) if dag_id is None else _NEWEST_FIRST.where(dag_run.c.dag_id == dag_id)
    query = newest if state is None else newest.where(dag_run.c.state == state)
    return fetch(conn, DagRunRow, query.limit(limit))


def newest_run_ids(conn: Connection, dag_id: str, *, limit: int) -> list[str]:
    """Return the run_ids of a DAG's newest runs."""
    return list(conn.scalars(_NEWEST_IDS.where(_IS_OF_DAG).limit(limit), {"dag_id": dag_id}))


def run_ids_beginning_with(conn: Connection, dag_id: str, beginning: str, limit: int) -> list[str]:
    """Return the run_ids of a DAG's newest runs that begin with a text."""
    # Not LIKE: on SQLite that ignores case, and `_` matches any letter.
    begins = sa.func.substr(dag_run.c.run_id, 1, len(beginning)) == beginning
    return list(conn.scalars(_NEWEST_IDS.where(_IS_OF_DAG, begins).limit(limit), {"dag_id": dag_id}))


def failed_since(conn: Connection, since: datetime, *, limit: int) -> list[DagRunRow]:
    """Return the first runs that have failed since an instant."""
    query = _RUNS.where(dag_run.c.ended_at >= since, dag_run.c.state == DagRunState.FAILED)
    return fetch(conn, DagRunRow, query.order_by(dag_run.c.ended_at, dag_run.c.id).limit(limit))


def last_run_states(conn: Connection, dag_id: str, n: int) -> list[str]:
    """Return the states of a DAG's newest `n` runs at most, the newest first."""
    query = _NEWEST_FIRST.with_only_columns(dag_run.c.state).where(dag_run.c.dag_id == dag_id)
    return list(conn.scalars(query.limit(n)))


def last_scheduled_intervals(conn: Connection, dag_ids: Sequence[str]) -> dict[str, DataInterval]:
    """Return the data interval of each DAG's newest scheduled run; DAGs without one are left out."""
    rows = select_in(conn, _LAST_SCHEDULED, dag.c.dag_id, dag_ids)
    return {row.dag_id: DataInterval(row.data_interval_start, row.data_interval_end) for row in rows}


def last_run_of_partitions(conn: Connection, dag_id: str) -> DataInterval | None:
    """Return the time of the newest scheduled run of a DAG that is scheduled by partitions, as an empty interval."""
    at: datetime | None = conn.scalar(_NEWEST_OF_PARTITIONS, {"dag_id": dag_id})
    return None if at is None else DataInterval.exact(at)


def dates_after(conn: Connection, dag_id: str, after: datetime | None, limit: int) -> frozenset[datetime]:
    """Return the first logical dates of a DAG's runs after one of them; None: of all its runs."""
    dates = sa.select(dag_run.c.logical_date).where(dag_run.c.dag_id == dag_id, dag_run.c.logical_date.is_not(None))
    if after is not None:
        dates = dates.where(dag_run.c.logical_date > after)
    return frozenset(conn.scalars(dates.order_by(dag_run.c.logical_date).limit(limit)))


def last_scheduled_run(conn: Connection, dag_id: str) -> DagRunInfo | None:
    """Return a DAG's newest scheduled run; None when it has had none."""
    query = _LAST_SCHEDULED.add_columns(_newest.c.run_after).where(dag.c.dag_id == dag_id)
    for row in conn.execute(query):
        return DagRunInfo(row.run_after, DataInterval(row.data_interval_start, row.data_interval_end))
    return None


def runs_made(conn: Connection, wanted: Sequence[WantedRun]) -> set[WantedRun]:
    """Return the runs that cannot be created, because their DAG has that run_id, or a run of that logical date."""
    found = execute_rows(conn, _MADE[conn.dialect.name], wanted)
    made = {(row.dag_id, row.run_id) for row in found}
    return {run for run in wanted if run[:2] in made}


def run_row_ids(conn: Connection, keys: Collection[DagRunKey]) -> list[int]:
    """Return the row ids of those runs that exist."""
    rows = execute_rows(conn, _IDS[conn.dialect.name], list(keys))
    return [row.id for row in rows if row.id is not None]


def ended_among(conn: Connection, keys: Collection[DagRunKey]) -> list[DagRunKey]:
    """Return those runs that have ended."""
    rows = execute_rows(conn, _STATES[conn.dialect.name], list(keys))
    return [DagRunKey(row.dag_id, row.run_id) for row in rows if row.state in FINISHED_RUN_STATES]


def count_active_runs(conn: Connection, dag_ids: Collection[str], at_most: int) -> dict[str, int]:
    """Return the numbers of queued and running runs, without those of backfills, by dag_id.

    Counting stops at `at_most`, as a DAG may have very many queued runs: a larger number means: or more.
    """
    rows = execute_rows(conn, _N_ACTIVE[conn.dialect.name], [_DagId(dag_id) for dag_id in dag_ids], at_most=at_most)
    return {row.dag_id: row.n for row in rows}


def count_ended_since(conn: Connection, since: datetime) -> dict[str, int]:
    """Return the numbers of runs that have ended since an instant, by state, without states that no run has."""
    query = sa.select(dag_run.c.state, sa.func.count().label("n")).where(dag_run.c.ended_at >= since)
    return {row.state: row.n for row in conn.execute(query.group_by(dag_run.c.state))}
