"""`asynsched pools …`."""

from typing import Annotated, Any

import typer

from asynsched.bell import Hint
from asynsched.cli.command import command, new_app
from asynsched.cli.rendering import Done, Listing
from asynsched.cli.session import Session
from asynsched.store import pools as store

app = new_app()


COLUMNS = (
    "name", "slots", "occupied_slots", "running_slots", "queued_slots", "deferred_slots", "include_deferred",
    "description",
)  # fmt: skip


def _pools_changed(_: object) -> list[Hint]:
    return [Hint("pool")]


@command(app, "list")
def list_pools(session: Session) -> Listing:
    """List the pools, with the slots that are taken."""
    return Listing(COLUMNS, [_fields(pool) for pool in session.read(store.list_pools)])


@command(app, "set")
def set_pool(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    slots: Annotated[int, typer.Argument(metavar="SLOTS", min=-1, help="Tasks at once; -1 for no limit.")],
    *,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    include_deferred: Annotated[bool, typer.Option("--include-deferred", help="Count deferred tasks.")] = False,
) -> Done:
    """Make a pool, or change its slots."""
    session.change(
        "pool.set",
        lambda conn: store.set_pool(conn, name, slots, description=description, include_deferred=include_deferred),
        hints=_pools_changed,
        detail={"name": name, "slots": slots},
    )
    return Done(f"Pool {name!r} has {slots} slots.", {"name": name, "slots": slots})


@command(app, "delete")
def delete_pool(session: Session, name: Annotated[str, typer.Argument(metavar="NAME")]) -> Done:
    """Delete a pool. Tasks that name it wait until there is one of that name again."""
    session.change(
        "pool.delete", lambda conn: store.delete_pool(conn, name), hints=_pools_changed, detail={"name": name}
    )
    return Done(f"Pool {name!r} is deleted.", {"name": name})


def _fields(pool: store.PoolRow) -> dict[str, Any]:
    fields = {name: getattr(pool, name) for name in COLUMNS if name != "occupied_slots"}
    deferred = pool.deferred_slots if pool.include_deferred else 0
    return fields | {"occupied_slots": pool.running_slots + pool.queued_slots + deferred}
