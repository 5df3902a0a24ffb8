"""Pools, and the settlement of slots between schedulers, when one of them wants to queue task instances.

Taken slots are counted from the states of task instances, never stored. A settlement is a short critical section of the
transaction that queues them: the first scheduler locks the rows of the pools, and counts the slots that others take.
No scheduler waits for a lock: tasks of a pool whose row is locked are refused for the moment. `max_active_tis_per_dag`
is settled in the same way under the row of the DAG.

A scheduler that believes that it is alone signs the rows of its pools. Another scheduler that settles slots of such a
pool removes the signature. So while the signature is there, others use no more slots than when it was made, and need
not be counted again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.errors import AlreadyExists, StoreError
from asynsched.states import COUNTED_TASK_STATES, DagRunState
from asynsched.store.rows import LARGEST_INTEGER, check_description, check_name, delete_named
from asynsched.store.runs.dag_runs import ids_of_unfinished
from asynsched.store.runs.task_instances import IS_UNDER_WAY
from asynsched.store.runs.transitions import TaskRowKey
from asynsched.store.schema import dag, dag_run, pool, task_instance
from asynsched.store.statements import insert_ignoring, insert_or_update

UNLIMITED = -1
LONGEST_NAME = 256
_USE = (
    sa.select(task_instance.c.pool, task_instance.c.state, sa.func.sum(task_instance.c.pool_slots).label("n"))
    .where(IS_UNDER_WAY)
    .group_by(task_instance.c.pool, task_instance.c.state)
)
_SCHEDULED = (
    sa.select(task_instance.c.pool, sa.func.sum(task_instance.c.pool_slots).label("n"))
    .where(
        task_instance.c.dag_run_id.in_(ids_of_unfinished({DagRunState.RUNNING})), task_instance.c.state == "scheduled"
    )
    .group_by(task_instance.c.pool)
)


class PoolRow(Struct, frozen=True):
    """A pool, and how many of its slots task instances of each state take. -1 `slots`: no limit."""

    name: str
    slots: int
    description: str
    include_deferred: bool
    running_slots: int
    queued_slots: int
    deferred_slots: int

    @property
    def occupied_slots(self) -> int:
        """The taken slots."""
        return self.running_slots + self.queued_slots + (self.deferred_slots if self.include_deferred else 0)

    @property
    def open_slots(self) -> int | None:
        """The free slots, never less than 0; None for no limit."""
        return None if self.slots == UNLIMITED else max(0, self.slots - self.occupied_slots)


def list_pools(conn: Connection) -> list[PoolRow]:
    """Return all pools, by name, with their taken slots."""
    return with_use(conn, conn.execute(sa.select(pool).order_by(pool.c.name)))


def with_use(conn: Connection, pools: "Iterable[Row[Any]]") -> list[PoolRow]:
    """Return these rows of pools, with their taken slots."""
    taken = {(row.pool, row.state): int(row.n) for row in conn.execute(_USE)}
    return [
        PoolRow(
            row.name, row.slots, row.description, row.include_deferred,
            *(taken.get((row.name, state), 0) for state in ("running", "queued", "deferred")),
        )
        for row in pools
    ]  # fmt: skip


def scheduled_slots(conn: Connection) -> dict[str, int]:
    """Return the slots of each pool that task instances of running runs wait for."""
    return {row.pool: int(row.n) for row in conn.execute(_SCHEDULED)}


_CAPACITIES = sa.select(pool.c.name, pool.c.slots)
_INCLUDING_DEFERRED = sa.select(pool.c.name).where(pool.c.include_deferred)


def pool_capacities(conn: Connection) -> dict[str, int | None]:
    """Return the slots of each pool by name, None for no limit."""
    return {row.name: None if row.slots == UNLIMITED else row.slots for row in conn.execute(_CAPACITIES)}


def pools_including_deferred(conn: Connection) -> frozenset[str]:
    """Return the names of the pools in which deferred task instances take slots."""
    return frozenset(conn.scalars(_INCLUDING_DEFERRED))


def set_pool(conn: Connection, name: str, slots: int, *, description: str = "", include_deferred: bool = False) -> None:
    """Create or change a pool. Raises StoreError for a bad name, or a number of slots that the database cannot hold."""
    conn.execute(insert_or_update(conn, pool), _checked(name, slots, description, include_deferred))


def add_pool(conn: Connection, name: str, slots: int, *, description: str = "", include_deferred: bool = False) -> None:
    """Create a pool. Raises AlreadyExists, and the errors of `set_pool`."""
    added = conn.execute(insert_ignoring(conn, pool), _checked(name, slots, description, include_deferred))
    if added.rowcount == 0:
        raise AlreadyExists(f"The pool {name!r} already exists.")


def _checked(name: str, slots: int, description: str, include_deferred: bool) -> dict[str, Any]:
    check_name("pool name", name, LONGEST_NAME)
    check_description("pool", name, description)
    if not UNLIMITED <= slots <= LARGEST_INTEGER:
        raise StoreError(
            f"The pool {name!r} cannot have {slots} slots: give 0 to {LARGEST_INTEGER}, or -1 for no limit."
        )
    return {"name": name, "slots": slots, "description": description, "include_deferred": include_deferred}


def delete_pool(conn: Connection, name: str) -> None:
    """Delete a pool. Raises StoreError for the default pool, and NotFound with the nearest names."""
    if name == DEFAULT_POOL:
        raise StoreError(f"{DEFAULT_POOL} cannot be deleted: it is the pool of every task that names none.")
    delete_named(conn, "pool", pool.c.name, name)


TaskOfDag = tuple[str, str]
"""dag_id, task_id"""


class SlotGrant(Struct, frozen=True):
    """A task instance that is to be queued, and the slots that it takes of its pool: empty if that has no limit.

    `task` and `max_active`: its task, if the task's instances are limited over all runs of the DAG, and that limit.
    """

    key: TaskRowKey
    pool: str = ""
    slots: int = 1
    task: TaskOfDag | None = None
    max_active: int = 0


class OwnUse(Struct, frozen=True):
    """The use of limits by a scheduler's other task instances: slots of pools, and numbers of limited tasks."""

    pools: Mapping[str, int] = {}
    tasks: Mapping[TaskOfDag, int] = {}


