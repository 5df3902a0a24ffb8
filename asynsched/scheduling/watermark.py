"""Until when everything that was reported is stored: whoever judges the past waits for that."""

from collections.abc import Callable

import anyio


class Watermark:
    """An instant of the monotonic clock that only rises, and that others wait for.

    Args:
        ask: Has it rise soon, up to the present moment.

    Attributes:
        at: Everything that was reported until then is stored.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self.at = float("-inf")
        self._has_risen = anyio.Event()

    def rise(self, at: float) -> None:
        """Take note that everything is stored that was reported until `at`."""
        if at > self.at:
            self.at = at
            self._has_risen.set()
            self._has_risen = anyio.Event()

    async def reach(self, at: float) -> None:
        """Wait until it is at that instant, or later."""
        while self.at < at:
            self._ask()
            await self._has_risen.wait()
