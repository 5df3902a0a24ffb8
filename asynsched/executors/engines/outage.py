"""Calls of a service that may be away: after one that was not answered, others fail at once for a while.

Otherwise each job of a pass would wait for the whole time limit, one after another.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from asynsched.clock import Clock

T = TypeVar("T")
QUIET_SECONDS = 15.0
"""How long a service that has not answered is not called again."""


class Patience:
    """How long calls of a service may take.

    Args:
        service: Its name, for people.
        seconds: The time limit of one call.
    """

    def __init__(self, clock: Clock, service: str, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._usual = self._said = f"{service} has not answered for {seconds:.0f} s"
        self._quiet_until = -1.0

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call.

        Raises:
            TimeoutError: The service does not answer, or has just not answered. A call may raise it itself.
        """
        if self._clock.monotonic() < self._quiet_until:
            raise TimeoutError(self._said)
        try:
            with anyio.fail_after(self._seconds):
                return await call()
        except TimeoutError as exc:
            self._quiet_until = self._clock.monotonic() + QUIET_SECONDS
            self._said = str(exc) or self._usual
            raise TimeoutError(self._said) from exc
