"""Watches the other schedulers of a database: how many there are, and which of them are gone.

A scheduler is gone once its row has not changed for so long that none of its tries can run any more, as that row says
(`asynsched.lease.promise`). That time is taken by this machine's own monotonic
clock, from the moment at which the row was first seen as it is. So nobody is given up because two clocks differ, or
because one was set.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection

from asynsched.bell import Hint, encode_hints
from asynsched.channels import Channels, SchedulersChanged
from asynsched.clock import Clock
from asynsched.service import Service
from asynsched.store.database import Database
from asynsched.store.schedulers import (
    give_up_scheduler,
    notify,
    register_scheduler,
    remove_scheduler,
    takeover_of_home,
    unended_schedulers,
)
from asynsched.store.schema import SchedulerRow

log = structlog.get_logger(__name__)

MOST_MISSED = 3
"""Looks that may be missed in a row. After more, perhaps because the database was away, every scheduler is given its
whole time again: it could renew no lease meanwhile either."""


class _Seen(NamedTuple):
    """Another scheduler's row, and since when it is as it is, by this machine's monotonic clock."""

    row: SchedulerRow
    since: float

    def is_same(self, row: SchedulerRow) -> bool:
        """Whether the scheduler has not renewed its lease since."""
        return self.row.heartbeat_at == row.heartbeat_at

    @property
    def lease_seconds(self) -> float:
        """How long its lease lasts from a renewal on: both are said by its own clock."""
        return (self.row.lease_until - self.row.heartbeat_at).total_seconds()


def enter(conn: Connection, /, *, takeover_seconds: float, **values: Any) -> tuple[int, float]:
    """Register a scheduler, and tell the others; see `register_scheduler`.

    Returns:
        Its lease epoch, and how long nobody takes what it has: `takeover_seconds`, or as the last one on its home had
        said, if that is longer. Until it is greeted, the keeper goes by that.
    """
    seconds = max(takeover_seconds, takeover_of_home(conn, values["hostname"], values["home"]))
    epoch = register_scheduler(conn, takeover_seconds=seconds, **values)
    notify(conn, encode_hints([Hint("scheduler", origin=values["scheduler_id"])]))
    return epoch, seconds


def leave(conn: Connection, scheduler_id: str, now: datetime) -> None:
    """Free what a scheduler owns that has stopped, and tell the others, which take it at once."""
    remove_scheduler(conn, scheduler_id, now)
    notify(conn, encode_hints([Hint("scheduler", origin=scheduler_id)]))


class PeerWatch(Service):
    """Looks at the schedulers' rows, as often as leases are renewed.

    Args:
        on_change: Called when another scheduler has come, or is gone.

    Attributes:
        n_peers: How many other schedulers there are, as far as is known.
    """

    name = "peer watch"

    def __init__(
        self,
        *,
        renew_interval: float,
        channels: Channels,
        database: Database,
        clock: Clock,
        scheduler_id: str,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=renew_interval)
        self.n_peers = 0
        self._channels = channels
        self._on_change = on_change
        self._database = database
        self._scheduler_id = scheduler_id
        self._seen: dict[str, _Seen] = {}
        self._looked_at: float | None = None
        channels.peers.wakes(self.wake)

    def silent(self) -> frozenset[str]:
        """Return the other schedulers whose rows had not changed for as long as their leases last, at the last look."""
        looked_at = self._looked_at or 0.0
        return frozenset(key for key, seen in self._seen.items() if looked_at - seen.since > seen.lease_seconds)

    async def tick(self, now: datetime) -> None:
        """Look once; give up who is gone, and have their runs taken."""
        self._channels.peers.take()
        before = self.clock.monotonic()
        rows = await self._database.read(unended_schedulers)
        peers = {row.id: row for row in rows if row.id != self._scheduler_id}
        for row in [row for row in peers.values() if self._is_gone(row, before)]:
            if await self._give_up(row, now):
                del peers[row.id]
        if peers.keys() != self._seen.keys():
            self._channels.active_runs.offer(SchedulersChanged())
            self._on_change()
        new = [row for row in peers.values() if row.id not in self._seen]
        self._note(peers)
        self.n_peers = len(peers)
        for row in new:
            log.info("scheduler.found", found=row.id)

    def _is_gone(self, row: SchedulerRow, now: float) -> bool:
        if self._looked_at is None or now - self._looked_at > MOST_MISSED * self._interval_seconds:
            return False
        seen = self._seen.get(row.id)
        return seen is not None and seen.is_same(row) and now - seen.since > row.takeover_seconds

    async def _give_up(self, row: SchedulerRow, now: datetime) -> bool:
        is_gone = await self._database.write(give_up_scheduler, row.id, row.heartbeat_at, now)
        if is_gone:
            log.warning("scheduler.gone", gone=row.id, home=row.home, heartbeat_at=row.heartbeat_at.isoformat())
        return is_gone

    def _note(self, peers: dict[str, SchedulerRow]) -> None:
        """Remember since when each row is as it is. The time is read after the rows: never too early."""
        now = self.clock.monotonic()
        was_away = self._looked_at is None or now - self._looked_at > MOST_MISSED * self._interval_seconds
        known = {} if was_away else self._seen
        self._seen = {
            key: known[key] if key in known and known[key].is_same(row) else _Seen(row, now)
            for key, row in peers.items()
        }
        self._looked_at = now

    @property
    def _interval_seconds(self) -> float:
        assert self.interval is not None
        return self.interval.total_seconds()
