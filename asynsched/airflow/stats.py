"""Stats: tasks and providers may count and time. Nobody collects their figures; the scheduler's are its own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Timer:
    """Measures the time from `start` to `stop`, or within `with`.

    Attributes:
        duration: Milliseconds; None before the end.
    """

    duration: float | None = None
    _since = 0.0

    def start(self) -> Timer:
        """Begin to measure."""
        from time import perf_counter

        self._since = perf_counter()
        return self

    def stop(self, send: bool = True) -> None:
        """End the measurement."""
        from time import perf_counter

        del send
        self.duration = 1000 * (perf_counter() - self._since)

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()


class Stats:
    """Takes figures, and drops them."""

    @classmethod
    def incr(cls, stat: str, count: int = 1, rate: float = 1, *, tags: Any = None, **_: Any) -> None:
        """Add to a counter."""

    @classmethod
    def decr(cls, stat: str, count: int = 1, rate: float = 1, *, tags: Any = None, **_: Any) -> None:
        """Subtract from a counter."""

    @classmethod
    def gauge(cls, stat: str, value: float, rate: float = 1, delta: bool = False, *, tags: Any = None, **_: Any) -> None:
        """Set a gauge."""

    @classmethod
    def timing(cls, stat: str, dt: Any, *, tags: Any = None, **_: Any) -> None:
        """Take a length of time."""

    @classmethod
    def timer(cls, stat: str | None = None, *args: Any, tags: Any = None, **_: Any) -> Timer:
        """Return a timer."""
        return Timer()


incr, decr, gauge, timing, timer = Stats.incr, Stats.decr, Stats.gauge, Stats.timing, Stats.timer
