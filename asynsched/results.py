"""Finished runs, and running tries, as an embedding program sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from anyio.lowlevel import checkpoint
from sqlalchemy import Connection

from asynsched.authoring.transport import from_transport
from asynsched.keys import DagRunKey
from asynsched.serialization.decode import decode_dag
from asynsched.store.dags.dags import get_version
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.runs.xcoms import some_xcoms
from asynsched.store.schema import DagRunRow, TaskInstanceRow


@dataclass(frozen=True, slots=True)
class RunningTry:
    """A launched try of a task instance; `started_at` is None until its process has begun."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Running:
    """The tries and callbacks of a scheduler that have not ended; the oldest tries come first."""

    tries: tuple[RunningTry, ...] = ()
    n_callbacks: int = 0

    @property
    def is_nothing(self) -> bool:
        return not (self.tries or self.n_callbacks)


@dataclass(frozen=True, slots=True)
class FinishedTask:
    """A task instance of a finished run. A mapped task has many; of others, `map_index` is -1.

    `result` is the task's return value; `rendered_map_index` is the text of its `map_index_template`.
    """

    task_id: str
    map_index: int
    state: str | None
    reason: str
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    result: Any = None
    rendered_map_index: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended. Its `tasks` are in topological order.

    `conf` is what the run was given; a run without a logical date has no data interval. `results` has, by task_id, the
    return values that the DAG names as its results (`@result`, `add_result`, the value that a `@dag` function returns);
    a list for a mapped task.
    """

    dag_id: str
    run_id: str
    state: str
    reason: str
    conf: dict[str, Any]
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    tasks: tuple[FinishedTask, ...]
    results: dict[str, Any]


async def read_finished_run(database: Database, key: DagRunKey) -> FinishedRun:
    """Return a run with its tasks and their results. Raises LookupError when it is not stored."""
    run, rows, with_results = await database.read(_run_and_tasks, key)
    values = await _values(database, run.id)
    tasks = tuple(
        FinishedTask(
            row.task_id, row.map_index, row.state, row.reason, row.try_number, row.started_at, row.ended_at,
            values.get((row.task_id, row.map_index)), row.rendered_map_index,
        )
        for row in rows
    )  # fmt: skip
    return FinishedRun(
        key.dag_id, key.run_id, run.state, run.reason, run.conf, run.logical_date, run.data_interval_start,
        run.data_interval_end, run.queued_at, run.started_at, run.ended_at, tasks,
        by_task({key: value for key, value in sorted(values.items()) if key[0] in with_results}),
    )  # fmt: skip


def by_task(values: Mapping[tuple[str, int], Any]) -> dict[str, Any]:
    """Return the values of task instances, in the order of their map indexes, by task_id; a list for a mapped task."""
    found: dict[str, Any] = {}
    for (task_id, map_index), value in values.items():
        if map_index < 0:
            found[task_id] = value
        else:
            found.setdefault(task_id, []).append(value)
    return found


def _run_and_tasks(conn: Connection, key: DagRunKey) -> tuple[DagRunRow, list[TaskInstanceRow], frozenset[str]]:
    """Return a run, its task instances in topological order, and the tasks that return its results."""
    run = get_run(conn, *key)
    if run is None:
        raise LookupError(f"there is no run {key.run_id!r} of the DAG {key.dag_id!r}")
    order: dict[str, int] = {}
    with_results: frozenset[str] = frozenset()
    if run.version_id is not None:
        dag = decode_dag(get_version(conn, run.version_id).serialized)
        order = {task.task_id: place for place, task in enumerate(dag.tasks)}
        with_results = frozenset(task.task_id for task in dag.tasks if task.returns_dag_result)
    rows = load_task_instances(conn, run.id)
    return run, sorted(rows, key=lambda row: (order.get(row.task_id, 0), row.map_index)), with_results


async def _values(database: Database, dag_run_id: int) -> dict[tuple[str, int], Any]:
    """Return the return values of task instances, read in parts: all at once could stall the loop."""
    found: dict[tuple[str, int], Any] = {}
    after, is_last = None, False
    while not is_last:
        part, is_last = await database.read(some_xcoms, dag_run_id, key="return_value", after=after)
        for task_id, map_index, value in part:
            after = task_id, map_index
            found[after] = from_transport(msgspec.json.decode(value))
        await checkpoint()
    return found
