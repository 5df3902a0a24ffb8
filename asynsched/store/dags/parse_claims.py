"""Queries of `parse_claim`: which of several schedulers parses a file, so that each is parsed by one of them.

Claims are made, taken over and dropped in the order of their paths: two schedulers that have to do with the same files
wait for one another, never in a ring.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.rows import portions
from asynsched.store.runs.row_locks import lock_out_others
from asynsched.store.schema import parse_claim, scheduler
from asynsched.store.statements import execute_rows, for_each_dialect, insert_of


class _ClaimRow(Struct, frozen=True, array_like=True):
    path: str
    scheduler_id: str
    claimed_at: datetime


_CLAIM = for_each_dialect(
    lambda dialect: insert_of("parse_claim", _ClaimRow, dialect, conflict="DO NOTHING RETURNING path")
)
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
_ARE_MINE = sa.and_(
    parse_claim.c.path.in_(sa.bindparam("paths", expanding=True)), parse_claim.c.scheduler_id == sa.bindparam("me")
)
# By code points, as Python sorts them, whatever collation the database has.
_MINE_IN_ORDER = (
    sa.select(parse_claim.c.path).where(_ARE_MINE).order_by(sa.collate(parse_claim.c.path, "C")).with_for_update()
)
_DELETE = {
    "sqlite": sa.delete(parse_claim).where(_ARE_MINE).returning(parse_claim.c.path),
    "postgresql": sa.delete(parse_claim).where(parse_claim.c.path.in_(_MINE_IN_ORDER)).returning(parse_claim.c.path),
}
_STORE_LOCK = 0x6173796E70617273  # "asynpars"


def claim_unclaimed(conn: Connection, paths: Collection[str], scheduler_id: str, now: datetime) -> set[str]:
    """Make files that nobody parses this scheduler's to parse, until `drop_claims`. One statement.

    Returns:
        Those that are this scheduler's now. Only after that, `get_files` tells what others have found of them.
    """
    rows = [_ClaimRow(path, scheduler_id, now) for path in sorted(paths)]
    return {row.path for row in execute_rows(conn, _CLAIM[conn.dialect.name], rows)}


def claim_from_the_gone(
    conn: Connection, paths: Collection[str], scheduler_id: str, now: datetime, silent: Collection[str] = ()
) -> set[str]:
    """Make files this scheduler's to parse that it has claimed already, or another one that serves no more.

    Args:
        silent: Those that have not been heard of for so long that what they parse is parsed by others.

    Returns:
        Those that are this scheduler's now. Not one whose claim was dropped just now.
    """
    values = {"me": scheduler_id, "now": now, "silent": sorted(silent)}
    return {path for path in sorted(paths) if conn.execute(_TAKE_FROM_THE_GONE, {"of_path": path, **values}).rowcount}


def drop_claims(conn: Connection, paths: Sequence[str], scheduler_id: str) -> frozenset[str]:
    """Let files be parsed by others: what this scheduler has found is stored in the same transaction.

    Returns:
        The files that were this scheduler's. Others have taken the rest, and what it found of them is not to be stored.
    """
    delete = _DELETE[conn.dialect.name]
    return frozenset(
        path for some in portions(sorted(paths)) for path in conn.scalars(delete, {"me": scheduler_id, "paths": some})
    )


def store_alone(conn: Connection) -> None:
    """Have no other scheduler store what it has parsed, until the transaction ends.

    Two files may name the same DAG: whoever stores the second one of them is to see the first.
    """
    lock_out_others(conn, _STORE_LOCK)
