"""Slices of long work in memory, between which the event loop serves other tasks."""

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from anyio.lowlevel import checkpoint

from asynsched.scheduling.evaluation.evaluation import Evaluation

T = TypeVar("T")
AT_ONCE = 500
"""How many task instances are made, decided about or written between two pauses: a few milliseconds of work."""


async def decide_all(evaluation: Evaluation, now: datetime) -> None:
    """Make all decisions that follow from the events so far, with pauses."""
    while evaluation.has_undecided:
        await checkpoint()
        evaluation.go_on(now)


class Slices:
    """Counts the steps of successive pieces of work, and pauses every AT_ONCE steps."""

    def __init__(self) -> None:
        self._left = AT_ONCE

    async def take(self, steps: Iterable[T]) -> list[T]:
        """Take all steps, and return their values. After a cancellation, the remaining steps are not taken."""
        given = []
        for step in steps:
            given.append(step)
            self._left -= 1
            if self._left <= 0:
                await checkpoint()
                self._left = AT_ONCE
        return given