class Settlement(Struct, frozen=True):
    """The result of a settlement.

    Attributes:
        refused: The task instances that may not be queued now.
        busy_pools: The pools whose rows another transaction had locked.
        busy_dags: The DAGs whose rows another transaction had locked.
        capacities: The slots of each other pool; 0 if it does not exist, `UNLIMITED` if it has no limit.
        pools: How many slots others take of each pool that exists and was not locked.
        tasks: How many instances others have of each limited task.
    """

    refused: frozenset[TaskRowKey] = frozenset()
    busy_pools: frozenset[str] = frozenset()
    busy_dags: frozenset[str] = frozenset()
    capacities: Mapping[str, int] = {}
    pools: Mapping[str, int] = {}
    tasks: Mapping[TaskOfDag, int] = {}


_POOLS = sa.select(pool.c.name, pool.c.slots, pool.c.include_deferred, pool.c.settled_by).where(
    pool.c.name.in_(sa.bindparam("names", expanding=True))
)
_LOCKED_POOLS = _POOLS.order_by(pool.c.name).with_for_update(key_share=True, skip_locked=True)
_SIGN = (
    sa.update(pool).where(pool.c.name.in_(sa.bindparam("names", expanding=True))).values(settled_by=sa.bindparam("by"))
)
_LOCKED_DAGS = (
    sa.select(dag.c.dag_id)
    .where(dag.c.dag_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(dag.c.dag_id)
    .with_for_update(key_share=True, skip_locked=True)
)
_IS_ELSEWHERE = task_instance.c.lease_epoch != sa.bindparam("epoch")
_USE_ELSEWHERE = _USE.where(_IS_ELSEWHERE)
_TASK_USE = (
    sa.select(dag_run.c.dag_id, task_instance.c.task_id, sa.func.count().label("n"))
    .join(dag_run, dag_run.c.id == task_instance.c.dag_run_id)
    .where(
        sa.text("dag_run.state = 'running'"),
        dag_run.c.dag_id.in_(sa.bindparam("ids", expanding=True)),
        task_instance.c.task_id.in_(sa.bindparam("task_ids", expanding=True)),
        task_instance.c.state.in_(COUNTED_TASK_STATES),
        _IS_ELSEWHERE,
    )
    .group_by(dag_run.c.dag_id, task_instance.c.task_id)
)


def settle_slots(
    conn: Connection,
    grants: Sequence[SlotGrant],
    own: OwnUse,
    epoch: int,
    counted: Mapping[str, int] | None = None,
) -> Settlement:
    """Decide which task instances, the best first, may be queued; they are to be queued in this transaction.

    Args:
        own: The slots of this scheduler's other task instances after this transaction.
        epoch: The epoch of this scheduler's lease: rows with another one belong to other schedulers.
        counted: The slots of each pool that others had at this scheduler's last count, if it believes that it is alone.
    """
    names = {grant.pool for grant in grants if grant.pool}
    capacities = {row.name: row for row in conn.execute(_LOCKED_POOLS, {"names": sorted(names)})} if names else {}
    tasks = {grant.task: grant.max_active for grant in grants if grant.task is not None}
    dag_ids = sorted({dag_id for dag_id, _ in tasks})
    dags = set(conn.scalars(_LOCKED_DAGS, {"ids": dag_ids})) if tasks else set()
    pools_elsewhere = _pool_use(conn, capacities, epoch, counted) if capacities else {}
    tasks_elsewhere = _task_use(conn, sorted(dags), [task_id for _, task_id in tasks], epoch) if dags else {}

    pools_used = defaultdict(int, {name: own.pools.get(name, 0) + pools_elsewhere.get(name, 0) for name in names})
    tasks_used = {task: own.tasks.get(task, 0) + tasks_elsewhere.get(task, 0) for task in tasks}
    refused = set()
    for grant in grants:
        row = capacities.get(grant.pool)
        fits_pool = not grant.pool or (row is not None and _fits(row.slots, pools_used[grant.pool] + grant.slots))
        fits_task = grant.task is None or (grant.task[0] in dags and tasks_used[grant.task] < grant.max_active)
        if not (fits_pool and fits_task):
            refused.add(grant.key)
            continue
        pools_used[grant.pool] += grant.slots
        if grant.task is not None:
            tasks_used[grant.task] += 1
    busy_pools = _existing(conn, names - capacities.keys())
    return Settlement(
        refused=frozenset(refused),
        busy_pools=busy_pools,
        busy_dags=frozenset(dag_ids) - dags,
        capacities={name: row.slots if (row := capacities.get(name)) else 0 for name in names - busy_pools},
        pools={name: pools_elsewhere.get(name, 0) for name in capacities},
        tasks={task: tasks_elsewhere.get(task, 0) for task in tasks if task[0] in dags},
    )


def _pool_use(
    conn: Connection, locked: Mapping[str, Any], epoch: int, counted: Mapping[str, int] | None
) -> Mapping[str, int]:
    """Return the slots that others take of pools whose rows are locked; sign these rows, or take signatures away.

    Others can only have taken more by a settlement, which needs the row's lock and removes the signature.
    """
    signature = None if counted is None else epoch
    unsigned = sorted(name for name, row in locked.items() if row.settled_by != signature)
    if unsigned:
        conn.execute(_SIGN, {"names": unsigned, "by": signature})
    if counted is not None and not unsigned and locked.keys() <= counted.keys():
        return counted
    return pool_use_elsewhere(conn, epoch, {name for name, row in locked.items() if row.include_deferred})


def pool_use_elsewhere(conn: Connection, epoch: int, including_deferred: set[str] | frozenset[str]) -> dict[str, int]:
    """Return the slots of each pool that task instances of other schedulers take."""
    used: dict[str, int] = {}
    for row in conn.execute(_USE_ELSEWHERE, {"epoch": epoch}):
        if row.state != "deferred" or row.pool in including_deferred:
            used[row.pool] = used.get(row.pool, 0) + int(row.n)
    return used


def _task_use(conn: Connection, dag_ids: list[str], task_ids: list[str], epoch: int) -> dict[TaskOfDag, int]:
    rows = conn.execute(_TASK_USE, {"ids": dag_ids, "task_ids": task_ids, "epoch": epoch})
    return {(row.dag_id, row.task_id): row.n for row in rows}


def _fits(capacity: int, wanted: int) -> bool:
    return capacity == UNLIMITED or wanted <= capacity


def _existing(conn: Connection, names: set[str]) -> frozenset[str]:
    return frozenset(row.name for row in conn.execute(_POOLS, {"names": sorted(names)})) if names else frozenset()
