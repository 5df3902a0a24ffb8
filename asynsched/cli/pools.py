"""`asynsched pools …`."""

import click

from asynsched.cli.command import command
from asynsched.cli.output import Done, Listing, count, fields_of
from asynsched.cli.session import Session
from asynsched.queries import pools

COLUMNS = (
    "name", "slots", "occupied_slots", "running_slots", "queued_slots", "deferred_slots", "include_deferred",
    "description",
)  # fmt: skip


@command("list", tables=True)
def pools_list(session: Session) -> Listing:
    """List the pools and their occupied slots."""
    rows = [fields_of(pool, COLUMNS) for pool in session.pages(pools.list_pools, pools.ALL)]
    return Listing(COLUMNS, rows, spare=("description", "include_deferred", "deferred_slots"))


@command("set", negative_numbers=True)
@click.argument("name")
@click.argument("slots", type=click.IntRange(min=-1))
@click.option("--description", default="", help="The pool's purpose.")
@click.option("--include-deferred", is_flag=True, help="Count deferred tasks.")
def pools_set(session: Session, name: str, slots: int, description: str, include_deferred: bool) -> Done:
    """Create or change a pool. SLOTS is the number of slots that tasks may take at once; -1 means no limit."""
    session.make()
    session.act(pools.set_pool, name, slots, description=description, include_deferred=include_deferred)
    has = "no limit" if slots < 0 else count(slots, "slot")
    return Done(f"Pool {name!r} has {has}.", {"name": name, "slots": slots})


@command("delete")
@click.argument("name")
def pools_delete(session: Session, name: str) -> Done:
    """Delete a pool. Tasks that name it wait until a pool of that name exists again."""
    session.act(pools.delete_pool, name)
    return Done(f"Pool {name!r} is deleted.", {"name": name})
