"""Tells the lease's thread that the event loop is alive, and the log when it was late."""

from datetime import datetime, timedelta

from asynsched.clock import Clock
from asynsched.housekeeping.lease import LeaseKeeper
from asynsched.service import Service


class LoopBeat(Service):
    """Beats once a second."""

    name = "loop beat"
    interval = timedelta(seconds=1)

    def __init__(self, *, clock: Clock, lease: LeaseKeeper) -> None:
        super().__init__(clock)
        self._lease = lease

    async def tick(self, now: datetime) -> None:
        """Beat."""
        self._lease.beat()
        self.metrics.count("scheduler_heartbeat")
