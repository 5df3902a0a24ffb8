"""The deadline watcher: settles each deadline at the moment at which it is due.

The index of the pending deadlines in the database is its heap of timers: it sleeps until the earliest of them, whatever
their number, and what was due while no scheduler served is settled at the next start.

Of several schedulers, each settles the deadlines of the runs that it runs: a success that is in time may not be stored
yet, as while the database is away, and only the run's own scheduler knows of that. Those of runs that nobody runs are
settled by whoever has them locked.
"""

from datetime import datetime, timedelta

import structlog

from asynsched.channels import CallbackRequested, Channels
from asynsched.clock import Clock
from asynsched.scheduling.evaluator import Watermark
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.runs.deadlines import next_deadline_at, settle_due_deadlines

log = structlog.get_logger(__name__)

MAX_AT_ONCE = 200
"""Deadlines that one transaction settles."""
PAUSE = timedelta(seconds=1)
"""How long those are left alone that somebody else is about to settle."""


class DeadlineWatcher(Service):
    """Settles deadlines, and has the callbacks requested of those that were missed.

    Args:
        lease_epoch: Of the runs that are this scheduler's.
        stored_until: Until when everything is stored that was reported of these.
    """

    name = "deadline watcher"

    def __init__(
        self,
        *,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        lease_epoch: int,
        stored_until: Watermark,
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels
        self._database = database
        self._lease_epoch = lease_epoch
        self._stored_until = stored_until
        channels.deadlines.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether every deadline that is due is settled."""
        return not self._channels.deadlines.qsize() and (self.due_at is None or self.due_at > self.clock.now())

    async def tick(self, now: datetime) -> None:
        """Settle what is due, and look when the next one is."""
        self._channels.deadlines.take()
        self.due_at = await self._database.read(next_deadline_at, self._lease_epoch)
        if self.due_at is None or self.due_at > now:
            return
        await self._stored_until.reach(self.clock.monotonic())
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
