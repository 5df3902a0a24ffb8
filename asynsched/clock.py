"""Time, injected: the only module that reads the system's clock or draws random numbers."""

import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock:
    """Tells every part of the scheduler the time, and waits for it: the machine's own clock."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary origin."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return seconds since the machine started, suspension included: the clock of leases."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def boot(self) -> str:
        """Return a unique name of this boot of the machine; "" if the system does not give one."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    async def wait(self, event: anyio.Event, at_most: timedelta | None = None) -> bool:
        """Wait until the event is set (True), or `at_most` has passed (False)."""
        if at_most is None or event.is_set():
            await event.wait()  # without a timer, which a busy service does not need
            return True
        with anyio.move_on_after(max(0.0, at_most.total_seconds())):
            await event.wait()
        return event.is_set()

    async def sleep(self, duration: timedelta) -> None:
        await anyio.sleep(max(0.0, duration.total_seconds()))


class VirtualClock(Clock):
    """A clock that moves only by `leap`: called by VirtualLoop (`simulation/simulation.py`), or by a test.

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
        self._elapsed_seconds += max(0.0, seconds)


def new_token() -> str:
    """Return a new random identifier: 128 bits, hexadecimal."""
    return os.urandom(16).hex()


def jitter(at_most: timedelta) -> timedelta:
    """Return a random length of time up to `at_most`."""
    return at_most * random.random()  # noqa: S311 - spreads retries, guards nothing
