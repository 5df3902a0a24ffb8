"""Deletion of old rows: ended runs with all their rows, and XComs of runs that stay.

Finding old runs and deleting them are two steps, so on SQLite no writer waits during the search. The deleting
transaction checks again, so a run stays that was cleared meanwhile, or whose callbacks have yet to run.
"""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, TextClause, bindparam, text

from asynsched.keys import DagRunKey
from asynsched.store.rows import fetch
from asynsched.store.schema import (
    EPOCH,
    Instant,
    dag_run,
    rendered_fields,
    task_instance,
    task_instance_history,
    task_state_store,
    xcom,
)


class Bound(Struct, frozen=True):
    """Which ended runs are too old: those beyond either limit.

    Attributes:
        before: They ended before this instant.
        per_dag: Their DAG has at least this number of newer runs.
    """

    before: datetime | None = None
    per_dag: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing is ever too old."""
        return self.before is None and self.per_dag is None


class OldRun(Struct, frozen=True):
    """A run that is too old."""

    id: int
    dag_id: str
    run_id: str

    @property
    def key(self) -> DagRunKey:
        return DagRunKey(self.dag_id, self.run_id)


class Deleted(Struct, frozen=True):
    """The deletions of one transaction: whole runs, and the number of rows, including those of a run in progress."""

    runs: list[OldRun]
    n_rows: int


_HAS_ENDED = "r.state IN ('success', 'failed')"
# The creator computes a DAG's next run from its newest scheduled one: without that, a catchup would start over. Runs of
# partitions have no logical date.
_IS_NEWEST = (
    "(r.run_type = 'scheduled' AND NOT CASE WHEN r.logical_date IS NULL"
    " THEN EXISTS (SELECT 1 FROM dag_run n WHERE n.dag_id = r.dag_id AND n.run_type = 'scheduled'"
    " AND n.logical_date IS NULL AND n.run_after > r.run_after)"
    " ELSE EXISTS (SELECT 1 FROM dag_run n WHERE n.dag_id = r.dag_id AND n.run_type = 'scheduled'"
    " AND n.logical_date > r.logical_date) END)"
)
# The tasks of an active run may depend on the run before it. Only the next run is looked at: many may be active.
_IS_NEEDED = (
    "coalesce((SELECT a.state FROM dag_run a WHERE a.dag_id = r.dag_id AND a.logical_date > r.logical_date"
    " ORDER BY a.logical_date LIMIT 1), '') IN ('queued', 'running')"
)
_IS_CALLED_BACK = (
    "EXISTS (SELECT 1 FROM callback_request c WHERE c.dag_run_id = r.id AND c.state IN ('queued', 'running'))"
)
# A deadline that is met already is decided when it is due, but that has no consequence.
_MAY_MISS = (
    "EXISTS (SELECT 1 FROM deadline l WHERE l.dag_run_id = r.id AND l.state = 'pending'"
    " AND NOT (r.state = 'success' AND r.ended_at <= l.due_at))"
)
_MAY_GO = " AND NOT ".join((_HAS_ENDED, _IS_NEWEST, _IS_NEEDED, _IS_CALLED_BACK, _MAY_MISS))
_HAS_XCOMS = f"{_HAS_ENDED} AND EXISTS (SELECT 1 FROM xcom x WHERE x.dag_run_id = r.id)"  # noqa: S608 - constants
_BY_AGE = "SELECT r.id, r.dag_id, r.run_id FROM dag_run r WHERE r.ended_at < :before AND {condition}"
_BY_NUMBER = (
    "SELECT r.id, r.dag_id, r.run_id FROM dag d JOIN dag_run e ON e.id = (SELECT n.id FROM dag_run n"
    " WHERE n.dag_id = d.dag_id ORDER BY n.run_after DESC, n.id DESC LIMIT 1 OFFSET :per_dag)"
    " JOIN dag_run r ON r.dag_id = e.dag_id AND (r.run_after, r.id) <= (e.run_after, e.id) WHERE {condition}"
)


_EITHER = f"{_BY_AGE} UNION {_BY_NUMBER}"
_LOCKED = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.run_id)
    .where(dag_run.c.id.in_(bindparam("ids", expanding=True)), sa.text("dag_run.state IN ('success', 'failed')"))
    .order_by(dag_run.c.id)
    .with_for_update(skip_locked=True)
)
# Asked once the runs are locked: on PostgreSQL no run gets a callback from then on, as that refers to its row.
_STILL_OLD = text(f"SELECT r.id FROM dag_run r WHERE r.id IN :ids AND {_MAY_GO}").bindparams(  # noqa: S608 - constants
    bindparam("ids", expanding=True)
)
_PARTS = (xcom, rendered_fields, task_state_store, task_instance_history, task_instance)
"""Rows of a run that may be too many for one transaction. XComs first: they are the largest."""


def old_runs(conn: Connection, bound: Bound, *, limit: int) -> list[OldRun]:
    """Return up to `limit` runs that are too old, with their tasks.

    Never a run that is active, the newest scheduled run of a DAG, the run before one that is active, or one with
    callbacks that have not ended or a deadline that it may still miss.
    """
    return _find(conn, _MAY_GO, bound, limit)


def old_runs_with_xcoms(conn: Connection, bound: Bound, *, limit: int) -> list[OldRun]:
    """Return up to `limit` ended runs whose XComs are too old."""
    return _find(conn, _HAS_XCOMS, bound, limit)


def count_old_runs(conn: Connection, bound: Bound) -> int:
    """Count the runs that are too old."""
    return _count(conn, f"FROM ({_EITHER.format(condition=_MAY_GO)}) AS old", bound)


def count_old_xcoms(conn: Connection, bound: Bound) -> int:
    """Count the XComs of ended runs that are too old."""
    runs = f"SELECT id FROM ({_EITHER.format(condition=_HAS_ENDED)}) AS old"  # noqa: S608 - constants
    return _count(conn, f"FROM xcom WHERE dag_run_id IN ({runs})", bound)


def delete_runs(conn: Connection, run_ids: Sequence[int], *, max_rows: int) -> Deleted:
    """Delete ended runs with all their rows, until about `max_rows` rows are gone.

    Runs that another transaction has locked stay, and those that are needed by now, as in `old_runs`.
    A run with more rows is deleted piece by piece; meanwhile its reason says that it is being deleted.
    """
    locked = fetch(conn, OldRun, _LOCKED, {"ids": list(run_ids)})
    still_old = set(conn.scalars(_STILL_OLD, {"ids": [run.id for run in locked]}))
    found = [run for run in locked if run.id in still_old]
    sizes = _sizes(conn, [run.id for run in found])
    whole: list[OldRun] = []
    n_rows = 0
    for run in found:
        if n_rows + sizes[run.id] > max_rows:
            break
        whole.append(run)
        n_rows += sizes[run.id]
    if whole:
        conn.execute(sa.delete(dag_run).where(dag_run.c.id.in_([run.id for run in whole])))
    elif found:
        going = sa.update(dag_run).where(dag_run.c.id == found[0].id)
        conn.execute(going.values(reason="It is being deleted: it is too old."))
        n_rows = _delete_parts(conn, _PARTS, found[0].id, max_rows)
    return Deleted(whole, n_rows)


def delete_rows_of(conn: Connection, run_row_id: int, *, max_rows: int) -> int:
    """Delete up to `max_rows` rows of a run's tasks, for a user who deletes the run. Returns how many."""
    return _delete_parts(conn, _PARTS, run_row_id, max_rows)


