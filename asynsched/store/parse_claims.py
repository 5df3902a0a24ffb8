"""Queries of `parse_claim`: which of several schedulers parses a file, so that each is parsed by one of them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.store.conflicts import insert_ignoring
from asynsched.store.dag_files import DagFileRow, get_file
from asynsched.store.schema.column_types import Instant
from asynsched.store.schema.tables import parse_claim, scheduler

_IS_OF_FILE = parse_claim.c.path == sa.bindparam("of_path")
# Not as late as runs are taken over: that a file is parsed twice does no harm.
_SERVING = sa.select(scheduler.c.id).where(
    scheduler.c.ended_at.is_(None), scheduler.c.lease_until > sa.bindparam("now", type_=Instant)
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
_DELETE = sa.delete(parse_claim).where(_IS_OF_FILE, parse_claim.c.scheduler_id == sa.bindparam("me"))


def claim_parse(conn: Connection, path: str, scheduler_id: str, now: datetime) -> tuple[bool, DagFileRow | None]:
    """Make a file this scheduler's to parse, until `drop_claims`, unless another one parses it, whose lease is valid.

    Returns:
        Whether it is this scheduler's, and the file as it was last parsed by whomever.
    """
    values: dict[str, Any] = {"path": path, "scheduler_id": scheduler_id, "claimed_at": now}
    is_own = conn.execute(insert_ignoring(conn, parse_claim), values).rowcount > 0
    if not is_own:
        taken = conn.execute(_TAKE_FROM_THE_GONE, {"of_path": path, "me": scheduler_id, "now": now})
        is_own = taken.rowcount > 0
    return is_own, get_file(conn, path)


def drop_claims(conn: Connection, paths: Sequence[str], scheduler_id: str) -> None:
    """Let files be parsed by others: what this scheduler has found is stored in the same transaction."""
    conn.execute(_DELETE, [{"of_path": path, "me": scheduler_id} for path in paths])
