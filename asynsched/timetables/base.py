"""Timetables determine when the next run of a DAG is due. The classes and methods have Airflow's names.

asynsched's own timetables are pure functions of time: the current time is an argument. A user's class that extends one
of them calls `super().next_dagrun_info(...)` without that argument, as in Airflow; the time of the call to the user's
class is used then.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, NamedTuple, Self

from asynsched.errors import TimetableError
from asynsched.states import DagRunType

PUNCTUAL = timedelta(minutes=1)
"""If a run that was planned in advance is later than this, the timetable is asked again, unless `catchup=True`."""
A_MOMENT = timedelta(seconds=5)
"""If nothing holds it up, a run is created at most this long after it is due."""


class DataInterval(NamedTuple):
    """The half-open interval [start, end); both ends are aware, in UTC."""

    start: datetime
    end: datetime

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return the empty interval at an instant."""
        return cls(at, at)


class DagRunInfo(NamedTuple):
    """A run to be created at `run_after`; one of a partition has its key, and the date that the key stands for.

    `run_id` is empty unless an author's timetable has given the run a name.
    """

    run_after: datetime
    data_interval: DataInterval
    partition_date: datetime | None = None
    partition_key: str | None = None
    run_id: str = ""

    @classmethod
    def exact(cls, at: datetime) -> Self:
        """Return the run at an instant, with an empty data interval."""
        return cls(at, DataInterval(at, at))

    @classmethod
    def interval(cls, start: datetime, end: datetime) -> Self:
        """Return the run at the end of a data interval."""
        return cls(end, DataInterval(start, end))

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval, after which the run is named; None if an author's run has no interval."""
        return self.data_interval and self.data_interval.start


class TimeRestriction(NamedTuple):
    """The bounds of a schedule: the earliest and latest date, aware, in UTC, and which missed runs to make.

    With `catchup=True` all missed runs are made, with `"latest"` only the newest. False is as in Airflow: most
    timetables make the newest missed run, `EventsTimetable` none.
    """

    earliest: datetime | None
    latest: datetime | None
    catchup: bool | Literal["latest"]


class Timetable:
    """Determines when a DAG runs. For your own timetable, subclass this or another timetable.

    A subclass implements `next_dagrun_info` (or `next_dagrun_info_v2`), and `infer_manual_data_interval` if the DAG can
    be triggered manually. Its code never runs in the scheduler: the confined process that parses the DAG file asks it
    for the next runs in advance. Instances must be immutable.

    Attributes:
        periodic: Whether it returns runs again and again; otherwise, its DAG cannot be backfilled.
        can_be_scheduled: Whether the timetable ever returns a run.
        active_runs_limit: The largest sensible number of simultaneous runs; None for no limit.
    """

    periodic: bool = True
    can_be_scheduled: bool = True
    active_runs_limit: int | None = None

    @property
    def description(self) -> str:
        """A sentence for people; empty by default."""
        return ""

    @property
    def summary(self) -> str:
        """A short form for lists, e.g. the cron expression."""
        return type(self).__name__

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next run, due or not; None if no run follows.

        Args:
            last_automated_data_interval: The data interval of the newest scheduled run; None for a new DAG.
            restriction: The earliest and latest date, and catchup.
        """
        raise NotImplementedError(f"{type(self).__name__} has no next_dagrun_info")

    def next_dagrun_info_v2(
        self, *, last_dagrun_info: DagRunInfo | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next run, due or not; None if no run follows. A subclass may implement this method alone.

        Args:
            last_dagrun_info: The newest scheduled run; None for a new DAG.
            restriction: The earliest and latest date, and catchup.
        """
        last = None if last_dagrun_info is None else last_dagrun_info.data_interval
        return self.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Return the data interval of a run that is triggered manually at `run_after`."""
        raise NotImplementedError(f"{type(self).__name__} has no infer_manual_data_interval")

    def generate_run_id(
        self, *, run_type: DagRunType, run_after: datetime, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        """Return the name of a run of the schedule, or of one that is triggered without a name.

        Args:
            run_after: The earliest start.
            data_interval: None: the run has none.
            extra: For a run of the schedule, `partition_key`, which is None.
        """
        return DagRunType(run_type).generate_run_id(suffix=run_after.isoformat())

    def validate(self) -> None:
        """Raise an exception if the timetable is invalid; called once, when the DAG is made."""

    def serialize(self) -> dict[str, Any]:
        """Return the fields that distinguish this instance from others of its class, as JSON values."""
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"


_asked_at: ContextVar[datetime | None] = ContextVar("asked_at", default=None)


@contextmanager
def asked_at(now: datetime) -> Iterator[None]:
    """Within this context, timetables that are asked without a time use `now` (aware, in UTC)."""
    token = _asked_at.set(now)
    try:
        yield
    finally:
        _asked_at.reset(token)


def _for_authors(instant: datetime) -> datetime:
    """Return an instant as a pendulum DateTime, whose methods authors' timetables call."""
    import pendulum  # only in processes that run user code

    return pendulum.instance(instant)


class KnownTimetable(Timetable, ABC):
    """A timetable of asynsched; `kind` is the name of its class in the serialized form.

    The scheduler calls `next_run` and `manual_interval`, or gives the time, and computes with plain datetimes. An
    author's class, which calls the methods that Airflow has, gets pendulum DateTimes.
    """

    kind: ClassVar[str]

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
        now: datetime | None = None,
    ) -> DagRunInfo | None:
        """Return the next run as of `now`, aware, in UTC, which is never read from the system clock here.

        Raises TimetableError if the schedule has no future run, or there is no `now`.
        """
        moment = now or _asked_at.get()
        if moment is None:
            raise TimetableError(f"{type(self).__name__}.next_dagrun_info needs the current time: pass now=…")
        info = self.next_run(last_automated_data_interval, restriction, moment)
        if now is not None or info is None:
            return info
        return DagRunInfo(
            _for_authors(info.run_after), DataInterval(*map(_for_authors, info.data_interval)),
            None if info.partition_date is None else _for_authors(info.partition_date), info.partition_key,
        )  # fmt: skip

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        interval = self.manual_interval(run_after)
        return interval if _asked_at.get() is None else DataInterval(*map(_for_authors, interval))

    def lateness_ignored(self, last: DataInterval | None) -> timedelta:
        """Return how late it may be asked for an announced run that follows `last` as if it were asked in time.

        Without catchup, some schedules answer even a moment later with another run, or with none.
        """
        return timedelta()

    @abstractmethod
    def next_run(self, last: DataInterval | None, restriction: TimeRestriction, now: datetime) -> DagRunInfo | None:
        """See `next_dagrun_info`."""

    @abstractmethod
    def manual_interval(self, run_after: datetime) -> DataInterval:
        """See `infer_manual_data_interval`."""

    @abstractmethod
    def serialize(self) -> dict[str, Any]:
        """Return `kind` and the fields that make an equal instance, as JSON values."""

    def __eq__(self, other: object) -> bool:
        return self.serialize() == other.serialize() if isinstance(other, KnownTimetable) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.kind, self.summary))
