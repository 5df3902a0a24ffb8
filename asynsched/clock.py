"""Time, injected: the one module that reads the system's clock, and the one that draws random numbers."""

import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What every part of the scheduler uses to know the time, and to wait."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary origin."""
        ...

    def boottime(self) -> float:
        """Return seconds since the machine started, suspension included: what leases are measured in."""
        ...

    def boot(self) -> str:
        """Return which boot of the machine this is: a name that no other boot has, or "" where there is none."""
        ...

    async def wait(self, event: anyio.Event, at_most: timedelta | None = None) -> bool:
        """Wait until the event is set (True), or that long (False)."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def boot(self) -> str:
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    async def wait(self, event: anyio.Event, at_most: timedelta | None = None) -> bool:
        if at_most is None or event.is_set():
            await event.wait()  # without a timer: services whose work comes in faster than they tick do not need one
            return True
        with anyio.move_on_after(max(0.0, at_most.total_seconds())):
            await event.wait()
        return event.is_set()

    async def sleep(self, duration: timedelta) -> None:
        await anyio.sleep(max(0.0, duration.total_seconds()))


class VirtualClock(SystemClock):
    """A clock that only moves when it is told to: by the event loop of `simulation/loop.py`, or by a test.

    Waiting needs that loop, whose timers follow this clock.
    """

    def __init__(self, start: datetime, boot: str = "virtual") -> None:
        self._start = start.astimezone(UTC)
        self._boot = boot
        self._elapsed_seconds = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_seconds)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def boottime(self) -> float:
        return self._elapsed_seconds

    def boot(self) -> str:
        return self._boot

    def leap(self, seconds: float) -> None:
        """Move forward by that much."""
        self._elapsed_seconds += max(0.0, seconds)


def new_token() -> str:
    """Return a new random identifier: 128 bits, hexadecimal."""
    return os.urandom(16).hex()


def jitter(at_most: timedelta) -> timedelta:
    """Return a random length between nothing and `at_most`."""
    return at_most * random.random()  # noqa: S311 - spreads retries, guards nothing
