"""The clocks of one simulated machine: the wall clock may be wrong, and may jump; the others may stand still."""

import asyncio
from datetime import datetime, timedelta

import anyio

from asynsched.clock import VirtualClock
from tests.faults.simulated.loop import PROCESS


class MachineClock:
    """A clock that follows the world's time, its wall clock apart from it by `offset`.

    Attributes:
        lag: How many seconds the machine's clocks have stood still, beside its wall clock, which was set again.
    """

    def __init__(self, world_clock: VirtualClock) -> None:
        self._world_clock = world_clock
        self.offset = timedelta()
        self.lag = 0.0
        self.n_boots = 1

    def now(self) -> datetime:
        return self._world_clock.now() + self.offset

    def monotonic(self) -> float:
        return self._world_clock.monotonic() - self.lag

    def boottime(self) -> float:
        return self._world_clock.boottime() - self.lag

    def boot(self) -> str:
        return str(self.n_boots)

    async def wait(self, event: anyio.Event, at_most: timedelta | None = None) -> bool:
        self._live()
        return await self._world_clock.wait(event, at_most)

    async def sleep(self, duration: timedelta) -> None:
        self._live()
        await self._world_clock.sleep(duration)

    @staticmethod
    def _live() -> None:
        process = PROCESS.get()
        if process is not None and process.is_dead:
            raise asyncio.CancelledError
