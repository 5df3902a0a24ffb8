"""Queries of `task_instance` and of earlier tries. `transitions.py` writes both.

Whole runs are read at once to look back over a span of time, and the run before another one for tasks that
depend on the past.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.states import SLOT_TASK_STATES, DagRunType, TaskInstanceState
from asynsched.store.rows import fetch
from asynsched.store.schema import (
    DagRunRow,
    HistoryRow,
    TaskInstanceRow,
    backfill_dag_run,
    dag_run,
    task_instance,
    task_instance_history,
)
from asynsched.store.secrets import reading_cipher

# In the words of a partial index, which is not used otherwise.
IS_UNDER_WAY = sa.text("task_instance.state IN ('queued', 'running', 'restarting', 'deferred')")
UNDER_WAY_STATES = SLOT_TASK_STATES | {TaskInstanceState.DEFERRED}
UNDER_WAY_IDS = (
    sa.select(task_instance.c.id)
    .correlate(None)
    .where(IS_UNDER_WAY)
    .with_hint(task_instance, "INDEXED BY ix_task_instance_slots", "sqlite")
)
"""The row ids of the instances in these states. An index finds them, however long the history is."""
_OF_RUN = sa.select(task_instance).where(task_instance.c.dag_run_id == sa.bindparam("run"))
_LOADED = _OF_RUN.order_by(task_instance.c.id)
_BEGAN_AT = sa.func.coalesce(task_instance.c.started_at, task_instance.c.ended_at).asc().nulls_last()
_LISTED = _OF_RUN.order_by(_BEGAN_AT, task_instance.c.id)
_TRIES = sa.select(task_instance_history)
_TRIES_OF_RUN = _TRIES.where(task_instance_history.c.dag_run_id == sa.bindparam("run")).order_by(
    task_instance_history.c.task_id, task_instance_history.c.map_index, task_instance_history.c.id
)
_TOKENS = sa.union(
    *(
        sa.select(table.c.token).where(table.c.dag_run_id == sa.bindparam("run"), table.c.token.is_not(None))
        for table in (task_instance, task_instance_history)
    )
)

_DEFERRED_TOKENS = sa.select(task_instance.c.token).where(
    task_instance.c.dag_run_id == sa.bindparam("run"), task_instance.c.state == TaskInstanceState.DEFERRED
)


def of_try(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the query of a task instance's columns while a try holds its token.

    Its parameters are `run`, `task`, `index` and `token`. It waits for an uncommitted clear, and then finds the token
    gone.
    """
    return (
        sa.select(*columns)
        .where(
            task_instance.c.dag_run_id == sa.bindparam("run"),
            task_instance.c.task_id == sa.bindparam("task"),
            task_instance.c.map_index == sa.bindparam("index"),
            task_instance.c.token == sa.bindparam("token"),
        )
        .with_for_update(read=True)
    )


def load_task_instances(conn: Connection, dag_run_id: int) -> list[TaskInstanceRow]:
    """Return the task instances of a run, in the order of their creation."""
    rows = fetch(conn, TaskInstanceRow, _LOADED, {"run": dag_run_id})
    if all(row.deferral is None for row in rows):
        return rows
    cipher = reading_cipher(conn)
    return [row if row.deferral is None else replace(row, deferral=cipher.decrypt(row.deferral)) for row in rows]


def list_task_instances(conn: Connection, dag_run_id: int) -> list[TaskInstanceRow]:
    """Return the task instances of a run for a reader: in the order in which they began, then the others."""
    return fetch(conn, TaskInstanceRow, _LISTED, {"run": dag_run_id})


def list_tries(conn: Connection, dag_run_id: int) -> list[HistoryRow]:
    """Return the earlier tries of a run's task instances, by task, oldest first."""
    return fetch(conn, HistoryRow, _TRIES_OF_RUN, {"run": dag_run_id})


def numbers_of_tries(conn: Connection, dag_run_id: int) -> dict[tuple[str, int], dict[str | None, int]]:
    """Return the numbers of the earlier tries of each of a run's task instances, by token."""
    found: dict[tuple[str, int], dict[str | None, int]] = {}
    for row in list_tries(conn, dag_run_id):
        found.setdefault((row.task_id, row.map_index), {})[row.token] = row.try_number
    return found


def tokens_of_tries(conn: Connection, dag_run_id: int) -> frozenset[str]:
    """Return the tokens of all tries of a run's task instances."""
    return frozenset(conn.scalars(_TOKENS, {"run": dag_run_id}))


def deferred_tokens(conn: Connection, dag_run_id: int) -> frozenset[str]:
    """Return the tokens of a run's deferred task instances, which name their triggers."""
    return frozenset(conn.scalars(_DEFERRED_TOKENS, {"run": dag_run_id}))


class WholeRun(NamedTuple):
    """A run, its task instances, and their earlier tries by task_id and map_index, oldest first."""

    run: DagRunRow
    tasks: list[TaskInstanceRow]
    tries: dict[tuple[str, int], list[HistoryRow]]


class PastTry(NamedTuple):
    """How one try of a task went, and how many values it returned."""

    dag_id: str
    task_id: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    result_length: int | None = None


_TRIED = (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)


