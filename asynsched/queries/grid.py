"""The grid of a DAG: its newest runs side by side, with the states of their tasks.

One bounded read: the database folds the instances of mapped tasks, so a row of the answer stands for all instances of a
task in a run that have the same state.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.rows import fetch
from asynsched.store.schema import dag_run, dag_version, task_instance

MOST_RUNS = 100
MOST_CELLS = 200_000
"""States of tasks in one answer; the oldest runs beyond it stay empty."""
PRECEDENCE = (
    "failed", "upstream_failed", "running", "restarting", "up_for_retry", "up_for_reschedule", "deferred",
    "awaiting_input", "queued", "scheduled", None, "success", "skipped", "removed",
)  # fmt: skip
"""Which state stands for a mapped task or a group: the first that one of its instances has."""
_RANKS: Mapping[str | None, int] = {state: rank for rank, state in enumerate(PRECEDENCE)}


class GridRun(Struct, frozen=True, kw_only=True):
    """A run of the grid. `version`: the number of its DAG's version."""

    id: int
    run_id: str
    run_type: str
    state: str
    reason: str
    logical_date: datetime | None
    run_after: datetime
    started_at: datetime | None
    ended_at: datetime | None
    version: int | None = None


class GridCell(Struct, frozen=True):
    """A task in a run: its state, its number of instances, and how many of them have that state."""

    state: str | None
    n_instances: int = 1
    n_of_state: int = 1
    is_mapped: bool = False


class Grid(Struct, frozen=True):
    """Runs, the oldest first, and the cells of each by its row id and the task_id."""

    runs: tuple[GridRun, ...]
    cells: dict[int, dict[str, GridCell]]


_RUNS: sa.Select[Any] = sa.select(
    *(dag_run.c[name] for name in GridRun.__struct_fields__[:-1]), dag_version.c.number.label("version")
).join(dag_version, dag_version.c.id == dag_run.c.version_id, isouter=True)


def read_grid(
    conn: Connection,
    dag_id: str,
    *,
    n_runs: int,
    before: datetime | None = None,
    before_id: int | None = None,
    run_id: str | None = None,
) -> Grid:
    """Return the newest runs of a DAG, with the states of their tasks.

    Args:
        before: Those due before an instant instead.
        before_id: Of runs due at that instant, those with a lower row id, too.
        run_id: This run as well, if it is not among them.
    """
    of_dag = _RUNS.where(dag_run.c.dag_id == dag_id)
    query = of_dag.order_by(dag_run.c.run_after.desc(), dag_run.c.id.desc())
    if before is not None:
        due = dag_run.c.run_after
        query = query.where(sa.or_(due < before, sa.and_(due == before, dag_run.c.id < (before_id or 0))))
    runs = fetch(conn, GridRun, query.limit(min(n_runs, MOST_RUNS)))[::-1]
    if run_id and all(run.run_id != run_id for run in runs):
        runs = [*fetch(conn, GridRun, of_dag.where(dag_run.c.run_id == run_id)), *runs]
    return Grid(tuple(runs), _cells(conn, [run.id for run in runs]))


def _cells(conn: Connection, run_ids: list[int]) -> dict[int, dict[str, GridCell]]:
    columns = task_instance.c.dag_run_id, task_instance.c.task_id, task_instance.c.state
    query = (
        sa.select(*columns, sa.func.count(), sa.func.max(task_instance.c.map_index))
        .where(task_instance.c.dag_run_id.in_(run_ids))
        .group_by(*columns)
        .limit(MOST_CELLS)
    )
    cells: dict[int, dict[str, GridCell]] = {run_id: {} for run_id in run_ids}
    for run_id, task_id, state, n, highest in conn.execute(query):
        of_run = cells[run_id]
        cell, known = GridCell(state, n, n, highest >= 0), of_run.get(task_id)
        of_run[task_id] = cell if known is None else _merged(known, cell)
    return cells


def _merged(left: GridCell, right: GridCell) -> GridCell:
    first, total = left, left.n_instances + right.n_instances
    if _RANKS.get(right.state, 0) < _RANKS.get(left.state, 0):
        first = right
    n_of_state = left.n_of_state + right.n_of_state if left.state == right.state else first.n_of_state
    return GridCell(first.state, total, n_of_state, left.is_mapped or right.is_mapped)


def folded(cells: "list[GridCell]") -> GridCell:
    """Return the cell of a group, from those of its tasks. Raises ValueError without cells."""
    found, *others = cells
    for other in others:
        found = _merged(found, other)
    return found
