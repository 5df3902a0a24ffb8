"""Which DagRuns wait to be started, and which scheduler owns those that run.

A claim decides which of several schedulers starts a queued run, and whether the limits of its DAG allow that. The first
scheduler locks the rows of the runs, and those of their DAGs, under which `max_active_runs` is checked; others skip
locked rows and never wait. A claimed run is running and belongs to its scheduler. Other schedulers take over the
runs of one that is gone.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.keys import DagRunKey
from asynsched.states import DagRunState
from asynsched.store.rows import fetch, fetch_in, portions
from asynsched.store.runs.dag_runs import HAS_BACKFILL, HAS_NO_BACKFILL, IS_QUEUED, IS_RUNNING, run_row_ids
from asynsched.store.runs.row_locks import lock_tasks
from asynsched.store.runs.transitions import take_for_begun
from asynsched.store.schedulers import SERVING, holds_lease
from asynsched.store.schema import NOBODYS_EPOCH, DagRunRow, backfill, dag, dag_run, task_instance


class QueuedRun(DagRunRow, frozen=True, kw_only=True):
    """A DagRun that is queued or running, with its DAG's limits on starting it.

    `version_id` is its DAG's newest version until it starts. `has_begun`: it was started before, so a queued one was
    cleared, and has task instances.
    """

    is_paused: bool
    max_active_runs: int
    has_deadlines: bool = False
    has_begun: bool = False
    backfill_is_paused: bool = False
    backfill_max_active_runs: int = 0
    backfill_is_reverse: bool = False


Group = tuple[str, int | None]
"""Runs that share their limits: a DAG's, or those of one of its backfills."""


class QueuedGroup(Struct, frozen=True):
    """A DAG, or a backfill of it, that has queued runs, with its limits on starting them."""

    dag_id: str
    is_paused: bool
    max_active_runs: int
    backfill_id: int | None = None
    backfill_is_paused: bool = False
    backfill_max_active_runs: int = 0


_HAS_ID = dag_run.c.id.in_(sa.bindparam("ids", expanding=True))
_IS_OWNED = dag_run.c.lease_epoch == sa.bindparam("epoch")
# A DAG whose file is yet to be parsed has no code to run.
_HOLDS_RUNS = sa.or_(dag.c.is_paused, dag.c.version_id.is_(None)).label("is_paused")
_RUNS = (
    sa.select(
        *(column for column in dag_run.c if column is not dag_run.c.version_id),
        sa.func.coalesce(dag_run.c.version_id, dag.c.version_id).label("version_id"),
        _HOLDS_RUNS,
        dag.c.max_active_runs,
        (dag.c.deadlines != b"[]").label("has_deadlines"),
        dag_run.c.version_id.is_not(None).label("has_begun"),
        sa.func.coalesce(backfill.c.is_paused, sa.false()).label("backfill_is_paused"),
        sa.func.coalesce(backfill.c.max_active_runs, 0).label("backfill_max_active_runs"),
        sa.func.coalesce(backfill.c.is_reverse, sa.false()).label("backfill_is_reverse"),
    )
    .join_from(dag_run, dag, dag.c.dag_id == dag_run.c.dag_id)
    .outerjoin(backfill, backfill.c.id == dag_run.c.backfill_id)
    .order_by(dag_run.c.id)
)
_BY_ID = _RUNS.where(_HAS_ID)
_SOME_QUEUED = _BY_ID.where(IS_QUEUED)
_OWNED = _BY_ID.where(IS_RUNNING, _IS_OWNED)
_OWNED_IDS = sa.select(dag_run.c.id).where(IS_RUNNING, _IS_OWNED)
_LIMITS = sa.select(dag.c.dag_id, _HOLDS_RUNS, dag.c.max_active_runs)
# Whether a run is a backfill's is literal, as in the partial indexes: each query reads only the rows that it returns.
_FIRST_ROWS = _RUNS.where(IS_QUEUED).order_by(None).limit(sa.bindparam("limit"))
_FIRST_OF_DAG = (
    _FIRST_ROWS.where(HAS_NO_BACKFILL, dag_run.c.dag_id == sa.bindparam("dag_id"))
    .order_by(dag_run.c.run_after, dag_run.c.id)
    .with_hint(dag_run, "INDEXED BY ix_dag_run_queued_of_dag", "sqlite")
)
_OF_BACKFILL = _FIRST_ROWS.where(HAS_BACKFILL, dag_run.c.backfill_id == sa.bindparam("backfill_id")).with_hint(
    dag_run, "INDEXED BY ix_dag_run_queued_of_backfill", "sqlite"
)
# Runs of partitions have no logical date: those of a backfill are sorted at each read, 10,000 at most.
_DATES = (dag_run.c.logical_date, dag_run.c.partition_date, dag_run.c.id)
_FIRST_OF_BACKFILL = _OF_BACKFILL.order_by(*_DATES)
_LAST_OF_BACKFILL = _OF_BACKFILL.order_by(*(column.desc() for column in _DATES))
_IS_REVERSE = sa.select(backfill.c.is_reverse).where(backfill.c.id == sa.bindparam("key"))


