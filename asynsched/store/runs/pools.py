"""Queries of `pool`. Taken slots are counted from the states of task instances, never stored."""

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.errors import StoreError
from asynsched.store.rows import LARGEST_INTEGER, check_name, delete_named
from asynsched.store.schema import DEFAULT_POOL, pool, task_instance
from asynsched.store.statements import insert_or_update

UNLIMITED = -1
LONGEST_NAME = 256
# In the words of the partial index, which is not used otherwise.
MAY_HAVE_SLOTS = sa.text("task_instance.state IN ('queued', 'running', 'restarting', 'deferred')")


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
    use = (
        sa.select(task_instance.c.pool, task_instance.c.state, sa.func.sum(task_instance.c.pool_slots).label("slots"))
        .where(MAY_HAVE_SLOTS)
        .group_by(task_instance.c.pool, task_instance.c.state)
    )
    taken = {(row.pool, row.state): int(row.slots) for row in conn.execute(use)}
    return [
        PoolRow(
            row.name, row.slots, row.description, row.include_deferred,
            *(taken.get((row.name, state), 0) for state in ("running", "queued", "deferred")),
        )
        for row in conn.execute(sa.select(pool).order_by(pool.c.name))
    ]  # fmt: skip


def pool_capacities(conn: Connection) -> dict[str, int | None]:
    """Return the slots of each pool by name, None for no limit."""
    rows = conn.execute(sa.select(pool.c.name, pool.c.slots))
    return {row.name: None if row.slots == UNLIMITED else row.slots for row in rows}


def pools_including_deferred(conn: Connection) -> frozenset[str]:
    """Return the names of the pools in which deferred task instances take slots."""
    return frozenset(conn.scalars(sa.select(pool.c.name).where(pool.c.include_deferred)))


def set_pool(conn: Connection, name: str, slots: int, *, description: str = "", include_deferred: bool = False) -> None:
    """Create or change a pool. Raises StoreError for a bad name, or a number of slots that the database cannot hold."""
    check_name("pool name", name, LONGEST_NAME)
    if not UNLIMITED <= slots <= LARGEST_INTEGER:
        raise StoreError(
            f"The pool {name!r} cannot have {slots} slots: give 0 to {LARGEST_INTEGER}, or -1 for no limit."
        )
    values = {"name": name, "slots": slots, "description": description, "include_deferred": include_deferred}
    conn.execute(insert_or_update(conn, pool), values)


def delete_pool(conn: Connection, name: str) -> None:
    """Delete a pool. Raises StoreError for the default pool, and NotFound with the nearest names."""
    if name == DEFAULT_POOL:
        raise StoreError(f"{DEFAULT_POOL} cannot be deleted: it is the pool of every task that names none.")
    delete_named(conn, "pool", pool.c.name, name)
