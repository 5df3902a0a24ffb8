"""What a timetable is: a pure function from the last run and the time to the next run."""

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, ClassVar, NamedTuple


class DataInterval(NamedTuple):
    """Half-open [start, end), aware UTC."""

    start: datetime
    end: datetime


class DagRunInfo(NamedTuple):
    """A run to be created at `run_after`."""

    logical_date: datetime
    data_interval: DataInterval
    run_after: datetime


class TimeRestriction(NamedTuple):
    """The bounds of a schedule, aware UTC: the DAG's start and end dates, and whether missed runs are made up for."""

    earliest: datetime | None
    latest: datetime | None
    catchup: bool


class Timetable(ABC):
    """When a DAG runs. Instances are immutable values.

    Attributes:
        kind: Name of the class in the serialized form.
        can_be_scheduled: Whether it ever gives a run.
        active_runs_limit: Most runs at once that make sense, None for no limit.
    """

    kind: ClassVar[str]
    can_be_scheduled: bool = True
    active_runs_limit: int | None = None

    @abstractmethod
    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction, now: datetime
    ) -> DagRunInfo | None:
        """Return the next run, or None when there is none.

        Args:
            last_automated_data_interval: That of the newest scheduled run; None for a new DAG.
            restriction: Start, end, catchup.
            now: Aware UTC. Never read from the system's clock here.

        Returns:
            The run, whether it is due already (`run_after` <= now) or later.

        Raises:
            TimetableError: The expression has no future match.
        """

    @abstractmethod
    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """Return the data interval of a run that somebody triggers at `run_after`."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Short text for a list, e.g. the cron expression."""

    @property
    def description(self) -> str:
        """A sentence for a person; empty when there is none."""
        return ""

    @abstractmethod
    def serialize(self) -> dict[str, Any]:
        """Return `kind` and the fields that make an equal instance, as JSON values."""

    def __eq__(self, other: object) -> bool:
        return self.serialize() == other.serialize() if isinstance(other, Timetable) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.kind, self.summary))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"
