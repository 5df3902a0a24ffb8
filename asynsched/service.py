"""The contract of one long-lived task of the scheduler: woken by events, with an interval as safety net."""

from abc import ABC, abstractmethod
from datetime import datetime, timedelta

import anyio
import structlog
from anyio.abc import TaskStatus

from asynsched.clock import Clock, jitter
from asynsched.errors import StoreUnavailable

log = structlog.get_logger(__name__)

FIRST_BACKOFF = timedelta(milliseconds=100)
LONGEST_BACKOFF = timedelta(seconds=10)


class Service(ABC):
    """One cooperating task. Subclasses write `tick`, and call `wake` when there is something to do.

    `interval` is the longest time between two ticks, None for a service that only events wake. A tick may set
    `due_at` to be woken at an instant. A lost database is waited for; any other failure ends the scheduler.
    """

    name: str
    interval: timedelta | None = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.due_at: datetime | None = None
        self._wakeup = anyio.Event()

    def wake(self) -> None:
        """Ask for a tick as soon as possible. Never blocks; many calls may make one tick."""
        self._wakeup.set()

    @abstractmethod
    async def tick(self, now: datetime) -> None:
        """Do one bounded pass."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tick until cancelled."""
        task_status.started()
        backoff = FIRST_BACKOFF
        while True:
            self._wakeup = anyio.Event()
            try:
                await self.tick(self.clock.now())
            except StoreUnavailable as exc:
                if backoff == FIRST_BACKOFF:
                    log.warning("store.unavailable", service=self.name, error=str(exc))
                await self.clock.sleep(backoff + jitter(backoff))
                backoff = min(backoff * 2, LONGEST_BACKOFF)
                continue
            if backoff != FIRST_BACKOFF:
                log.info("store.available", service=self.name)
                backoff = FIRST_BACKOFF
            await self.clock.wait(self._wakeup, self._longest_wait())

    def _longest_wait(self) -> timedelta | None:
        waits = [] if self.interval is None else [self.interval]
        if self.due_at is not None:
            waits.append(self.due_at - self.clock.now())
        return min(waits, default=None)
