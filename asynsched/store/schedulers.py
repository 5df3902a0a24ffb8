"""Queries of `scheduler`: which schedulers serve this database, until when, and under which lease epoch.

Epochs only grow, and none is used twice: the row of a scheduler that has left or was given up stays until later ones
have registered under higher epochs. Schedulers on other machines are woken by PostgreSQL's NOTIFY, sent when the
transaction commits. SQLite has one scheduler, which its own bell wakes.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy import Connection

from asynsched.bell import Hint, encode_in_parts
from asynsched.errors import HomeInUse
from asynsched.home import serves_database
from asynsched.store.rows import fetch
from asynsched.store.runs.dag_runs import IS_RUNNING
from asynsched.store.runs.row_locks import lock_out_others
from asynsched.store.schema import SchedulerRow, asset_trigger, callback_request, dag_run, listener_call, scheduler


class Load(NamedTuple):
    """The running runs of a scheduler, and its task instances that are queued or running."""

    n_runs: int
    n_tasks: int


KEPT_FOR = timedelta(days=7)
"""How long the rows of ended schedulers are kept."""

_REGISTRATION_LOCK = 0x6173796E73726567  # "asynsreg"
_NEXT_EPOCH = sa.select(sa.func.coalesce(sa.func.max(scheduler.c.lease_epoch), 0) + 1)
_HAS_NOT_ENDED = scheduler.c.ended_at.is_(None)
SERVING = sa.select(scheduler.c.id).where(_HAS_NOT_ENDED)
"""The ids of the schedulers that have neither left nor been given up."""
_HOLDS = (
    sa.select(sa.literal(1))
    .where(scheduler.c.id == sa.bindparam("key"), _HAS_NOT_ENDED, scheduler.c.lease_epoch == sa.bindparam("epoch"))
    .with_for_update(read=True)
)
_ALL = sa.select(scheduler).order_by(scheduler.c.lease_epoch)
_PEERS = SERVING.where(scheduler.c.id != sa.bindparam("key"))
_LOADS = """
SELECT r.scheduler_id AS id, count(DISTINCT r.id) AS n_runs, count(t.id) AS n_tasks
FROM dag_run AS r LEFT JOIN task_instance AS t
  ON t.dag_run_id = r.id AND t.state IN ('queued', 'running', 'restarting')
WHERE r.state = 'running' AND r.scheduler_id IS NOT NULL
GROUP BY r.scheduler_id
"""


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
    takeover_seconds: float,
    is_alone: bool = False,
) -> int:
    """Register a scheduler, and return its lease epoch: higher than any before.

    The caller holds the lock on the home, so an earlier scheduler of this home is gone. The new one inherits its runs,
    callbacks and watchers' triggers at once, so no other scheduler can take them: the home's keeper may still run their
    tries and hosts. If the database can serve one scheduler only (`is_alone`), that inherits from every earlier one.

    Raises:
        HomeInUse: It must be alone, and tries of another home's scheduler may still run.
    """
    lock_out_others(conn, _REGISTRATION_LOCK)
    epoch: int = conn.execute(_NEXT_EPOCH).scalar_one()
    if is_alone:
        _refuse_others(conn, home, now)
    own = sa.select(scheduler.c.id)
    before = list(conn.scalars(own if is_alone else own.where(_is_of_home(hostname, home)).with_for_update()))
    row = SchedulerRow(
        id=scheduler_id, hostname=hostname, pid=pid, home=home, lease_epoch=epoch, lease_until=lease_until,
        started_at=now, heartbeat_at=now, version=version, takeover_seconds=takeover_seconds,
    )  # fmt: skip
    conn.execute(sa.delete(scheduler).where(scheduler.c.id.in_(before) | (scheduler.c.ended_at < now - KEPT_FOR)))
    conn.execute(scheduler.insert(), asdict(row))
    if before:
        runs = sa.select(dag_run.c.id).where(IS_RUNNING, dag_run.c.scheduler_id.in_(before))
        in_order = runs.order_by(dag_run.c.id).with_for_update(key_share=True)
        conn.execute(sa.update(dag_run).where(dag_run.c.id.in_(in_order)).values(scheduler_id=scheduler_id))
        for table in (callback_request, listener_call):
            is_begun = sa.text(f"{table.name}.state = 'running'")
            callbacks = sa.update(table).where(is_begun, table.c.scheduler_id.in_(before))
            conn.execute(callbacks.values(scheduler_id=scheduler_id))
        triggers = sa.update(asset_trigger).where(asset_trigger.c.scheduler_id.in_(before))
        conn.execute(triggers.values(scheduler_id=scheduler_id))
    return epoch


def _is_of_home(hostname: str, home: str) -> sa.ColumnElement[bool]:
    return (scheduler.c.hostname == hostname) & (scheduler.c.home == home)


def _refuse_others(conn: Connection, home: str, now: datetime) -> None:
    # The lease alone does not suffice: the tries of a dead scheduler outlast it by the grace and the time to end.
    for other in unended_schedulers(conn):
        free_at = other.heartbeat_at + timedelta(seconds=other.takeover_seconds)
        # Nor does the time: a live scheduler cannot renew while the database is locked, and a clock may jump.
        if other.home != home and (now < free_at or serves_database(Path(other.home), sqlite_file(conn))):
            raise HomeInUse(
                f"A scheduler is serving this database already: process {other.pid} on {other.hostname}, with the home"
                f" {other.home}. A SQLite database has one scheduler: stop that one first, or use PostgreSQL. If it has"
                f" died, try again after {max(now, free_at).isoformat(timespec='seconds')}."
            )


def sqlite_file(conn: Connection) -> str:
    """Return the path of a SQLite database; empty for one in memory."""
    path: str = conn.execute(sa.text("PRAGMA database_list")).one().file
    return path


def renew_scheduler(
    conn: Connection, scheduler_id: str, lease_epoch: int, *, now: datetime, lease_until: datetime
) -> bool:
    """Extend a lease until `lease_until`. False: the lease has ended."""
    renew = _unended(scheduler_id).where(scheduler.c.lease_epoch == lease_epoch)
    return conn.execute(renew.values(lease_until=lease_until, heartbeat_at=now)).rowcount > 0


def _unended(scheduler_id: str) -> sa.Update:
    return sa.update(scheduler).where(scheduler.c.id == scheduler_id, _HAS_NOT_ENDED)


def holds_lease(conn: Connection, scheduler_id: str, lease_epoch: int) -> bool:
    """Whether a scheduler may take runs: it has neither left nor was given up. True until the transaction ends."""
    return conn.scalar(_HOLDS, {"key": scheduler_id, "epoch": lease_epoch}) is not None


def has_peers(conn: Connection, scheduler_id: str) -> bool:
    """Whether there are other schedulers, including any that died unnoticed."""
    return conn.scalar(_PEERS, {"key": scheduler_id}) is not None


def set_takeover(conn: Connection, scheduler_id: str, seconds: float) -> None:
    """Store the seconds after its last renewal for which a scheduler's runs remain its own."""
    conn.execute(sa.update(scheduler).where(scheduler.c.id == scheduler_id).values(takeover_seconds=seconds))


