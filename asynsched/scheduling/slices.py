"""Work in memory that may be long is done in slices, between which the event loop serves others."""

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from anyio.lowlevel import checkpoint

from asynsched.scheduling.evaluation.evaluation import Evaluation

T = TypeVar("T")
AT_ONCE = 500
"""Task instances that are made, decided about or written between two pauses: a few milliseconds."""


async def settle(evaluation: Evaluation, now: datetime) -> None:
    """Decide all that follows from what has happened, with pauses."""
    while evaluation.is_unsettled:
        await checkpoint()
        evaluation.go_on(now)


class Slices:
    """Counts steps, of one piece of work after the other, and pauses now and then."""

    def __init__(self) -> None:
        self._left = AT_ONCE

    async def take(self, steps: Iterable[T]) -> list[T]:
        """Take all steps, and return what they give. When this is cancelled, the rest of them is not taken."""
        given = []
        for step in steps:
            given.append(step)
            self._left -= 1
            if self._left <= 0:
                await checkpoint()
                self._left = AT_ONCE
        return given
