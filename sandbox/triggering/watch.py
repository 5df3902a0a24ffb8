"""Interrupts a trigger that blocks the event loop of all others, where it stands."""

import selectors
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TriggerBlocked(BaseException):
    """Raised in code that has held the event loop for too long; no `except Exception` hides it."""


class WatchfulSelector(selectors.DefaultSelector):
    """A selector that has an alarm run while its loop is not waiting.

    Args:
        limit: Seconds that code may hold the loop without giving it back.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit
        signal.signal(signal.SIGALRM, self._interrupt)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return super().select(timeout)
        finally:
            # It repeats: code that catches the first interruption, and goes on, gets another one.
            signal.setitimer(signal.ITIMER_REAL, self._limit, self._limit)

    def close(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().close()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        raise TriggerBlocked(f"it blocked the event loop for {self._limit:g} s: await, or use asyncio.to_thread")


@contextmanager
def not_watched() -> Iterator[None]:
    """Let the main thread wait in here for as long as it takes: what it waits for is not a trigger's doing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
