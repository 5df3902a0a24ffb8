"""Subjects and when they are due: a heap, so that waiting costs nothing, and disarmed subjects are soon forgotten."""

import heapq
from collections.abc import Hashable, Iterator
from datetime import datetime
from itertools import count
from typing import Generic, TypeVar

When = TypeVar("When", float, datetime)
Subject = TypeVar("Subject", bound=Hashable)

FEW = 64
"""Up to this many disarmed entries are kept, however few others there are."""


class Timers(Generic[When, Subject]):
    """Subjects and when each is due, once; those that are due together in the order in which they were armed.

    An entry that was disarmed stays in the heap until it is due, or until most entries are such: then the heap is made
    anew of the others. So an operation takes logarithmic time on average, and memory follows what is armed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[When, int, Subject]] = []
        self._armed: dict[Subject, int] = {}
        """By subject, the number of the entry that counts."""
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, at: When, subject: Subject) -> None:
        """Arm a subject for a time; an earlier time of it no longer counts."""
        number = self._armed[subject] = next(self._numbers)
        heapq.heappush(self._heap, (at, number, subject))
        self._tidy()

    def disarm(self, subject: Subject) -> None:
        """Disarm a subject; one that is not armed stays so."""
        if self._armed.pop(subject, None) is not None:
            self._tidy()

    def due(self, now: When) -> Iterator[Subject]:
        """Yield the subjects that are due, and forget them."""
        while (at := self.next_at) is not None and at <= now:
            subject = heapq.heappop(self._heap)[2]
            del self._armed[subject]
            yield subject

    @property
    def next_at(self) -> When | None:
        """When the earliest is due; None when there is none."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._armed) + FEW:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[When, int, Subject]) -> bool:
        return self._armed.get(entry[2]) == entry[1]
