"""Timetables that the scheduler can make and ask itself: pure functions of time.

The time is an argument. An author's class that extends one of them calls `super().next_dagrun_info(...)` without it, as
in Airflow; what is then meant is the time at which that class itself was asked.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar

from asynsched.errors import TimetableError
from asynsched.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

_asked_at: ContextVar[datetime | None] = ContextVar("asked_at", default=None)


@contextmanager
def asked_at(now: datetime) -> Iterator[None]:
    """Answer questions that do not say what time it is as if it were `now`, aware UTC."""
    token = _asked_at.set(now)
    try:
        yield
    finally:
        _asked_at.reset(token)


class KnownTimetable(Timetable, ABC):
    """A timetable of asynsched's own.

    Attributes:
        kind: Name of the class in the serialized form.
    """

    kind: ClassVar[str]

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
        now: datetime | None = None,
    ) -> DagRunInfo | None:
        """Return the next run, whether it is due already or later; None when there is none.

        Args:
            last_automated_data_interval: That of the newest scheduled run; None for a new DAG.
            restriction: First and last date, catchup.
            now: Aware UTC. Never read from the system's clock here.

        Raises:
            TimetableError: The expression has no future match.
        """
        moment = now or _asked_at.get()
        if moment is None:
            raise TimetableError(f"{type(self).__name__}.next_dagrun_info must be told what time it is: pass now=…")
        return self.next_run(last_automated_data_interval, restriction, moment)

    @abstractmethod
    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        """See `next_dagrun_info`."""

    @abstractmethod
    def serialize(self) -> dict[str, Any]:
        """Return `kind` and the fields that make an equal instance, as JSON values."""

    def __eq__(self, other: object) -> bool:
        return self.serialize() == other.serialize() if isinstance(other, KnownTimetable) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.kind, self.summary))
