"""Runs and paused states that another scheduler made, stored as if they had been made here.

A run is stored as it was: the next scheduled run follows it. A DAG may get its paused state before its file is parsed
for the first time: its row is one of a DAG that has left, and comes back with the parse.
"""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.states import FINISHED_RUN_STATES
from asynsched.store.changes import forget_changes, newest_number
from asynsched.store.rows import as_new, fetch_in, insert
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.schema import DagRunRow, TaskInstanceRow, dag, dag_run, task_instance

MAX_ACTIVE_RUNS = 1
"""Of a DAG that no parse has described yet."""


class ImportedRun(Struct, frozen=True):
    """A run that ended elsewhere, with its task instances, or one that has yet to begin."""

    run: DagRunRow
    tasks: tuple[TaskInstanceRow, ...] = ()


class RunFacts(Struct, frozen=True):
    """The identity of a run, and its outcome."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    started_at: datetime | None
    ended_at: datetime | None


_FACTS = sa.select(*(dag_run.c[name] for name in RunFacts.__struct_fields__))


def facts_of_runs(conn: Connection, dag_ids: Sequence[str]) -> list[RunFacts]:
    """Return the runs of these DAGs."""
    return fetch_in(conn, RunFacts, _FACTS, dag_run.c.dag_id, dag_ids)


def store_imported_run(conn: Connection, imported: ImportedRun) -> None:
    """Store a run in the place of an ended one of the same run_id or logical date, if there is one.

    A run that has yet to begin is stored like any queued run. A run that has ended gets no deadline, and is history: it
    is no change that readers of events are told.
    """
    run = imported.run
    same_date = sa.and_(dag_run.c.logical_date.is_not(None), dag_run.c.logical_date == run.logical_date)
    is_same = sa.and_(dag_run.c.dag_id == run.dag_id, sa.or_(dag_run.c.run_id == run.run_id, same_date))
    conn.execute(sa.delete(dag_run).where(is_same, dag_run.c.state.in_(FINISHED_RUN_STATES)))
    if run.state not in FINISHED_RUN_STATES:
        insert_run(conn, run)
        return
    newest = newest_number(conn)
    row_id = insert(conn, dag_run, as_new(run))
    if imported.tasks:
        conn.execute(task_instance.insert(), [as_new(task) | {"dag_run_id": row_id} for task in imported.tasks])
    forget_changes(conn, run.key, after=newest)


def paused_states(conn: Connection) -> dict[str, bool]:
    """Return whether each DAG is paused, including DAGs whose file is gone."""
    return {row.dag_id: row.is_paused for row in conn.execute(sa.select(dag.c.dag_id, dag.c.is_paused))}


def store_paused_state(conn: Connection, dag_id: str, *, file_path: str, is_paused: bool, now: datetime) -> None:
    """Pause or unpause a DAG, even if its file is yet to be parsed."""
    changed = sa.update(dag).where(dag.c.dag_id == dag_id).values(is_paused=is_paused, updated_at=now)
    if conn.execute(changed).rowcount == 0:
        values = {"dag_id": dag_id, "file_path": file_path, "is_active": False, "is_paused": is_paused}
        conn.execute(dag.insert(), values | {"max_active_runs": MAX_ACTIVE_RUNS, "updated_at": now})