def all_runs(conn: Connection) -> list[WholeRun]:
    """Return every run, in the order in which they were due, with its tasks in the order of their queueing."""
    tasks: dict[int, list[TaskInstanceRow]] = defaultdict(list)
    in_order = (task_instance.c.queued_at.asc().nulls_last(), task_instance.c.task_id, task_instance.c.map_index)
    for task in fetch(conn, TaskInstanceRow, sa.select(task_instance).order_by(*in_order)):
        tasks[task.dag_run_id].append(task)
    tries: dict[int, dict[tuple[str, int], list[HistoryRow]]] = defaultdict(lambda: defaultdict(list))
    for row in fetch(conn, HistoryRow, _TRIES.order_by(task_instance_history.c.id)):
        tries[row.dag_run_id][row.task_id, row.map_index].append(row)
    runs = fetch(conn, DagRunRow, sa.select(dag_run).order_by(dag_run.c.run_after, dag_run.c.dag_id, dag_run.c.run_id))
    return [WholeRun(run, tasks[run.id], tries[run.id]) for run in runs]


def past_tries(conn: Connection, dag_id: str, *, n_runs: int) -> list[PastTry]:
    """Return the ended tries of a DAG's newest runs that ran user code."""
    ended = sa.select(dag_run.c.id).where(dag_run.c.dag_id == dag_id, dag_run.c.ended_at.is_not(None))
    keys = list(conn.scalars(ended.order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc()).limit(n_runs)))
    found = []
    for table, length in ((task_instance, task_instance.c.result_length), (task_instance_history, sa.null())):
        statement = sa.select(table.c.task_id, table.c.state, table.c.started_at, table.c.ended_at, length).where(
            table.c.dag_run_id.in_(keys), table.c.state.in_(_TRIED), table.c.token.is_not(None)
        )
        found += [PastTry(dag_id, *row) for row in conn.execute(statement)]
    return found


class StoredPast(Struct, frozen=True):
    """The run before, and the states of its task instances, by task_id.

    `never_seen`: the tasks that were asked for and that no earlier run has.
    """

    key: DagRunKey
    logical_date: datetime
    states: dict[str, list[str | None]]
    never_seen: frozenset[str] = frozenset()


_BEFORE = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.run_id, dag_run.c.logical_date)
    .where(dag_run.c.dag_id == sa.bindparam("dag_id"), dag_run.c.logical_date < sa.bindparam("date"))
    .order_by(dag_run.c.logical_date.desc())
    .limit(1)
)
_BEFORE_UNASKED = _BEFORE.where(dag_run.c.run_type != DagRunType.MANUAL)
# Of a task outside its own dates, Airflow makes no instance; here a removed one says so.
_IS_PART = sa.or_(
    task_instance.c.state.is_(None),
    task_instance.c.state != TaskInstanceState.REMOVED,
    task_instance.c.map_index >= 0,
)
_STATES = sa.select(task_instance.c.task_id, task_instance.c.state).where(
    task_instance.c.dag_run_id == sa.bindparam("run"),
    task_instance.c.task_id.in_(sa.bindparam("task_ids", expanding=True)),
    _IS_PART,
)
_SEEN = (
    sa.select(task_instance.c.task_id)
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .where(
        dag_run.c.dag_id == sa.bindparam("dag_id"),
        dag_run.c.logical_date < sa.bindparam("date"),
        task_instance.c.task_id == sa.bindparam("task_id"),
        _IS_PART,
    )
    .limit(1)
)


_FIRST_OF_BACKFILL = (
    sa.select(dag_run.c.id)
    .join(
        backfill_dag_run,
        (backfill_dag_run.c.dag_run_id == dag_run.c.id) & (backfill_dag_run.c.backfill_id == dag_run.c.backfill_id),
    )
    .where(dag_run.c.id == sa.bindparam("run"), backfill_dag_run.c.sort_ordinal == 1)
)


def read_past(
    conn: Connection,
    dag_id: str,
    logical_date: datetime,
    downstream: Mapping[str, Collection[str]],
    *,
    catchup: bool,
    never_seen: frozenset[str] = frozenset(),
    of_backfill: int | None = None,
) -> StoredPast | None:
    """Return the run before a logical date, with the states of these tasks and of their downstream tasks.

    Args:
        downstream: The direct downstream tasks of each task that depends on the past.
        catchup: Manual runs do not count (Airflow's get_previous_scheduled_dagrun).
        never_seen: Tasks that no earlier run had at the last look, which reads all earlier runs and is not repeated.
        of_backfill: Row id of the run of that date, if a backfill runs it. No run counts as the one before the first
            run of a backfill, as in Airflow.
    """
    if of_backfill is not None and conn.scalar(_FIRST_OF_BACKFILL, {"run": of_backfill}) is not None:
        return None
    statement = _BEFORE_UNASKED if catchup else _BEFORE
    before = conn.execute(statement, {"dag_id": dag_id, "date": logical_date}).first()
    if before is None:
        return None
    task_ids = sorted({*downstream, *(other for others in downstream.values() for other in others)})
    states: dict[str, list[str | None]] = {}
    for row in conn.execute(_STATES, {"run": before.id, "task_ids": task_ids}):
        states.setdefault(row.task_id, []).append(row.state)
    asked = {"dag_id": dag_id, "date": logical_date}
    missing = frozenset(
        task_id
        for task_id in downstream
        if task_id not in states
        and (task_id in never_seen or conn.execute(_SEEN, {**asked, "task_id": task_id}).first() is None)
    )
    return StoredPast(DagRunKey(before.dag_id, before.run_id), before.logical_date, states, missing)
