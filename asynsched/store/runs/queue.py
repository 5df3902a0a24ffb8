"""Which DagRuns wait to be started, and which a scheduler owns.

A claim settles which of several schedulers starts a queued run, and whether the limits of its DAG let it start at all.
The rows of the runs, and those of their DAGs, under which `max_active_runs` is settled, are locked by the first who
comes; nobody waits for them. A run that was claimed is running, and its scheduler's own. Runs of a scheduler that is
gone are taken over.
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
from asynsched.store.rows import as_struct, portions
from asynsched.store.runs.dag_runs import IS_QUEUED, IS_RUNNING, by_index, run_row_ids
from asynsched.store.runs.row_locks import lock_tasks
from asynsched.store.runs.transitions import take_for_begun
from asynsched.store.schedulers import holds_lease
from asynsched.store.schema import NOBODYS_EPOCH, DagRunRow, backfill, dag, dag_run, scheduler, task_instance
from asynsched.store.statements import DIALECTS


class QueuedRun(DagRunRow, frozen=True, kw_only=True):
    """A DagRun that is queued or running, with what its DAG says of admission.

    `version_id` is its DAG's newest one until it starts. `has_begun`: it was started before, so a queued one was
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
    """A DAG that has queued runs, or a backfill of it that has, with what their admission depends on."""

    dag_id: str
    backfill_id: int | None
    is_paused: bool
    max_active_runs: int
    backfill_is_paused: bool = False
    backfill_max_active_runs: int = 0


class DagAdmission(NamedTuple):
    """What the start of a DAG's runs depends on."""

    dag_id: str
    is_paused: bool
    max_active_runs: int


_COLUMNS = (
    *(column for column in dag_run.c if column is not dag_run.c.version_id),
    sa.func.coalesce(dag_run.c.version_id, dag.c.version_id).label("version_id"),
    dag.c.is_paused,
    dag.c.max_active_runs,
    (dag.c.deadlines != b"[]").label("has_deadlines"),
    dag_run.c.version_id.is_not(None).label("has_begun"),
    sa.func.coalesce(backfill.c.is_paused, sa.false()).label("backfill_is_paused"),
    sa.func.coalesce(backfill.c.max_active_runs, 0).label("backfill_max_active_runs"),
    sa.func.coalesce(backfill.c.is_reverse, sa.false()).label("backfill_is_reverse"),
)
_ADMISSIONS = sa.select(dag.c.dag_id, dag.c.is_paused, dag.c.max_active_runs).where(
    dag.c.dag_id.in_(sa.bindparam("dag_ids", expanding=True))
)
_RUNS = (
    sa.select(*_COLUMNS)
    .select_from(
        dag_run.join(dag, dag.c.dag_id == dag_run.c.dag_id).outerjoin(backfill, backfill.c.id == dag_run.c.backfill_id)
    )
    .order_by(dag_run.c.id)
)
_SOME_QUEUED = _RUNS.where(IS_QUEUED, dag_run.c.id.in_(sa.bindparam("ids", expanding=True)))
_RUNNING = _RUNS.where(IS_RUNNING)
_IS_OWNED = dag_run.c.lease_epoch == sa.bindparam("epoch")
_OWNED_IDS = sa.select(dag_run.c.id).where(IS_RUNNING, _IS_OWNED)
_OWNED = _RUNNING.where(_IS_OWNED, dag_run.c.id.in_(sa.bindparam("ids", expanding=True)))
# Whether a run is a backfill's is literal, as the partial indexes have it: each of these reads no more than it gives.
_ITS_OWN = sa.text("dag_run.backfill_id IS NULL")
_A_BACKFILLS = sa.text("dag_run.backfill_id IS NOT NULL")
_FIRST_ROWS = _RUNS.where(IS_QUEUED).order_by(None).limit(sa.bindparam("limit"))
_FIRST_OF_DAG = (
    _FIRST_ROWS.where(_ITS_OWN, dag_run.c.dag_id == sa.bindparam("dag_id"))
    .order_by(dag_run.c.run_after, dag_run.c.id)
    .with_hint(dag_run, "INDEXED BY ix_dag_run_queued_of_dag", "sqlite")
)
_OF_BACKFILL = _FIRST_ROWS.where(_A_BACKFILLS, dag_run.c.backfill_id == sa.bindparam("backfill_id")).with_hint(
    dag_run, "INDEXED BY ix_dag_run_queued_of_backfill", "sqlite"
)
_FIRST_OF_BACKFILL = _OF_BACKFILL.order_by(dag_run.c.logical_date)
_LAST_OF_BACKFILL = _OF_BACKFILL.order_by(dag_run.c.logical_date.desc())
_IS_REVERSE = sa.select(backfill.c.is_reverse).where(backfill.c.id == sa.bindparam("key"))


