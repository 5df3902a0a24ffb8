"""Whole runs, with their task instances and earlier tries, many at once: for what looks back over a span of time."""

from collections import defaultdict
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.states import TaskInstanceState
from asynsched.store.dag_runs import DagRunRow
from asynsched.store.rows import as_struct, from_json
from asynsched.store.schema.tables import dag_run, task_instance, task_instance_history
from asynsched.store.task_instances import TaskInstanceRow, TryRow


class WholeRun(NamedTuple):
    """A run, its task instances, and their earlier tries by task_id and map_index, oldest first."""

    run: DagRunRow
    tasks: list[TaskInstanceRow]
    tries: dict[tuple[str, int], list[TryRow]]


class PastTry(NamedTuple):
    """How one try of a task went, and how many values it returned."""

    dag_id: str
    task_id: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    result_length: int | None = None


_RUNS = sa.select(dag_run).order_by(dag_run.c.run_after, dag_run.c.dag_id, dag_run.c.run_id)
_TASKS = sa.select(task_instance).order_by(
    task_instance.c.queued_at.asc().nulls_last(), task_instance.c.task_id, task_instance.c.map_index
)
_TRIES = sa.select(
    task_instance_history.c.dag_run_id, *(task_instance_history.c[name] for name in TryRow.__struct_fields__)
).order_by(task_instance_history.c.id)
_NEWEST = (
    sa.select(dag_run.c.id)
    .where(dag_run.c.dag_id == sa.bindparam("dag_id"), dag_run.c.ended_at.is_not(None))
    .order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
    .limit(sa.bindparam("limit"))
)
_TRIED = (TaskInstanceState.SUCCESS, TaskInstanceState.FAILED)


def all_runs(conn: Connection) -> list[WholeRun]:
    """Return every run, in the order in which they were due, tasks in the order of their queueing."""
    tasks: dict[int, list[TaskInstanceRow]] = defaultdict(list)
    for row in conn.execute(_TASKS):
        tasks[row.dag_run_id].append(as_struct(TaskInstanceRow, row))
    tries: dict[int, dict[tuple[str, int], list[TryRow]]] = defaultdict(lambda: defaultdict(list))
    for row in conn.execute(_TRIES):
        values = {name: getattr(row, name) for name in TryRow.__struct_fields__}
        tries[row.dag_run_id][row.task_id, row.map_index].append(TryRow(**values))
    runs = [as_struct(DagRunRow, row, conf=from_json(row.conf)) for row in conn.execute(_RUNS)]
    return [WholeRun(run, tasks[run.id], tries[run.id]) for run in runs]


def past_tries(conn: Connection, dag_id: str, *, n_runs: int) -> list[PastTry]:
    """Return the tries of a DAG's newest runs that have ended: each that user code was run for."""
    keys = list(conn.scalars(_NEWEST, {"dag_id": dag_id, "limit": n_runs}))
    found = []
    for table, length in ((task_instance, task_instance.c.result_length), (task_instance_history, sa.null())):
        statement = sa.select(table.c.task_id, table.c.state, table.c.started_at, table.c.ended_at, length).where(
            table.c.dag_run_id.in_(keys), table.c.state.in_(_TRIED), table.c.token.is_not(None)
        )
        found += [PastTry(dag_id, *row) for row in conn.execute(statement)]
    return found
