"""Questions about pools, and actions on them."""

from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection, Row

from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.bell import Hint
from asynsched.queries.context import Act
from asynsched.queries.paging import FIRST_PAGE, BadRequest, Page, Paging, Pattern, Sorting, select_page
from asynsched.store.rows import count, get_named, in_common
from asynsched.store.runs import pools as store
from asynsched.store.schema import pool

SORTING = Sorting({"name": pool.c.name, "slots": pool.c.slots}, key=pool.c.name, usual=("name",))


class PoolInfo(Struct, frozen=True, kw_only=True):
    """A pool, and its slots.

    Attributes:
        slots: -1: no limit.
        scheduled_slots: Those that task instances of running runs wait for.
        open_slots: The free ones; None: no limit.
    """

    name: str
    slots: int
    description: str
    include_deferred: bool
    occupied_slots: int
    running_slots: int
    queued_slots: int
    scheduled_slots: int
    deferred_slots: int
    open_slots: int | None


_POOLS: sa.Select[Any] = sa.select(pool)


def list_pools(conn: Connection, name: Pattern, paging: Paging = FIRST_PAGE) -> Page[PoolInfo]:
    """Return pools of such names. Raises BadRequest."""
    rows, after = select_page(conn, _POOLS.where(*name.holds_for(pool.c.name)), SORTING, paging)
    return Page(tuple(_infos(conn, rows)), after)


def count_pools(conn: Connection, name: Pattern) -> int:
    """Count pools of such names."""
    return count(conn, _POOLS.where(*name.holds_for(pool.c.name)))


def get_pool(conn: Connection, name: str) -> PoolInfo:
    """Return a pool. Raises NotFound with the nearest names."""
    return _infos(conn, [get_named(conn, "pool", pool.c.name, name)])[0]


def create_pool(
    conn: Connection, name: str, slots: int, *, description: str = "", include_deferred: bool = False
) -> Act[PoolInfo]:
    """Create a pool. Raises AlreadyExists, and StoreError for a bad name or number."""
    store.add_pool(conn, name, slots, description=description, include_deferred=include_deferred)
    return _act(get_pool(conn, name), "pool.set")


def set_pool(
    conn: Connection, name: str, slots: int, *, description: str = "", include_deferred: bool = False
) -> Act[PoolInfo]:
    """Create or change a pool. Raises StoreError for a bad name or number."""
    store.set_pool(conn, name, slots, description=description, include_deferred=include_deferred)
    return _act(get_pool(conn, name), "pool.set")


def change_pool(
    conn: Connection,
    name: str,
    *,
    slots: int | None = None,
    description: str | None = None,
    include_deferred: bool | None = None,
) -> Act[PoolInfo]:
    """Change a pool; None changes nothing. Raises NotFound, and StoreError for a bad number."""
    before = get_pool(conn, name)
    store.set_pool(
        conn, name, before.slots if slots is None else slots,
        description=before.description if description is None else description,
        include_deferred=before.include_deferred if include_deferred is None else include_deferred,
    )  # fmt: skip
    return _act(get_pool(conn, name), "pool.set")


def delete_pool(conn: Connection, name: str) -> Act[PoolInfo]:
    """Delete a pool, which is returned. Raises NotFound, and BadRequest for the pool that tasks have by default."""
    if name == DEFAULT_POOL:
        raise BadRequest(f"{DEFAULT_POOL} cannot be deleted: it is the pool of every task that names none.")
    found = get_pool(conn, name)
    store.delete_pool(conn, name)
    return _act(found, "pool.delete")


def _act(info: PoolInfo, action: str) -> Act[PoolInfo]:
    return Act(info, action, Hint("pool"), detail={"name": info.name, "slots": info.slots})


def _infos(conn: Connection, rows: "list[Row[Any]]") -> list[PoolInfo]:
    scheduled = store.scheduled_slots(conn)
    return [
        PoolInfo(**in_common(PoolInfo, row), scheduled_slots=scheduled.get(row.name, 0))
        for row in store.with_use(conn, rows)
    ]