def _each_queued(name: str, kind: str, index: str, dialect: str) -> str:
    """Return a table of the names that queued runs have, one look into the index for each: however many have it."""
    runs = f"SELECT dag_run.{name} FROM {by_index(index, dialect)} WHERE dag_run.state = 'queued'"  # noqa: S608 - our own
    runs += f" AND dag_run.backfill_id {kind}"
    first, following = (
        f"({runs}{more} ORDER BY dag_run.{name} LIMIT 1)" for more in ("", f" AND dag_run.{name} > w.name")
    )
    recursion = f"SELECT {first} UNION ALL SELECT {following} FROM w WHERE w.name IS NOT NULL"  # noqa: S608 - constants
    return f"WITH RECURSIVE w(name) AS ({recursion})"


_LIMITS_OF_DAG = "dag.dag_id, dag.is_paused, dag.max_active_runs"
_LIMITS_OF_BACKFILL = (
    "backfill.id, backfill.is_paused AS backfill_is_paused, backfill.max_active_runs AS backfill_max_active_runs"
)
_QUEUED_DAGS = {
    dialect: sa.text(
        f"{_each_queued('dag_id', 'IS NULL', 'ix_dag_run_queued_of_dag', dialect)}"  # noqa: S608 - constants
        f" SELECT {_LIMITS_OF_DAG} FROM w JOIN dag ON dag.dag_id = w.name"
    ).columns(dag.c.dag_id, dag.c.is_paused, dag.c.max_active_runs)
    for dialect in DIALECTS
}
_QUEUED_BACKFILLS = {
    dialect: sa.text(
        f"{_each_queued('backfill_id', 'IS NOT NULL', 'ix_dag_run_queued_of_backfill', dialect)}"  # noqa: S608 - constants
        f" SELECT {_LIMITS_OF_DAG}, {_LIMITS_OF_BACKFILL}"
        " FROM w JOIN backfill ON backfill.id = w.name JOIN dag ON dag.dag_id = backfill.dag_id"
    ).columns(
        dag.c.dag_id, dag.c.is_paused, dag.c.max_active_runs, backfill.c.id,
        backfill.c.is_paused.label("backfill_is_paused"), backfill.c.max_active_runs.label("backfill_max_active_runs"),
    )
    for dialect in DIALECTS
}  # fmt: skip
_BEGIN_AGAIN = (
    sa.update(dag_run)
    .where(dag_run.c.id == sa.bindparam("key"), dag_run.c.state == DagRunState.QUEUED)
    .values(
        state=DagRunState.RUNNING, reason="", started_at=sa.bindparam("now"), scheduler_id=sa.bindparam("owner"),
        lease_epoch=sa.bindparam("epoch"),
    )
)  # fmt: skip
MOST_TAKEN_OVER = 100
"""Most runs that one transaction takes over."""
_ORPHANED = (
    sa.select(dag_run.c.id, dag_run.c.scheduler_id)
    .where(
        IS_RUNNING,
        dag_run.c.id.not_in(sa.bindparam("excluding", expanding=True)),
        sa.or_(
            dag_run.c.scheduler_id.is_(None),
            dag_run.c.scheduler_id.not_in(sa.select(scheduler.c.id).where(scheduler.c.ended_at.is_(None))),
            sa.and_(dag_run.c.scheduler_id == sa.bindparam("me"), dag_run.c.lease_epoch != sa.bindparam("epoch")),
        ),
    )
    # A sum has no index: what runs is found and sorted, and the table never read in its own order.
    .order_by(dag_run.c.id + 0)
    .limit(sa.bindparam("limit"))
    .with_for_update(key_share=True, skip_locked=True)
)