def _each_queued(column: "sa.Column[Any]", index: str, kind: sa.TextClause) -> sa.CTE:
    """Return a table of the distinct names of queued runs: one look into the index for each, however many runs."""
    runs = sa.select(column).where(IS_QUEUED, kind).order_by(column).limit(1)
    runs = runs.with_hint(dag_run, f"INDEXED BY {index}", "sqlite")
    names = sa.select(runs.scalar_subquery().label("name")).cte("w", recursive=True)
    following = runs.where(column > names.c.name).correlate(names).scalar_subquery()
    return names.union_all(sa.select(following).where(names.c.name.is_not(None)))


_dags = _each_queued(dag_run.c.dag_id, "ix_dag_run_queued_of_dag", HAS_NO_BACKFILL)
_backfills = _each_queued(dag_run.c.backfill_id, "ix_dag_run_queued_of_backfill", HAS_BACKFILL)
_QUEUED_GROUPS: tuple[sa.Select[Any], ...] = (
    _LIMITS.join_from(_dags, dag, dag.c.dag_id == _dags.c.name),
    _LIMITS.add_columns(
        backfill.c.id.label("backfill_id"),
        backfill.c.is_paused.label("backfill_is_paused"),
        backfill.c.max_active_runs.label("backfill_max_active_runs"),
    )
    .join_from(_backfills, backfill, backfill.c.id == _backfills.c.name)
    .join(dag, dag.c.dag_id == backfill.c.dag_id),
)


def queued_groups(conn: Connection) -> list[QueuedGroup]:
    """Return the DAGs and the backfills that have queued runs: one row each, however many runs they have."""
    return [group for query in _QUEUED_GROUPS for group in fetch(conn, QueuedGroup, query)]


def first_queued(conn: Connection, wanted: Sequence[tuple[Group, int]]) -> list[list[QueuedRun]]:
    """Return the first queued runs of each group, up to a number: the oldest, or in the order of a backfill."""
    return [_first_queued(conn, *group, limit) for group, limit in wanted]


def _first_queued(conn: Connection, dag_id: str, backfill_id: int | None, limit: int) -> list[QueuedRun]:
    if backfill_id is None:
        return fetch(conn, QueuedRun, _FIRST_OF_DAG, {"dag_id": dag_id, "limit": limit})
    is_reverse = conn.scalar(_IS_REVERSE, {"key": backfill_id})
    statement = _LAST_OF_BACKFILL if is_reverse else _FIRST_OF_BACKFILL
    return fetch(conn, QueuedRun, statement, {"backfill_id": backfill_id, "limit": limit})


def queued_runs(conn: Connection, keys: Sequence[DagRunKey]) -> list[QueuedRun]:
    """Return the queued runs among `keys`, oldest row first."""
    return _some(conn, _SOME_QUEUED, sorted(run_row_ids(conn, keys)))


def runs_of(conn: Connection, keys: Sequence[DagRunKey]) -> list[QueuedRun]:
    """Return runs in any state."""
    return _some(conn, _BY_ID, run_row_ids(conn, keys))


def runs_by_id(conn: Connection, run_ids: list[int]) -> list[QueuedRun]:
    """Return runs in any state, by their row ids."""
    return _some(conn, _BY_ID, run_ids)


def _some(conn: Connection, query: sa.Select[Any], ids: Sequence[int], **values: Any) -> list[QueuedRun]:
    return [run for some in portions(ids) for run in fetch(conn, QueuedRun, query, {"ids": some, **values})]


def running_runs(conn: Connection) -> list[QueuedRun]:
    """Return the running runs of all schedulers."""
    return fetch(conn, QueuedRun, _RUNS.where(IS_RUNNING))


def owned_run_ids(conn: Connection, epoch: int) -> list[int]:
    """Return the row ids of the running runs that are held under this lease epoch."""
    return list(conn.scalars(_OWNED_IDS, {"epoch": epoch}))


def owned_runs(conn: Connection, epoch: int, ids: Collection[int]) -> list[QueuedRun]:
    """Return those of the runs that are running and held under this lease epoch."""
    return _some(conn, _OWNED, sorted(ids), epoch=epoch)


