"""What came before a run: how the tasks that depend on the past went there."""

from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.states import DagRunType
from asynsched.store.schema.tables import dag_run, task_instance


class StoredPast(Struct, frozen=True):
    """The run before, and the states of its task instances, by task_id.

    `never_seen` are those of the tasks asked for that no earlier run has.
    """

    key: DagRunKey
    states: dict[str, list[str | None]]
    never_seen: frozenset[str] = frozenset()


_BEFORE = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.run_id)
    .where(dag_run.c.dag_id == sa.bindparam("dag_id"), dag_run.c.logical_date < sa.bindparam("date"))
    .order_by(dag_run.c.logical_date.desc())
    .limit(1)
)
_BEFORE_UNASKED = _BEFORE.where(dag_run.c.run_type != DagRunType.MANUAL)
_STATES = sa.select(task_instance.c.task_id, task_instance.c.state).where(
    task_instance.c.dag_run_id == sa.bindparam("run"),
    task_instance.c.task_id.in_(sa.bindparam("task_ids", expanding=True)),
)
_SEEN = (
    sa.select(task_instance.c.task_id)
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .where(
        dag_run.c.dag_id == sa.bindparam("dag_id"),
        dag_run.c.logical_date < sa.bindparam("date"),
        task_instance.c.task_id == sa.bindparam("task_id"),
    )
    .limit(1)
)


def read_past(
    conn: Connection,
    dag_id: str,
    logical_date: datetime,
    downstream: Mapping[str, Collection[str]],
    *,
    catchup: bool,
    never_seen: frozenset[str] = frozenset(),
) -> StoredPast | None:
    """Return the run before one of that logical date, with the states of these tasks and of those after them.

    Args:
        downstream: The tasks directly downstream of each that depends on the past.
        catchup: Only a run counts that nobody made by hand (Airflow's get_previous_scheduled_dagrun).
        never_seen: Tasks that no earlier run had when that was asked before: to ask again looks through all of them.
    """
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
    return StoredPast(DagRunKey(before.dag_id, before.run_id), states, missing)
