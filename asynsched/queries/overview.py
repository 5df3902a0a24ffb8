"""The state of everything at a glance: running, failed and late runs, and the next ones."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.queries.deadlines import DeadlineFilter, DeadlineInfo, list_deadlines
from asynsched.queries.paging import Paging, Range
from asynsched.queries.runs import Progress, count_progress
from asynsched.states import DagRunState
from asynsched.store.rows import fetch, portions
from asynsched.store.runs.dag_runs import ids_of_unfinished
from asynsched.store.schema import dag, dag_run

LATE_AFTER = timedelta(seconds=60)
"""A run that should have been created, or a queued run, counts as late after this time."""
MOST_LISTED = 50
"""Rows of each part."""
DagIds = frozenset[str] | None
"""The DAGs that may be seen; None: all."""


class RunLine(Struct, frozen=True, kw_only=True):
    """A run in an overview."""

    id: int
    dag_id: str
    run_id: str
    run_type: str
    state: str
    reason: str
    run_after: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class NextRun(Struct, frozen=True):
    """A DAG's next scheduled run; `is_late` if it should have been created already."""

    dag_id: str
    schedule: str
    at: datetime
    is_late: bool


class Overview(Struct, frozen=True, kw_only=True):
    """The state of everything at a moment; of each list the first rows. `progress`: of the runs, by their row ids."""

    running: tuple[RunLine, ...]
    queued: tuple[RunLine, ...]
    failed: tuple[RunLine, ...]
    late: tuple[NextRun, ...]
    coming: tuple[NextRun, ...]
    missed: tuple[DeadlineInfo, ...]
    progress: dict[int, Progress]
    n_running: int
    n_queued: int
    n_failed: int
    n_succeeded: int
    n_dags: int
    n_paused: int


_COLUMNS = [dag_run.c[name] for name in RunLine.__struct_fields__]
_RUNS: sa.Select[Any] = sa.select(*_COLUMNS)
_nth = dag_run.alias()
_NTH_NEWEST = (
    sa.select(_nth.c.run_after)
    .where(_nth.c.dag_id == dag.c.dag_id)
    .order_by(_nth.c.run_after.desc())
    .limit(1)
    .offset(sa.bindparam("n", type_=sa.Integer) - 1)
    .scalar_subquery()
)
_PLACE = sa.func.row_number().over(
    partition_by=dag_run.c.dag_id, order_by=(dag_run.c.run_after.desc(), dag_run.c.id.desc())
)
_since = (
    sa.select(dag.c.dag_id, sa.func.coalesce(_NTH_NEWEST, datetime.min.replace(tzinfo=UTC)).label("date"))
    .where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
    .cte("since")
    .prefix_with("MATERIALIZED", dialect="postgresql")  # else it may find out the date for each run again
)
# An index has the runs of a DAG by their dates, so that the older ones cost nothing.
_SINCE_THE_NTH = (
    sa.select(*_COLUMNS, _PLACE.label("place"))
    .join(_since, sa.and_(_since.c.dag_id == dag_run.c.dag_id, _since.c.date <= dag_run.c.run_after))
    .subquery()
)
_RECENT = (
    sa.select(*(_SINCE_THE_NTH.c[column.name] for column in _COLUMNS))
    .where(_SINCE_THE_NTH.c.place <= sa.bindparam("n"))
    .order_by(_SINCE_THE_NTH.c.place.desc())
)
_IS_RUNNING = dag_run.c.id.in_(ids_of_unfinished({DagRunState.RUNNING}))
_IS_QUEUED = dag_run.c.id.in_(ids_of_unfinished({DagRunState.QUEUED}))


def read_overview(conn: Connection, dag_ids: DagIds, *, now: datetime, since: datetime) -> Overview:
    """Return the running and waiting runs, those that have ended since an instant, and the next ones."""
    seen = _seen(dag_run.c.dag_id, dag_ids)
    failed = sa.and_(dag_run.c.ended_at >= since, dag_run.c.state == DagRunState.FAILED, seen)
    by_state = sa.select(dag_run.c.state, sa.func.count().label("n")).where(dag_run.c.ended_at >= since, seen)
    ended = {row.state: row.n for row in conn.execute(by_state.group_by(dag_run.c.state))}
    n_dags, n_paused = conn.execute(
        sa.select(sa.func.count(), sa.func.count(sa.case((dag.c.is_paused, 1)))).where(
            dag.c.is_active, _seen(dag.c.dag_id, dag_ids)
        )
    ).one()
    running = _lines(conn, _RUNS.where(_IS_RUNNING, seen).order_by(dag_run.c.id.desc()))
    queued = _lines(conn, _RUNS.where(_IS_QUEUED, seen).order_by(dag_run.c.queued_at))
    return Overview(
        running=running,
        queued=queued,
        failed=_lines(conn, _RUNS.where(failed).order_by(dag_run.c.ended_at.desc())),
        late=next_runs(conn, dag_ids, now, late=True),
        coming=next_runs(conn, dag_ids, now, late=False),
        missed=_missed(conn, dag_ids, since),
        progress=count_progress(conn, [run.id for run in (*running, *queued)]),
        n_running=_count(conn, _IS_RUNNING, seen),
        n_queued=_count(conn, _IS_QUEUED, seen),
        n_failed=ended.get(DagRunState.FAILED, 0),
        n_succeeded=ended.get(DagRunState.SUCCESS, 0),
        n_dags=n_dags,
        n_paused=n_paused,
    )


def recent_states(conn: Connection, dag_ids: Sequence[str], n: int) -> dict[str, list[RunLine]]:
    """Return the newest `n` runs at most of each DAG, the oldest of them first."""
    found: dict[str, list[RunLine]] = {dag_id: [] for dag_id in dag_ids}
    for some in portions(list(dag_ids)):
        for line in fetch(conn, RunLine, _RECENT, {"dag_ids": some, "n": n}):
            found[line.dag_id].append(line)
    return found


def _lines(conn: Connection, query: "sa.Select[Any]") -> tuple[RunLine, ...]:
    return tuple(fetch(conn, RunLine, query.limit(MOST_LISTED)))


def _count(conn: Connection, *conditions: "sa.ColumnElement[bool]") -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(dag_run).where(*conditions)).scalar_one()


def next_runs(conn: Connection, dag_ids: DagIds, now: datetime, *, late: bool) -> tuple[NextRun, ...]:
    """Return the next scheduled runs that are late, or the others; the first of them first."""
    at = dag.c.next_dagrun_create_after
    is_its = at <= now - LATE_AFTER if late else at > now - LATE_AFTER
    query = (
        sa.select(dag.c.dag_id, dag.c.schedule_summary, at)
        .where(dag.c.is_active, ~dag.c.is_paused, at.is_not(None), is_its, _seen(dag.c.dag_id, dag_ids))
        .order_by(at, dag.c.dag_id)
        .limit(MOST_LISTED)
    )
    return tuple(NextRun(*row, is_late=late) for row in conn.execute(query))


def _missed(conn: Connection, dag_ids: DagIds, since: datetime) -> tuple[DeadlineInfo, ...]:
    wanted = DeadlineFilter(allowed=dag_ids, states=("missed",), due_at=Range(gte=since))
    return list_deadlines(conn, wanted, Paging(limit=MOST_LISTED, order_by=("-due_at",))).items


def _seen(column: "sa.ColumnElement[str]", dag_ids: DagIds) -> "sa.ColumnElement[bool]":
    return sa.true() if dag_ids is None else column.in_(dag_ids)