def takeover_of_home(conn: Connection, hostname: str, home: str) -> float:
    """Return the seconds after its last renewal for which a home's scheduler keeps its runs; 0 without a scheduler."""
    longest = sa.select(sa.func.max(scheduler.c.takeover_seconds))
    return conn.scalar(longest.where(_is_of_home(hostname, home), _HAS_NOT_ENDED)) or 0.0


def set_room(conn: Connection, scheduler_id: str, parallelism: int, executors: Mapping[str, int]) -> None:
    """Store the number of tasks that a scheduler runs at once, in all and in each of several executors."""
    room = {"parallelism": parallelism, "executors": dict(executors)}
    conn.execute(sa.update(scheduler).where(scheduler.c.id == scheduler_id).values(room))


def last_served_at(conn: Connection) -> datetime | None:
    """Return when a scheduler last served this database: when it left, or was last seen. None when none ever did."""
    found: datetime | None = conn.scalar(
        sa.select(sa.func.max(sa.func.coalesce(scheduler.c.ended_at, scheduler.c.heartbeat_at)))
    )
    return found


def list_schedulers(conn: Connection, now: datetime) -> list[SchedulerRow]:
    """Return the schedulers whose lease has not lapsed, in the order of their registration."""
    return fetch(conn, SchedulerRow, _ALL.where(_HAS_NOT_ENDED, scheduler.c.lease_until > now))


def unended_schedulers(conn: Connection) -> list[SchedulerRow]:
    """Return the schedulers that have neither left nor been given up, including any that died unnoticed."""
    return fetch(conn, SchedulerRow, _ALL.where(_HAS_NOT_ENDED))


def known_schedulers(conn: Connection) -> list[SchedulerRow]:
    """Return every known scheduler, including ended ones."""
    return fetch(conn, SchedulerRow, _ALL)


def loads(conn: Connection) -> dict[str, Load]:
    """Return the load of each scheduler, by its id, without those that have none."""
    return {row.id: Load(row.n_runs, row.n_tasks) for row in conn.execute(sa.text(_LOADS))}


def remove_scheduler(conn: Connection, scheduler_id: str, now: datetime) -> None:
    """Note that a scheduler has stopped, which frees the runs that it owned."""
    conn.execute(_unended(scheduler_id).values(lease_until=scheduler.c.started_at, ended_at=now))


def give_up_scheduler(conn: Connection, scheduler_id: str, heartbeat_at: datetime, now: datetime) -> bool:
    """End a scheduler that no longer renews its lease, which frees its runs; it can never renew the lease again.

    False: it has renewed the lease since `heartbeat_at`, which the caller saw unchanged for the whole waiting time.
    """
    is_silent = scheduler.c.heartbeat_at == heartbeat_at
    return conn.execute(_unended(scheduler_id).where(is_silent).values(ended_at=now)).rowcount > 0


CHANNEL = "asynsched"
LONGEST_PAYLOAD_BYTES = 7999
"""PostgreSQL's limit."""


_NOTIFY = sa.text("SELECT pg_notify(:channel, :payload)")


def notify(conn: Connection, *hints: Hint) -> None:
    """Notify every scheduler that listens on this database of changes."""
    if hints and conn.dialect.name == "postgresql":
        for payload in encode_in_parts(hints, LONGEST_PAYLOAD_BYTES):
            conn.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})
