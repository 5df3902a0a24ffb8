"""The lease of a scheduler that was given an open database: renewed on the event loop, through that database.

There is no URL to open a connection of its own from, as `lease.py` does. So a loop that stalls for longer than its
tries may outlast it loses them.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import anyio.to_thread
import structlog

from asynsched.clock import Clock
from asynsched.executors.base import Executor
from asynsched.housekeeping.outlasting import Outlasting
from asynsched.service import Service
from asynsched.settings import LeaseSettings
from asynsched.store.database import Database

log = structlog.get_logger(__name__)


class LoopLease(Service):
    """Renews the lease while it runs.

    Args:
        outlasting: As in LeaseKeeper.
        on_lost: Called when the database says that the lease is another's.
    """

    name = "lease"

    def __init__(
        self,
        *,
        settings: LeaseSettings,
        database: Database,
        outlasting: Outlasting,
        clock: Clock,
        scheduler_id: str,
        lease_epoch: int,
        executor: Executor,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.renew_interval)
        self.longest_backoff = self.interval / 2  # when the database is back, tries have little time left
        self._database = database
        self._scheduler_id = scheduler_id
        self._lease_epoch = lease_epoch
        self._executor = executor
        self._on_lost = on_lost
        self._outlasting = outlasting
        self._is_lost = False

    async def tick(self, now: datetime) -> None:
        """Renew once."""
        if self._is_lost:
            return
        boottime = self.clock.boottime()
        # Before as well: the database may be away.
        await self._tell_executor(self._outlasting.allowed(boottime))
        is_ours, promise = await self._database.write(
            self._outlasting.renew, self._scheduler_id, self._lease_epoch, now=now, boottime=boottime
        )
        if is_ours:
            self._outlasting.renewed(promise)
            await self._tell_executor(self._outlasting.allowed(boottime))
        else:
            log.error("lease.lost", scheduler_id=self._scheduler_id)
            self._is_lost = True
            self._on_lost()

    async def _tell_executor(self, valid_until: float) -> None:
        # It may block for a moment: it is made for a thread of its own.
        await anyio.to_thread.run_sync(self._executor.renew_lease, valid_until)
