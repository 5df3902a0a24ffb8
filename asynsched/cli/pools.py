"""`asynsched pools …`."""

from typing import Any

import click
from sqlalchemy import Connection

from asynsched.cli.command import command
from asynsched.cli.output import Done, Listing, as_row, count
from asynsched.cli.session import Session
from asynsched.errors import NotFound
from asynsched.queries import pools
from asynsched.queries.context import Act
from asynsched.queries.paging import ANY_TEXT

COLUMNS = (
    "name", "slots", "occupied_slots", "running_slots", "queued_slots", "deferred_slots", "include_deferred",
    "description",
)  # fmt: skip


@command("list", tables=True)
def pools_list(session: Session) -> Listing:
    """List the pools and their occupied slots."""
    rows = session.pages(pools.list_pools, ANY_TEXT)
    return Listing(COLUMNS, rows, spare=("description", "include_deferred", "deferred_slots"))


@command("set", negative_numbers=True)
@click.argument("name")
@click.argument("slots", type=click.IntRange(min=-1))
@click.option("--description", help="The pool's purpose.")
@click.option("--include-deferred/--no-include-deferred", default=None, help="Whether deferred tasks take slots.")
def pools_set(session: Session, name: str, slots: int, description: str | None, include_deferred: bool | None) -> Done:
    """Create or change a pool. SLOTS is the number of slots that tasks may take at once; -1 means no limit.

    A pool that exists keeps what no option changes.
    """
    session.make()
    options = {"description": description, "include_deferred": include_deferred}
    pool = session.act(_set, name, slots, {key: value for key, value in options.items() if value is not None})
    has = "no limit" if slots < 0 else count(slots, "slot")
    return Done(f"Pool {name!r} has {has}.", as_row(pool))


def _set(conn: Connection, name: str, slots: int, given: dict[str, Any]) -> Act[pools.PoolInfo]:
    try:
        return pools.change_pool(conn, name, slots=slots, **given)
    except NotFound:
        return pools.create_pool(conn, name, slots, **given)


@command("delete")
@click.argument("name")
def pools_delete(session: Session, name: str) -> Done:
    """Delete a pool. Tasks that name it wait until a pool of that name exists again."""
    session.act(pools.delete_pool, name)
    return Done(f"Pool {name!r} is deleted.", {"name": name})
