"""The circuit breaker of a service that may be away: after a call that was not answered, others fail for a while.

Otherwise each job of a pass would wait for the whole time limit, one after another.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from asynsched.clock import Clock

T = TypeVar("T")
OPEN_SECONDS = 15.0
"""How long a service that has not answered is not called again."""


class CircuitBreaker:
    """Calls a service, each time for a limited time.

    Args:
        service: Its name, for people.
        timeout_seconds: The time limit of one call.
    """

    def __init__(self, clock: Clock, service: str, timeout_seconds: float) -> None:
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._usual = self._said = f"{service} has not answered for {timeout_seconds:.0f} s"
        self._open_until = -1.0

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call.

        Raises:
            TimeoutError: The service does not answer, or has just not answered. A call may raise it itself.
        """
        if self._clock.monotonic() < self._open_until:
            raise TimeoutError(self._said)
        try:
            with anyio.fail_after(self._timeout_seconds):
                return await call()
        except TimeoutError as exc:
            self._open_until = self._clock.monotonic() + OPEN_SECONDS
            self._said = str(exc) or self._usual
            raise TimeoutError(self._said) from exc
