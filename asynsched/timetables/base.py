"""What a timetable is: an answer to the question which run comes next, with Airflow's names."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple, Self

from asynsched.errors import TimetableError


class DataInterval(NamedTuple):
    """Half-open [start, end), aware UTC."""

    start: datetime
    end: datetime

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return the empty interval at an instant."""
        return cls(at, at)


class DagRunInfo(NamedTuple):
    """A run to be created at `run_after`."""

    run_after: datetime
    data_interval: DataInterval

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return the run at an instant, about nothing but that instant."""
        return cls(at, DataInterval(at, at))

    @classmethod
    def interval(cls, start: datetime, end: datetime) -> Self:
        """Return the run at the end of an interval, about that interval."""
        return cls(end, DataInterval(start, end))

    @property
    def logical_date(self) -> datetime:
        """What the run is named after: the start of its data interval."""
        return self.data_interval.start


class TimeRestriction(NamedTuple):
    """The bounds of a schedule, aware UTC: the first and the last date, and whether missed runs are made up for.

    `catchup` of True makes up for all missed runs, `"latest"` for the newest of them. False does what Airflow does:
    most timetables make up for the newest, `EventsTimetable` for none.
    """

    earliest: datetime | None
    latest: datetime | None
    catchup: bool | Literal["latest"]


class Timetable:
    """When a DAG runs. An author's own timetable is a subclass of this or of another timetable.

    It must answer `next_dagrun_info`, and `infer_manual_data_interval` if the DAG is to be triggered by hand. The code
    of such a class never runs in the scheduler: the confined process that parses its DAG file asks it for the next
    runs, ahead of time. Instances are immutable values.

    Attributes:
        description: A sentence for a person; empty when there is none.
        can_be_scheduled: Whether it ever gives a run.
        active_runs_limit: Most runs at once that make sense, None for no limit.
    """

    can_be_scheduled: bool = True
    active_runs_limit: int | None = None

    @property
    def description(self) -> str:
        """A sentence for a person; empty when there is none."""
        return ""

    @property
    def summary(self) -> str:
        """Short text for a list, e.g. the cron expression."""
        return type(self).__name__

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next run, whether it is due already or later; None when there is none.

        Args:
            last_automated_data_interval: That of the newest scheduled run; None for a new DAG.
            restriction: First and last date, catchup.
        """
        raise NotImplementedError(f"{type(self).__name__} has no next_dagrun_info")

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Return the data interval of a run that somebody triggers at `run_after`."""
        raise NotImplementedError(f"{type(self).__name__} has no infer_manual_data_interval")

    def validate(self) -> None:
        """Raise an exception if the timetable makes no sense; called once when the DAG is made."""

    def serialize(self) -> dict[str, Any]:
        """Return what tells this instance from others of its class, as JSON values."""
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"


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
