"""The deadline watcher: settles each deadline at the moment at which it is due.

The database's index of pending deadlines serves as its heap of timers: the watcher sleeps until the earliest deadline,
however many there are. At its start it settles the deadlines that came due while no scheduler served.

Each scheduler settles the deadlines of the runs that it owns: a success in time may not be stored yet, as while the
database is away, and only the run's own scheduler knows of it. The deadlines of runs that no scheduler owns are settled
by the scheduler that locks them.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import anyio
import structlog

from asynsched.channels import CallbackRequested, Channels
from asynsched.clock import Clock
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.runs.deadlines import next_deadline_at, settle_due_deadlines

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 200
"""How many deadlines one transaction settles at most."""
PAUSE = timedelta(seconds=1)
"""How long to wait when another scheduler is settling the deadlines that are due."""


class DeadlineWatcher(Service):
    """Settles deadlines, and requests the callbacks of missed ones.

    Args:
        lease_epoch: Lease epoch of this scheduler's runs.
        reports_stored: Waits until all reports on these runs are stored.
    """

    name = "deadline watcher"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        *,
        lease_epoch: int,
        reports_stored: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels
        self._database = database
        self._lease_epoch = lease_epoch
        self._reports_stored = reports_stored
        self._longest_wait_seconds = settings.monitor.longest_step / 2
        channels.deadlines.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether every deadline that is due is settled."""
        return not self._channels.deadlines.qsize() and (self.due_at is None or self.due_at > self.clock.now())

    async def tick(self, now: datetime) -> None:
        """Settle the deadlines that are due, and find the next one."""
        self._channels.deadlines.take()
        self.due_at = await self._database.read(next_deadline_at, self._lease_epoch)
        if self.due_at is None or self.due_at > now:
            return
        with anyio.move_on_after(self._longest_wait_seconds) as wait:
            await self._reports_stored()
        if wait.cancelled_caught:
            # While the database comes and goes, that may take long, but the step must not seem stuck. Try again.
            return
        n_settled, missed = await self._database.write(settle_due_deadlines, self._lease_epoch, now, MAX_AT_ONCE)
        for miss in missed:
            due_at = miss.due_at.isoformat()
            log.warning("deadline.missed", dag_id=miss.dag_id, run_id=miss.run_id, deadline=miss.name, due_at=due_at)
        if missed:
            self._channels.callbacks.put_nowait(CallbackRequested())
        if n_settled:
            self.wake()
        else:
            self.due_at = now + PAUSE
