"""Queries of `parse_claim`: which of several schedulers parses a file, so that each is parsed by one of them."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.conflicts import insert_ignoring
from asynsched.store.row_locks import lock_out_others
from asynsched.store.rows import portions
from asynsched.store.schema.tables import parse_claim, scheduler

_IS_OF_FILE = parse_claim.c.path == sa.bindparam("of_path")
_SERVING = sa.select(scheduler.c.id).where(
    scheduler.c.ended_at.is_(None), scheduler.c.id.not_in(sa.bindparam("silent", expanding=True))
)
_TAKE_FROM_THE_GONE = (
    sa.update(parse_claim)
    .where(
        _IS_OF_FILE,
        sa.or_(
            parse_claim.c.scheduler_id == sa.bindparam("me"),
            parse_claim.c.scheduler_id.not_in(_SERVING),
        ),
    )
    .values(scheduler_id=sa.bindparam("me"), claimed_at=sa.bindparam("now"))
)
_DELETE = (
    sa.delete(parse_claim)
    .where(
        parse_claim.c.path.in_(sa.bindparam("paths", expanding=True)),
        parse_claim.c.scheduler_id == sa.bindparam("me"),
    )
    .returning(parse_claim.c.path)
)
_STORE_LOCK = 0x6173796E70617273  # "asynpars"


def claim_unclaimed(conn: Connection, path: str, scheduler_id: str, now: datetime) -> bool:
    """Make a file that nobody parses this scheduler's to parse, until `drop_claims`. One statement.

    Returns:
        Whether it is this scheduler's now. Only after that, `get_file` tells what others have found of it.
    """
    values: dict[str, Any] = {"path": path, "scheduler_id": scheduler_id, "claimed_at": now}
    return conn.execute(insert_ignoring(conn, parse_claim), values).rowcount > 0


def claim_from_the_gone(
    conn: Connection, path: str, scheduler_id: str, now: datetime, silent: Collection[str] = ()
) -> bool:
    """Make a file this scheduler's to parse that it has claimed already, or another one that serves no more.

    Args:
        silent: Those that have not been heard of for so long that what they parse is parsed by others.

    Returns:
        Whether it is this scheduler's now. Not either where its claim was dropped just now.
    """
    values = {"of_path": path, "me": scheduler_id, "now": now, "silent": sorted(silent)}
    return conn.execute(_TAKE_FROM_THE_GONE, values).rowcount > 0


def drop_claims(conn: Connection, paths: Sequence[str], scheduler_id: str) -> frozenset[str]:
    """Let files be parsed by others: what this scheduler has found is stored in the same transaction.

    Returns:
        The files that were this scheduler's. Others have taken the rest, and what it found of them is not to be stored.
    """
    taken = {"me": scheduler_id}
    return frozenset(path for some in portions(paths) for path in conn.scalars(_DELETE, taken | {"paths": some}))


def store_alone(conn: Connection) -> None:
    """Have no other scheduler store what it has parsed, until the transaction ends.

    Two files may name the same DAG: whoever stores the second one of them is to see the first.
    """
    lock_out_others(conn, _STORE_LOCK)
