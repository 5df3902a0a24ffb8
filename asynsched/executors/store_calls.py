"""Blocking calls of the store of logs, which may hang."""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter

from asynsched.clock import Clock
from asynsched.executors.own_threads import in_own_thread
from asynsched.service import Pulse

T = TypeVar("T")
THREAD = "store of logs"
"""The name of their threads."""


class StoreCalls:
    """The calls of one service, at most `at_once`. While one is under way, the service does not count as stuck."""

    def __init__(self, pulse: Pulse, clock: Clock, at_once: int) -> None:
        self._pulse = pulse
        self._clock = clock
        self._limiter = CapacityLimiter(at_once)
        self._began: dict[object, float] = {}

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest call has been under way; 0 without any. For any thread."""
        return max((self._clock.monotonic() - began_at for began_at in tuple(self._began.values())), default=0.0)

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a blocking call, or raise its error."""
        call = object()
        self._began[call] = self._clock.monotonic()
        try:
            with self._pulse.outside():
                return await in_own_thread(work, self._limiter, THREAD)
        finally:
            del self._began[call]