def queued_runs(conn: Connection, keys: Sequence[DagRunKey]) -> list[QueuedRun]:
    """Return the queued runs among `keys`, oldest row first."""
    ids = sorted(run_row_ids(conn, keys))
    return [as_struct(QueuedRun, row) for some in portions(ids) for row in conn.execute(_SOME_QUEUED, {"ids": some})]


def queued_groups(conn: Connection) -> list[QueuedGroup]:
    """Return which DAGs and which backfills have queued runs: as many rows, however many runs these have."""
    of_dags = [
        QueuedGroup(row.dag_id, None, row.is_paused, row.max_active_runs)
        for row in conn.execute(_QUEUED_DAGS[conn.dialect.name])
    ]
    of_backfills = [
        QueuedGroup(
            row.dag_id, row.id, row.is_paused, row.max_active_runs, row.backfill_is_paused, row.backfill_max_active_runs
        )
        for row in conn.execute(_QUEUED_BACKFILLS[conn.dialect.name])
    ]
    return of_dags + of_backfills


def first_queued(conn: Connection, wanted: Sequence[tuple[Group, int]]) -> list[list[QueuedRun]]:
    """Return the first queued runs of each group, up to a number: the oldest, or in the order of a backfill."""
    return [[as_struct(QueuedRun, row) for row in _first_queued(conn, *group, limit)] for group, limit in wanted]


def _first_queued(conn: Connection, dag_id: str, backfill_id: int | None, limit: int) -> Sequence[Any]:
    if backfill_id is None:
        return conn.execute(_FIRST_OF_DAG, {"dag_id": dag_id, "limit": limit}).all()
    is_reverse = conn.scalar(_IS_REVERSE, {"key": backfill_id})
    statement = _LAST_OF_BACKFILL if is_reverse else _FIRST_OF_BACKFILL
    return conn.execute(statement, {"backfill_id": backfill_id, "limit": limit}).all()


def owned_run_ids(conn: Connection, epoch: int) -> list[int]:
    """Return the row ids of the running runs that are held under this lease epoch."""
    return list(conn.scalars(_OWNED_IDS, {"epoch": epoch}))


def owned_runs(conn: Connection, epoch: int, ids: Collection[int]) -> list[QueuedRun]:
    """Return those of some runs that are running, and held under this lease epoch."""
    found = portions(sorted(ids))
    return [as_struct(QueuedRun, row) for some in found for row in conn.execute(_OWNED, {"epoch": epoch, "ids": some})]


def running_runs(conn: Connection) -> list[QueuedRun]:
    """Return the running runs of all schedulers."""
    return [as_struct(QueuedRun, row) for row in conn.execute(_RUNNING)]


def dag_admissions(conn: Connection, dag_ids: list[str]) -> list[DagAdmission]:
    """Return what admission depends on, of each of these DAGs that there is."""
    return [DagAdmission(*row) for some in portions(dag_ids) for row in conn.execute(_ADMISSIONS, {"dag_ids": some})]