def dag_admissions(conn: Connection, dag_ids: list[str]) -> list[QueuedGroup]:
    """Return the limits of the DAGs that exist among these."""
    return fetch_in(conn, QueuedGroup, _LIMITS, dag.c.dag_id, dag_ids)


class ClaimedRuns(NamedTuple):
    """The outcome of a claim. A run that is in none of these is no longer queued.

    Attributes:
        own: The runs that this scheduler owns from now on.
        held: Runs that stay queued: their limits have no room, or another scheduler has locked their rows.
        n_elsewhere: How many runs of each examined group other schedulers run.
        is_busy: Whether another scheduler had a lock, so that trying again soon is worthwhile.
    """

    own: list[QueuedRun]
    held: frozenset[int]
    n_elsewhere: dict[Group, int]
    is_busy: bool


_QUEUED = sa.select(dag_run.c.id).where(_HAS_ID, IS_QUEUED)
_LOCKED_QUEUED = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.backfill_id, dag_run.c.version_id)
    .where(_HAS_ID, IS_QUEUED)
    .order_by(dag_run.c.id)
    .with_for_update(key_share=True, skip_locked=True)
)
_LOCKED_LIMITS = (
    _LIMITS.where(dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
    .order_by(dag.c.dag_id)
    .with_for_update(key_share=True, skip_locked=True)
)
_BACKFILL_LIMITS = sa.select(backfill.c.id, backfill.c.is_paused, backfill.c.max_active_runs).where(
    backfill.c.id.in_(sa.bindparam("ids", expanding=True))
)
_N_RUNNING = (
    sa.select(
        dag_run.c.dag_id,
        dag_run.c.backfill_id,
        sa.func.count().label("n"),
        sa.func.count(sa.case((dag_run.c.lease_epoch != sa.bindparam("epoch"), 1))).label("n_elsewhere"),
    )
    .where(IS_RUNNING, dag_run.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True)))
    .group_by(dag_run.c.dag_id, dag_run.c.backfill_id)
)
_BEGIN = sa.update(dag_run).values(
    state=DagRunState.RUNNING, reason="", started_at=sa.bindparam("now"), scheduler_id=sa.bindparam("me"),
    lease_epoch=sa.bindparam("epoch"),
)  # fmt: skip
_LATEST_VERSION = sa.select(dag.c.version_id).where(dag.c.dag_id == dag_run.c.dag_id).scalar_subquery()
_BEGIN_CLAIMED = _BEGIN.where(_HAS_ID).values(version_id=sa.func.coalesce(dag_run.c.version_id, _LATEST_VERSION))
_BEGIN_AGAIN = _BEGIN.where(dag_run.c.id == sa.bindparam("key"), dag_run.c.state == DagRunState.QUEUED)
_SET_TASK_EPOCHS = (
    sa.update(task_instance)
    .where(task_instance.c.dag_run_id.in_(sa.bindparam("ids", expanding=True)))
    .values(lease_epoch=sa.bindparam("epoch"))
)


def claim_runs(
    conn: Connection, run_row_ids: Sequence[int], scheduler_id: str, epoch: int, now: datetime
) -> ClaimedRuns:
    """Start those of the queued runs that may start, in this order, owned by this scheduler, unless it was given up.

    A repeated call does no harm.
    """
    ids = list(run_row_ids)
    if not holds_lease(conn, scheduler_id, epoch):
        return ClaimedRuns([], frozenset(ids), {}, is_busy=True)
    rows = conn.execute(_LOCKED_QUEUED, {"ids": ids}).all()
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
        conn.execute(_BEGIN_CLAIMED, {"ids": granted, "me": scheduler_id, "epoch": epoch, "now": now})
    if cleared := [run_id for run_id in granted if run_id in have_begun]:
        _lock_and_hand_over_tasks(conn, cleared, epoch)
    own = [row for row in runs_by_id(conn, ids) if row.state == DagRunState.RUNNING and row.lease_epoch == epoch]
    left = {*ids} - {row.id for row in own}
    held = frozenset(conn.scalars(_QUEUED, {"ids": sorted(left)})) if left else frozenset()
    is_busy = bool(held - locked.keys()) or any(group not in limits for group in locked.values())
    return ClaimedRuns(own, held, {group: elsewhere[group] for group in limits}, is_busy)


def runs_elsewhere(conn: Connection, dag_ids: Sequence[str], epoch: int) -> dict[Group, int]:
    """Return the numbers of other schedulers' running runs of some DAGs, and of each of their backfills."""
    return _running(conn, dag_ids, epoch)[1]


