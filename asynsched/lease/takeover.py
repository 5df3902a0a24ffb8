"""Watches the other schedulers of a database, and frees the runs of those that are gone.

A scheduler is gone once its row has not changed for as long as the row itself says (`asynsched.lease.expiry`): none of
its tries can run then. The watcher measures that by its own monotonic clock, since it first saw the row in its present
state. So a scheduler is never given up because two clocks differ, or because one was set.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from asynsched.channels import Channels, RunsOrphaned, SchedulersChanged
from asynsched.clock import Clock
from asynsched.lease.expiry import Lease
from asynsched.loggers import get_logger
from asynsched.service import Service
from asynsched.store.database import Database
from asynsched.store.schedulers import give_up_scheduler, unended_schedulers
from asynsched.store.schema import SchedulerRow

log = get_logger(__name__)

MOST_MISSED = 3
"""The number of consecutive looks that the watcher may miss. After more, every scheduler gets its whole time again: the
database may have been unavailable, so that no scheduler could renew its lease."""


class _Seen(NamedTuple):
    """Another scheduler's row, and when it last changed, by this machine's monotonic clock."""

    row: SchedulerRow
    since: float

    def is_same(self, row: SchedulerRow) -> bool:
        """Whether the scheduler has not renewed its lease since."""
        return self.row.heartbeat_at == row.heartbeat_at

    @property
    def lease_seconds(self) -> float:
        """How long its lease lasts from a renewal on; its own clock gave both instants."""
        return (self.row.lease_until - self.row.heartbeat_at).total_seconds()


class PeerWatch(Service):
    """Looks at the schedulers' rows as often as leases are renewed, because a row that stays the same causes no event.

    It calls `on_change` when another scheduler has come or gone.

    Attributes:
        n_peers: How many other schedulers were found last.
    """

    name = "peer watch"

    def __init__(
        self,
        lease: Lease,
        *,
        channels: Channels,
        database: Database,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(clock)
        self._interval_seconds = lease.settings.renew_interval
        self.interval = timedelta(seconds=self._interval_seconds)
        self.n_peers = 0
        self._channels = channels
        self._on_change = on_change
        self._database = database
        self._scheduler_id = lease.scheduler_id
        self._seen: dict[str, _Seen] = {}
        self._looked_at: float | None = None
        channels.peers.wakes(self.wake)

    def silent(self) -> frozenset[str]:
        """Return the other schedulers whose leases had expired at the last look, by this machine's clock."""
        looked_at = self._looked_at or 0.0
        return frozenset(key for key, seen in self._seen.items() if looked_at - seen.since > seen.lease_seconds)

    async def tick(self, now: datetime) -> None:
        """Look once. Give up the schedulers that are gone, so that their runs are taken over."""
        self._channels.peers.take()
        before = self.clock.monotonic()
        rows = await self._database.read(unended_schedulers)
        peers = {row.id: row for row in rows if row.id != self._scheduler_id}
        for row in [row for row in peers.values() if self._is_gone(row, before)]:
            if await self._give_up(row, now):
                del peers[row.id]
        if peers.keys() != self._seen.keys():
            self._channels.runs.offer(RunsOrphaned())
            self._channels.asset_watchers.put_nowait(SchedulersChanged())
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
        """Record since when each row has not changed. The time is read after the rows, so it is never too early."""
        now = self.clock.monotonic()
        was_away = self._looked_at is None or now - self._looked_at > MOST_MISSED * self._interval_seconds
        known = {} if was_away else self._seen
        self._seen = {
            key: known[key] if key in known and known[key].is_same(row) else _Seen(row, now)
            for key, row in peers.items()
        }
        self._looked_at = now