_GIVE_BACK = (
    sa.update(dag_run)
    .where(
        dag_run.c.id == sa.bindparam("key"),
        dag_run.c.scheduler_id == sa.bindparam("owner"),
        dag_run.c.lease_epoch == sa.bindparam("epoch"),
        dag_run.c.state == DagRunState.RUNNING,
    )
    .values(scheduler_id=None, lease_epoch=NOBODYS_EPOCH)
)


def take_over_runs(
    conn: Connection,
    scheduler_id: str,
    epoch: int,
    limit: int = MOST_TAKEN_OVER,
    *,
    excluding: Collection[int] = (),
) -> list[QueuedRun]:
    """Make running runs this scheduler's own that nobody owns any more, oldest first, and return them.

    They are those of schedulers that have left or were given up, those that were given back, and those that this
    scheduler has inherited from an earlier one of its home. Of the others, tries that were queued are taken for begun:
    their scheduler may have gone before it could store that, and only its own home would know.

    Args:
        scheduler_id: Who asks. One that was given up gets nothing.
        epoch: Its lease's.
        limit: How many at most.
        excluding: Row ids of runs that are left to others.
    """
    if not holds_lease(conn, scheduler_id, epoch):
        return []
    wanted = {"me": scheduler_id, "epoch": epoch, "limit": limit, "excluding": list(excluding)}
    owners = {row.id: row.scheduler_id for row in conn.execute(_ORPHANED, wanted)}
    if not owners:
        return []
    ids = list(owners)
    lock_tasks(conn, ids)
    take_for_begun(conn, [run_id for run_id, owner in owners.items() if owner != scheduler_id])
    conn.execute(sa.update(dag_run).where(dag_run.c.id.in_(ids)).values(scheduler_id=scheduler_id, lease_epoch=epoch))
    # Also of tasks that have ended: they may be removed, when what they are mapped over has changed.
    conn.execute(sa.update(task_instance).where(task_instance.c.dag_run_id.in_(ids)).values(lease_epoch=epoch))
    return owned_runs(conn, epoch, ids)


def give_back_run(conn: Connection, run_row_id: int, scheduler_id: str, epoch: int) -> bool:
    """Let a running run be nobody's, for another scheduler to take over. False: it is this scheduler's no more.

    Its slots count as somebody else's from here on.
    """
    own = {"key": run_row_id, "owner": scheduler_id, "epoch": epoch}
    if not conn.execute(_GIVE_BACK, own).rowcount:
        return False
    lock_tasks(conn, [run_row_id])
    of_run = sa.update(task_instance).where(task_instance.c.dag_run_id == run_row_id)
    conn.execute(of_run.values(lease_epoch=NOBODYS_EPOCH))
    return True


def begin_again(conn: Connection, run_row_id: int, scheduler_id: str, epoch: int, now: datetime) -> QueuedRun | None:
    """Start a queued run that was begun before and cleared, as this scheduler's own; None when it is queued no more.

    From here on its rows change at the hand of this scheduler only. Calling it again does no harm.
    """
    begun = conn.execute(_BEGIN_AGAIN, {"key": run_row_id, "now": now, "owner": scheduler_id, "epoch": epoch})
    if begun.rowcount:
        lock_tasks(conn, [run_row_id])
        conn.execute(sa.update(task_instance).where(task_instance.c.dag_run_id == run_row_id).values(lease_epoch=epoch))
    row = conn.execute(_OWNED, {"epoch": epoch, "ids": [run_row_id]}).first()
    return None if row is None else as_struct(QueuedRun, row)


def runs_of(conn: Connection, keys: Sequence[DagRunKey]) -> list[QueuedRun]:
    """Return runs in any state."""
    return [row for some in portions(run_row_ids(conn, keys)) for row in runs_by_id(conn, some)]


def runs_by_id(conn: Connection, run_ids: list[int]) -> list[QueuedRun]:
    """Return runs in any state, by their row ids."""
    return [as_struct(QueuedRun, row) for row in conn.execute(_RUNS.where(dag_run.c.id.in_(run_ids)))]


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
