"""Stats: tasks and providers may count and measure. Their figures are discarded; the scheduler has its own metrics."""

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
        self._since = _milliseconds()
        return self

    def stop(self, send: bool = True) -> None:
        """End the measurement."""
        del send
        self.duration = _milliseconds() - self._since

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()


def _milliseconds() -> float:
    from time import perf_counter  # noqa: TID251 - user code's own time, on the machine's clock

    return 1000 * perf_counter()


class Stats:
    """Accepts figures, and discards them."""

    @staticmethod
    def incr(*_figure: Any, **_options: Any) -> None:
        """Add to a counter."""

    @staticmethod
    def decr(*_figure: Any, **_options: Any) -> None:
        """Subtract from a counter."""

    @staticmethod
    def gauge(*_figure: Any, **_options: Any) -> None:
        """Set a gauge."""

    @staticmethod
    def timing(*_figure: Any, **_options: Any) -> None:
        """Report a length of time."""

    @staticmethod
    def timer(*_figure: Any, **_options: Any) -> Timer:
        """Return a timer."""
        return Timer()


incr, decr, gauge, timing, timer = Stats.incr, Stats.decr, Stats.gauge, Stats.timing, Stats.timer
