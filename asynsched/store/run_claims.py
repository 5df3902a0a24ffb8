"""Claims: which of several schedulers starts a queued run, and whether the limits of its DAG let it start at all.

The rows of the runs, and those of their DAGs, under which `max_active_runs` is settled, are locked by whoever comes
first; nobody waits for them. A run that was claimed is running, and its scheduler's own.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.states import DagRunState
from asynsched.store.dag_runs import IS_QUEUED, IS_RUNNING
from asynsched.store.row_locks import lock_tasks
from asynsched.store.rows import portions
from asynsched.store.run_queue import Group, QueuedRun, runs_by_id
from asynsched.store.schedulers import holds_lease
from asynsched.store.schema.rerun_tables import backfill
from asynsched.store.schema.tables import dag, dag_run, task_instance


class Claims(NamedTuple):
    """What became of some queued runs.

    Attributes:
        own: They are this scheduler's now.
        held: Their limits have no room, or somebody else has a lock on their rows: they stay queued.
        n_elsewhere: How many runs other schedulers run of each group that was looked at.
        is_busy: Whether somebody had a lock: it is worthwhile to try again soon.

    The others are queued no more.
    """

    own: list[QueuedRun]
    held: frozenset[int]
    n_elsewhere: dict[Group, int]
    is_busy: bool


_IS_WANTED = dag_run.c.id.in_(sa.bindparam("ids", expanding=True))
_QUEUED = sa.select(dag_run.c.id).where(_IS_WANTED, IS_QUEUED)
_LOCKED = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.backfill_id, dag_run.c.version_id)
    .where(_IS_WANTED, IS_QUEUED)
    .order_by(dag_run.c.id)
    .with_for_update(key_share=True, skip_locked=True)
)
_DAGS = (
    sa.select(dag.c.dag_id, dag.c.is_paused, dag.c.max_active_runs)
    .where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
    .order_by(dag.c.dag_id)
    .with_for_update(key_share=True, skip_locked=True)
)
_BACKFILLS = sa.select(backfill.c.id, backfill.c.is_paused, backfill.c.max_active_runs).where(
    backfill.c.id.in_(sa.bindparam("ids", expanding=True))
)
_N_RUNNING = (
    sa.select(
        dag_run.c.dag_id,
        dag_run.c.backfill_id,
        sa.func.count().label("n"),
        sa.func.count(sa.case((dag_run.c.lease_epoch != sa.bindparam("epoch"), 1))).label("n_elsewhere"),
    )
    .where(
        IS_RUNNING,
        dag_run.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)),
    )
    .group_by(dag_run.c.dag_id, dag_run.c.backfill_id)
)
_LATEST_VERSION = sa.select(dag.c.version_id).where(dag.c.dag_id == dag_run.c.dag_id).scalar_subquery()
_BEGIN = (
    sa.update(dag_run)
    .where(_IS_WANTED)
    .values(
        state=DagRunState.RUNNING,
        reason="",
        started_at=sa.bindparam("now"),
        scheduler_id=sa.bindparam("me"),
        lease_epoch=sa.bindparam("epoch"),
        version_id=sa.func.coalesce(dag_run.c.version_id, _LATEST_VERSION),
    )
)
_ADOPT_TASKS = (
    sa.update(task_instance)
    .where(task_instance.c.dag_run_id.in_(sa.bindparam("ids", expanding=True)))
    .values(lease_epoch=sa.bindparam("epoch"))
)


def claim_runs(conn: Connection, run_row_ids: Sequence[int], scheduler_id: str, epoch: int, now: datetime) -> Claims:
    """Begin those of some queued runs that may start, as this scheduler's own. Calling it again does no harm.

    Args:
        run_row_ids: The runs, the one that is to start first at first.
        scheduler_id: Who asks. One that was given up gets nothing.
        epoch: Its lease's.
        now: When they start.
    """
    ids = list(run_row_ids)
    if not holds_lease(conn, scheduler_id, epoch):
        return Claims([], frozenset(ids), {}, is_busy=True)
    rows = conn.execute(_LOCKED, {"ids": ids}).all()
    locked = {row.id: (row.dag_id, row.backfill_id) for row in rows}
    have_begun = {row.id for row in rows if row.version_id is not None}
    limits = _limits(conn, set(locked.values()))
    active, elsewhere = _running(conn, sorted({dag_id for dag_id, _ in limits}), epoch)
    granted: list[int] = []
    for run_id in ids:
        group = locked.get(run_id)
        if group is not None and active[group] < limits.get(group, 0):
            granted.append(run_id)
            active[group] += 1
    if granted:
        conn.execute(_BEGIN, {"ids": granted, "me": scheduler_id, "epoch": epoch, "now": now})
    if cleared := [run_id for run_id in granted if run_id in have_begun]:
        lock_tasks(conn, cleared)
        conn.execute(_ADOPT_TASKS, {"ids": cleared, "epoch": epoch})
    own = [row for row in runs_by_id(conn, ids) if row.state == DagRunState.RUNNING and row.lease_epoch == epoch]
    left = {*ids} - {row.id for row in own}
    held = frozenset(conn.scalars(_QUEUED, {"ids": sorted(left)})) if left else frozenset()
    is_busy = bool(held - locked.keys()) or any(group not in limits for group in locked.values())
    return Claims(own, held, {group: elsewhere[group] for group in limits}, is_busy)


def runs_elsewhere(conn: Connection, dag_ids: Sequence[str], epoch: int) -> dict[Group, int]:
    """Return how many runs of some DAGs, and of each of their backfills, other schedulers run."""
    return _running(conn, dag_ids, epoch)[1]


def _limits(conn: Connection, groups: set[Group]) -> dict[Group, int]:
    """Return how many runs of each group may be active; none of those whose DAG somebody else has locked."""
    dags = {row.dag_id: row for row in conn.execute(_DAGS, {"dag_ids": sorted({dag_id for dag_id, _ in groups})})}
    backfill_ids = sorted({backfill_id for _, backfill_id in groups if backfill_id is not None})
    backfills = {row.id: row for row in conn.execute(_BACKFILLS, {"ids": backfill_ids})} if backfill_ids else {}
    limits: dict[Group, int] = {}
    for dag_id, backfill_id in groups:
        if dag_id in dags:
            own = dags[dag_id] if backfill_id is None else backfills.get(backfill_id)
            is_held = own is None or own.is_paused or dags[dag_id].is_paused
            limits[dag_id, backfill_id] = 0 if is_held or own is None else own.max_active_runs
    return limits


def _running(
    conn: Connection, dag_ids: Sequence[str], epoch: int
) -> tuple[defaultdict[Group, int], defaultdict[Group, int]]:
    active: defaultdict[Group, int] = defaultdict(int)
    elsewhere: defaultdict[Group, int] = defaultdict(int)
    for some in portions(list(dag_ids)):
        for row in conn.execute(_N_RUNNING, {"dag_ids": some, "epoch": epoch}):
            active[row.dag_id, row.backfill_id] = row.n
            elsewhere[row.dag_id, row.backfill_id] = row.n_elsewhere
    return active, elsewhere
