"""Slices of long work in memory, between which the event loop serves other tasks."""

from collections.abc import Iterable
from typing import TypeVar

from anyio.lowlevel import checkpoint

T = TypeVar("T")
AT_ONCE = 500
"""How many task instances are made, decided about, looked at or written between two pauses: a few milliseconds."""


class Slices:
    """Counts the steps of successive pieces of work, and pauses every AT_ONCE steps."""

    def __init__(self) -> None:
        self._left = AT_ONCE

    async def take(self, steps: Iterable[T]) -> list[T]:
        """Take all steps, and return their values. After a cancellation, the remaining steps are not taken."""
        given = []
        for step in steps:
            given.append(step)
            await self.step_done()
        return given

    async def step_done(self) -> None:
        """Count a step, and pause if it was the last of its slice."""
        self._left -= 1
        if self._left <= 0:
            await checkpoint()
            self._left = AT_ONCE