def delete_xcoms_of(conn: Connection, run_ids: Sequence[int], *, max_rows: int) -> int:
    """Delete up to `max_rows` XComs of those runs that have ended. Returns how many."""
    n_rows = 0
    for run in conn.execute(_LOCKED, {"ids": list(run_ids)}).all():
        n_rows += _delete_parts(conn, (xcom,), run.id, max_rows - n_rows)
        if n_rows >= max_rows:
            break
    return n_rows


def _find(conn: Connection, condition: str, bound: Bound, limit: int) -> list[OldRun]:
    """Return the oldest runs that meet a condition, by age and by number."""
    found: dict[int, OldRun] = {}
    for name, statement in {"before": f"{_BY_AGE} ORDER BY r.ended_at", "per_dag": _BY_NUMBER}.items():
        if (value := getattr(bound, name)) is not None and len(found) < limit:
            query = _typed(f"{statement.format(condition=condition)} LIMIT :limit")
            found |= {run.id: run for run in fetch(conn, OldRun, query, {name: value, "limit": limit})}
    return list(found.values())[:limit]


def _count(conn: Connection, of_what: str, bound: Bound) -> int:
    # No run has ended before 1970, and no DAG has that many runs.
    values = {"before": bound.before or EPOCH, "per_dag": 2**62 if bound.per_dag is None else bound.per_dag}
    return int(conn.execute(_typed(f"SELECT count(*) {of_what}"), values).scalar_one())


def _typed(statement: str) -> TextClause:
    found = text(statement)
    return found.bindparams(bindparam("before", type_=Instant)) if ":before" in statement else found


def _sizes(conn: Connection, run_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of rows of each run: its own, and those of _PARTS."""
    sizes = dict.fromkeys(run_ids, 1)
    for table in _PARTS:
        column = table.c.dag_run_id
        counted = sa.select(column, sa.func.count()).where(column.in_(list(run_ids))).group_by(column)
        for run_id, n in conn.execute(counted):
            sizes[run_id] += n
    return sizes


def _delete_parts(conn: Connection, tables: Sequence[sa.Table], run_id: int, max_rows: int) -> int:
    n_rows = 0
    for table in tables:
        keys = tuple(table.primary_key.columns)
        some = sa.select(*keys).where(table.c.dag_run_id == run_id).limit(max_rows - n_rows)
        n_rows += conn.execute(sa.delete(table).where(sa.tuple_(*keys).in_(some))).rowcount
        if n_rows >= max_rows:
            break
    return n_rows


class RunAge(Struct, frozen=True):
    """A run, and when it ended; None while it has not."""

    run_id: str
    ended_at: datetime | None


def run_ages(conn: Connection, dag_id: str, run_ids: Sequence[str] | None) -> list[RunAge]:
    """Return a DAG's runs with one of these run_ids; None: all of them."""
    query = sa.select(dag_run.c.run_id, dag_run.c.ended_at).where(dag_run.c.dag_id == dag_id)
    return fetch(conn, RunAge, query if run_ids is None else query.where(dag_run.c.run_id.in_(list(run_ids))))
