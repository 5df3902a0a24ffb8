"""What is due at an instant: a heap, so that what is not due costs nothing."""

import heapq
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Subjects and the instants at which they are due; of the same instant, the one armed first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, T]] = []
        self._numbers = count()

    def arm(self, at: datetime, subject: T) -> None:
        """Have a subject be due at an instant."""
        heapq.heappush(self._heap, (at, next(self._numbers), subject))

    def due(self, now: datetime) -> Iterator[T]:
        """Yield what is due, and forget it."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def next_at(self) -> datetime | None:
        """When the earliest is due."""
        return self._heap[0][0] if self._heap else None
