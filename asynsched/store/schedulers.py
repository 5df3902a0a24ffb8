"""Queries of `scheduler`: who serves this database, until when, and under which lease epoch.

Epochs only grow and none is given twice: the row of a scheduler that has left stays, lapsed, until the next one of its
home registers under a higher epoch.
"""

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.rows import as_struct, from_json, to_json
from asynsched.store.tables import scheduler


class SchedulerRow(Struct, frozen=True):
    """A scheduler, serving until its lease lapses."""

    id: str
    hostname: str
    pid: int
    home: str
    lease_epoch: int
    lease_until: datetime
    started_at: datetime
    heartbeat_at: datetime
    version: str
    parallelism: int
    executors: dict[str, int]


_REGISTRATION_LOCK = 0x6173796E73726567  # "asynsreg"
_LOCK = sa.text("SELECT pg_advisory_xact_lock(:key)")
_NEXT_EPOCH = sa.select(sa.func.coalesce(sa.func.max(scheduler.c.lease_epoch), 0) + 1)
_DELETE_OF_HOME = sa.delete(scheduler).where(
    scheduler.c.hostname == sa.bindparam("host"), scheduler.c.home == sa.bindparam("folder")
)
_RENEW = (
    sa.update(scheduler)
    .where(scheduler.c.id == sa.bindparam("key"), scheduler.c.lease_epoch == sa.bindparam("epoch"))
    .values(lease_until=sa.bindparam("until"), heartbeat_at=sa.bindparam("now"))
)
_SET_ROOM = (
    sa.update(scheduler)
    .where(scheduler.c.id == sa.bindparam("key"))
    .values(parallelism=sa.bindparam("n"), executors=sa.bindparam("by_name"))
)
_LEAVE = sa.update(scheduler).where(scheduler.c.id == sa.bindparam("key")).values(lease_until=scheduler.c.started_at)
_SERVING = sa.select(scheduler).where(scheduler.c.lease_until > sa.bindparam("now")).order_by(scheduler.c.lease_epoch)


def register_scheduler(
    conn: Connection,
    *,
    scheduler_id: str,
    hostname: str,
    pid: int,
    home: str,
    version: str,
    now: datetime,
    lease_until: datetime,
) -> int:
    """Enter a scheduler, and return its lease epoch: higher than any before.

    The caller holds the lock on the home, so an earlier scheduler of this home is gone: its row is removed, which makes
    what it owned free to be taken over at once.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(_LOCK, {"key": _REGISTRATION_LOCK})
    epoch: int = conn.execute(_NEXT_EPOCH).scalar_one()
    conn.execute(_DELETE_OF_HOME, {"host": hostname, "folder": home})
    values = {
        "id": scheduler_id,
        "hostname": hostname,
        "pid": pid,
        "home": home,
        "lease_epoch": epoch,
        "lease_until": lease_until,
        "started_at": now,
        "heartbeat_at": now,
        "version": version,
    }
    conn.execute(scheduler.insert(), values)
    return epoch


def renew_scheduler(
    conn: Connection, scheduler_id: str, lease_epoch: int, *, now: datetime, lease_until: datetime
) -> bool:
    """Make a lease last until `lease_until`. False: there is no such lease any more."""
    renewed = {"key": scheduler_id, "epoch": lease_epoch, "now": now, "until": lease_until}
    return conn.execute(_RENEW, renewed).rowcount > 0


def set_room(conn: Connection, scheduler_id: str, parallelism: int, executors: Mapping[str, int]) -> None:
    """Note how many tasks a scheduler runs at once, in all, and in each of several executors."""
    conn.execute(_SET_ROOM, {"key": scheduler_id, "n": parallelism, "by_name": to_json(dict(executors))})


def list_schedulers(conn: Connection, now: datetime) -> list[SchedulerRow]:
    """Return the schedulers whose lease has not lapsed, the one that registered first at first."""
    return [
        as_struct(SchedulerRow, row, executors=from_json(row.executors)) for row in conn.execute(_SERVING, {"now": now})
    ]


def remove_scheduler(conn: Connection, scheduler_id: str) -> None:
    """Let a scheduler's lease lapse now: it has stopped."""
    conn.execute(_LEAVE, {"key": scheduler_id})
