"""Waits for descriptors and timers in one thread, and calls what belongs to them, the most urgent first.

The keeper forks, so it may have no threads; and an event loop of asyncio's would weigh on every fork.
"""

import selectors
import time
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from asynsched.timers import Timers


class Urgency(IntEnum):
    """In which order descriptors that are ready together are served."""

    LEASE = 0
    FRAMES = 1
    OUTPUT = 2
    EXITS = 3


class Watch(NamedTuple):
    """What is called when a descriptor is ready."""

    urgency: Urgency
    callback: Callable[[int], None]


class Timer:
    """A call at a time; `cancel` revokes it, also one that was made already."""

    __slots__ = ("_armed", "callback")

    def __init__(self, armed: "Timers[float, Timer]", callback: Callable[[], None]) -> None:
        self._armed = armed
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Have it never called."""
        self.callback = None
        self._armed.disarm(self)


def boottime() -> float:
    """Return seconds since the machine started, suspension included: the clock that leases are measured in."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Reactor:
    """Descriptors and timers. Times are those of `boottime`, in seconds."""

    def __init__(self, now: Callable[[], float] = boottime) -> None:
        self.now = now
        self._selector = selectors.DefaultSelector()
        self._timers: Timers[float, Timer] = Timers()

    def watch(
        self, descriptor: int, callback: Callable[[int], None], urgency: Urgency, events: int = selectors.EVENT_READ
    ) -> None:
        """Call back with the ready events whenever this descriptor has some."""
        self._selector.register(descriptor, events, Watch(urgency, callback))

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._selector.modify(descriptor, events, self._selector.get_key(descriptor).data)

    def forget(self, descriptor: int) -> None:
        """Watch this descriptor no more. Call it before the descriptor is closed."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once, that long from now."""
        return self.at(self.now() + seconds, callback)

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once, then."""
        timer = Timer(self._timers, callback)
        self._timers.arm(when, timer)
        return timer

    def turn(self, before_frames: Callable[[], None]) -> None:
        """Wait until something is ready or due, and serve it.

        Args:
            before_frames: Called after news of the lease was read, and before anything else is served.
        """
        ready = sorted(self._selector.select(self._longest_wait()), key=lambda pair: pair[0].data.urgency)
        leases = sum(key.data.urgency == Urgency.LEASE for key, _ in ready)
        self._serve(ready[:leases])
        before_frames()
        self._serve(ready[leases:])
        self._call_due()

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        watched = self._selector.get_map()
        for key, events in ready:
            # One that was served earlier in this turn may have ended the watch of this one.
            current = watched.get(key.fd)
            if current is not None and current.data is key.data:
                key.data.callback(events)

    def _longest_wait(self) -> float | None:
        next_at = self._timers.next_at
        return None if next_at is None else max(0.0, next_at - self.now())

    def _call_due(self) -> None:
        for timer in self._timers.due(self.now()):
            if timer.callback is not None:
                timer.callback()
