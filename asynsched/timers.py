"""Timers: subjects with the times at which they are due, in a heap."""

import heapq
from collections.abc import Hashable, Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Generic, TypeVar

When = TypeVar("When", float, datetime)
Subject = TypeVar("Subject", bound=Hashable)

FEW = 64
"""The number of disarmed entries that are always tolerated."""


def has_come(at: datetime | None, now: datetime, longest: timedelta) -> bool:
    """Return whether the time has come for what was planned `longest` ahead at most; None: for now.

    If the wall clock was set back since, the plan is further ahead than that, and nothing waits for it.
    """
    return at is None or not now < at <= now + longest


class Timers(Generic[When, Subject]):
    """Subjects that are each due at one time. Subjects due at the same time come in the order in which they were armed.

    A disarmed entry stays in the heap until it is due, or until most entries are disarmed and the heap is rebuilt. So
    operations take logarithmic time on average, and memory is proportional to the number of armed subjects.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[When, int, Subject]] = []
        self._armed: dict[Subject, int] = {}
        """The number of each subject's current entry."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, at: When, subject: Subject) -> None:
        """Arm a subject for a time, which replaces its previous time."""
        number = self._armed[subject] = next(self._numbers)
        heapq.heappush(self._heap, (at, number, subject))
        self._tidy()

    def disarm(self, subject: Subject) -> None:
        if self._armed.pop(subject, None) is not None:
            self._tidy()

    def due(self, now: When) -> Iterator[Subject]:
        """Yield the subjects that are due, and disarm them."""
        while (at := self.next_at) is not None and at <= now:
            subject = heapq.heappop(self._heap)[2]
            del self._armed[subject]
            yield subject

    @property
    def next_at(self) -> When | None:
        """The time of the earliest subject; None without subjects."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._armed) + FEW:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[When, int, Subject]) -> bool:
        return self._armed.get(entry[2]) == entry[1]
