"""Answers to tasks about runs of any DAG: states, numbers, and the task instance before their own."""

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.serialization.schema import SerializedDag
from asynsched.store.dags.dags import latest_version
from asynsched.store.rows import MANY_ROWS, count, fetch_one
from asynsched.store.schema import dag_run, task_instance

NO_STATE = "null"
"""Stands for no state in a filter of states, as in Airflow."""


class RunFilter(Struct, frozen=True):
    """Runs of one DAG; None or empty means no filter."""

    dag_id: str
    logical_dates: list[datetime] | None = None
    run_ids: list[str] | None = None
    states: list[str] | None = None


class TaskFilter(Struct, frozen=True):
    """Task instances in runs of one DAG; None or empty means no filter.

    `task_group_id` stands for the tasks of the group, and of groups in it, in the DAG's newest version.
    """

    dag_id: str
    map_index: int | None = None
    task_ids: list[str] | None = None
    task_group_id: str | None = None
    logical_dates: list[datetime] | None = None
    run_ids: list[str] | None = None
    states: list[str] | None = None


class InstancePosition(NamedTuple):
    """A task instance among those of a DAG, by run_id, task_id and map_index."""

    run_id: str
    task_id: str
    map_index: int


class PreviousTry(Struct, frozen=True):
    """A task instance of an earlier run, after its newest try."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    logical_date: datetime | None
    started_at: datetime | None
    ended_at: datetime | None


_INSTANCES = task_instance.join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)


def count_runs(conn: Connection, wanted: RunFilter) -> int:
    """Count the runs that match."""
    is_of_state = [dag_run.c.state.in_(wanted.states)] if wanted.states else []
    return count(conn, sa.select(dag_run.c.id).where(*_run_conditions(wanted), *is_of_state))


def count_task_instances(conn: Connection, wanted: TaskFilter) -> int:
    """Count the task instances that match. Raises NotFound for a task group that does not exist."""
    query = sa.select(task_instance.c.id).select_from(_INSTANCES)
    return count(conn, query.where(*_task_conditions(conn, wanted)))


def states_by_run(
    conn: Connection, wanted: TaskFilter, after: InstancePosition | None = None
) -> tuple[dict[str, dict[str, str | None]], InstancePosition | None]:
    """Return states by run_id and task_id, as many as one answer should hold.

    The key of a mapped task instance is its task_id, `_` and its index. Returns also the last task instance, in the
    order of run_id, task_id and map_index, `after` which to begin next; None when no others follow.

    Raises NotFound for a DAG or a task group that does not exist.
    """
    after = after or InstancePosition("", "", -2)
    run_id, (task_id, map_index) = dag_run.c.run_id, (task_instance.c.task_id, task_instance.c.map_index)
    query = (
        sa.select(run_id, task_id, map_index, task_instance.c.state)
        .select_from(_INSTANCES)
        .where(
            *_task_conditions(conn, wanted),
            run_id >= after.run_id,
            (run_id > after.run_id)
            | (task_id > after.task_id)
            | ((task_id == after.task_id) & (map_index > after.map_index)),
        )
        .order_by(run_id, task_id, map_index)
        .limit(MANY_ROWS)
    )
    rows = conn.execute(query).all()
    found: dict[str, dict[str, str | None]] = {}
    for row in rows:
        name = row.task_id if row.map_index < 0 else f"{row.task_id}_{row.map_index}"
        found.setdefault(row.run_id, {})[name] = row.state
    return found, None if len(rows) < MANY_ROWS else InstancePosition(*rows[-1][:3])


def previous_task_instance(
    conn: Connection, dag_id: str, task_id: str, *, before: datetime, map_index: int = -1, state: str | None = None
) -> PreviousTry | None:
    """Return a task's instance of the newest earlier logical date, in that state if given; None if none matches."""
    columns = (
        (task_instance if name in task_instance.c else dag_run).c[name] for name in PreviousTry.__struct_fields__
    )
    query = (
        sa.select(*columns)
        .select_from(_INSTANCES)
        .where(
            dag_run.c.dag_id == dag_id,
            dag_run.c.logical_date < before,
            task_instance.c.task_id == task_id,
            task_instance.c.map_index == map_index,
        )
        .order_by(dag_run.c.logical_date.desc())
        .limit(1)
    )
    if state is not None:
        query = query.where(task_instance.c.state == state)
    return fetch_one(conn, PreviousTry, query)


def _run_conditions(wanted: RunFilter | TaskFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [dag_run.c.dag_id == wanted.dag_id]
    if wanted.logical_dates:
        conditions.append(dag_run.c.logical_date.in_(wanted.logical_dates))
    if wanted.run_ids:
        conditions.append(dag_run.c.run_id.in_(wanted.run_ids))
    return conditions


def _task_conditions(conn: Connection, wanted: TaskFilter) -> list[sa.ColumnElement[bool]]:
    conditions = _run_conditions(wanted)
    if wanted.map_index is not None:
        conditions.append(task_instance.c.map_index == wanted.map_index)
    if wanted.task_ids:
        conditions.append(task_instance.c.task_id.in_(wanted.task_ids))
    if wanted.task_group_id is not None:
        conditions.append(task_instance.c.task_id.in_(_tasks_of_group(conn, wanted.dag_id, wanted.task_group_id)))
    if wanted.states:
        is_one = task_instance.c.state.in_([state for state in wanted.states if state != NO_STATE])
        conditions.append(is_one | task_instance.c.state.is_(None) if NO_STATE in wanted.states else is_one)
    return conditions


def _tasks_of_group(conn: Connection, dag_id: str, group_id: str) -> list[str]:
    version: Any = latest_version(conn, dag_id)
    if version is None:
        raise NotFound("DAG", dag_id)
    dag = msgspec.json.decode(version.serialized, type=SerializedDag)
    if group_id not in {group.group_id for group in dag.task_groups}:
        raise NotFound("task group", group_id, where=f"the DAG {dag_id!r}")
    parents = {group.group_id: group.parent_id for group in dag.task_groups}

    def is_within(inner: str | None) -> bool:
        while inner is not None and inner != group_id:
            inner = parents.get(inner)
        return inner == group_id

    return [task.task_id for task in dag.tasks if is_within(task.group_id)]