def _limits(conn: Connection, groups: set[Group]) -> dict[Group, int]:
    """Return the largest number of active runs of each group, without groups whose DAG another scheduler has locked."""
    dag_ids = sorted({dag_id for dag_id, _ in groups})
    dags = {row.dag_id: row for row in conn.execute(_LOCKED_LIMITS, {"dag_ids": dag_ids})}
    backfill_ids = sorted({backfill_id for _, backfill_id in groups if backfill_id is not None})
    found = conn.execute(_BACKFILL_LIMITS, {"ids": backfill_ids}) if backfill_ids else ()
    backfills = {row.id: row for row in found}
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
    """Return the number of running runs of each group, and the number of these that other schedulers own."""
    active: defaultdict[Group, int] = defaultdict(int)
    elsewhere: defaultdict[Group, int] = defaultdict(int)
    for some in portions(list(dag_ids)):
        for row in conn.execute(_N_RUNNING, {"dag_ids": some, "epoch": epoch}):
            active[row.dag_id, row.backfill_id] = row.n
            elsewhere[row.dag_id, row.backfill_id] = row.n_elsewhere
    return active, elsewhere


def begin_again(conn: Connection, run_row_id: int, scheduler_id: str, epoch: int, now: datetime) -> QueuedRun | None:
    """Start a queued run that was begun before and cleared, owned by this scheduler; None if it is no longer queued.

    From then on only this scheduler changes its rows. A repeated call does no harm.
    """
    if conn.execute(_BEGIN_AGAIN, {"key": run_row_id, "now": now, "me": scheduler_id, "epoch": epoch}).rowcount:
        _lock_and_hand_over_tasks(conn, [run_row_id], epoch)
    return next(iter(owned_runs(conn, epoch, [run_row_id])), None)


MOST_TAKEN_OVER = 100
"""How many runs one transaction takes over at most."""


def take_over_runs(
    conn: Connection, scheduler_id: str, epoch: int, limit: int = MOST_TAKEN_OVER, *, excluding: Collection[int] = ()
) -> list[QueuedRun]:
    """Take over running runs that have no owner, oldest first, and return them.

    Runs of schedulers that have left or were given up, and runs that were given back, have no owner; a scheduler also
    inherits the runs of an earlier one of its home. Queued tries of other schedulers' runs count as begun: their
    scheduler may have gone before it could store that, and only its own home would know. A scheduler that was given up
    gets no run, and the runs of the row ids `excluding` are left to others.
    """
    if not holds_lease(conn, scheduler_id, epoch):
        return []
    has_no_owner = sa.or_(
        dag_run.c.scheduler_id.is_(None),
        dag_run.c.scheduler_id.not_in(SERVING),
        sa.and_(dag_run.c.scheduler_id == scheduler_id, dag_run.c.lease_epoch != epoch),
    )
    orphaned = (
        sa.select(dag_run.c.id, dag_run.c.scheduler_id)
        .where(IS_RUNNING, dag_run.c.id.not_in(list(excluding)), has_no_owner)
        # A sum has no index: the running runs are found and sorted, and the table is never read in its own order.
        .order_by(dag_run.c.id + 0)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    owners = {row.id: row.scheduler_id for row in conn.execute(orphaned)}
    if not owners:
        return []
    ids = list(owners)
    lock_tasks(conn, ids)
    take_for_begun(conn, [run_id for run_id, owner in owners.items() if owner != scheduler_id])
    conn.execute(sa.update(dag_run).where(dag_run.c.id.in_(ids)).values(scheduler_id=scheduler_id, lease_epoch=epoch))
    # Also tasks that have ended: they may be removed when the values that they are mapped over have changed.
    conn.execute(_SET_TASK_EPOCHS, {"ids": ids, "epoch": epoch})
    return owned_runs(conn, epoch, ids)


def give_back_run(conn: Connection, run_row_id: int, scheduler_id: str, epoch: int) -> bool:
    """Release a running run for another scheduler to take over. False: it is no longer this scheduler's.

    From then on its slots count as another scheduler's.
    """
    is_own = (dag_run.c.scheduler_id == scheduler_id, dag_run.c.lease_epoch == epoch)
    is_running = (dag_run.c.id == run_row_id, dag_run.c.state == DagRunState.RUNNING)
    give_back = sa.update(dag_run).where(*is_running, *is_own).values(scheduler_id=None, lease_epoch=NOBODYS_EPOCH)
    if not conn.execute(give_back).rowcount:
        return False
    _lock_and_hand_over_tasks(conn, [run_row_id], NOBODYS_EPOCH)
    return True


def _lock_and_hand_over_tasks(conn: Connection, run_row_ids: list[int], epoch: int) -> None:
    lock_tasks(conn, run_row_ids)
    conn.execute(_SET_TASK_EPOCHS, {"ids": run_row_ids, "epoch": epoch})
