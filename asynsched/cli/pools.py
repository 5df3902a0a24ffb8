"""`asynsched pools …`."""

import click
import msgspec

from asynsched.bell import Hint
from asynsched.cli.command import command
from asynsched.cli.output import Done, Listing, count
from asynsched.cli.session import Session
from asynsched.store.runs import pools as store

COLUMNS = (
    "name", "slots", "occupied_slots", "running_slots", "queued_slots", "deferred_slots", "include_deferred",
    "description",
)  # fmt: skip


@command("list", tables=True)
def pools_list(session: Session) -> Listing:
    """List the pools and their occupied slots."""
    rows = []
    for pool in session.read(store.list_pools):
        occupied = pool.running_slots + pool.queued_slots + (pool.deferred_slots if pool.include_deferred else 0)
        rows.append(msgspec.structs.asdict(pool) | {"occupied_slots": occupied})
    return Listing(COLUMNS, rows, spare=("description", "include_deferred", "deferred_slots"))


@command("set", negative_numbers=True)
@click.argument("name")
@click.argument("slots", type=click.IntRange(min=-1))
@click.option("--description", default="", help="The pool's purpose.")
@click.option("--include-deferred", is_flag=True, help="Count deferred tasks.")
def pools_set(session: Session, name: str, slots: int, description: str, include_deferred: bool) -> Done:
    """Create or change a pool. SLOTS is the number of slots that tasks may take at once; -1 means no limit."""
    session.make()
    session.change(
        "pool.set",
        lambda conn: store.set_pool(conn, name, slots, description=description, include_deferred=include_deferred),
        hint=Hint("pool"),
        detail={"name": name, "slots": slots},
    )
    has = "no limit" if slots < 0 else count(slots, "slot")
    return Done(f"Pool {name!r} has {has}.", {"name": name, "slots": slots})


@command("delete")
@click.argument("name")
def pools_delete(session: Session, name: str) -> Done:
    """Delete a pool. Tasks that name it wait until a pool of that name exists again."""
    session.change("pool.delete", lambda conn: store.delete_pool(conn, name), hint=Hint("pool"), detail={"name": name})
    return Done(f"Pool {name!r} is deleted.", {"name": name})
