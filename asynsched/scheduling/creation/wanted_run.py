"""A run that somebody wants, before it is created."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from asynsched.serialization.schema import TimetableQuestion
from asynsched.states import DagRunType
from asynsched.timetables import DataInterval


class Trigger(Struct, frozen=True, kw_only=True):
    """A run that somebody wants.

    Attributes:
        run_id: By default as an author's own timetable says, or `manual__` and the earliest start; of a run that a
            task's operator triggers, the logical date instead. With a number if that is taken.
        logical_date: By default the present instant, or the next one that no other run has.
        has_logical_date: Whether a run without a given date has a logical date and a data interval at all.
        interval: By default as an author's own timetable says, or inferred by the timetable.
        conf: Overrides the DAG's params, and must fit their schemas.
        note: Empty: none.
        partition_key: The partition that the run is for, if the DAG is scheduled by partitions.
        run_after: The earliest start; None: at once.
    """

    run_id: str | None = None
    logical_date: datetime | None = None
    has_logical_date: bool = True
    interval: DataInterval | None = None
    conf: Mapping[str, Any] = {}
    note: str = ""
    partition_key: str | None = None
    run_type: DagRunType = DagRunType.MANUAL
    run_after: datetime | None = None

    def date(self, now: datetime) -> datetime | None:
        """Return the logical date of the run if it is created now; None: it has none."""
        return self.logical_date or (now if self.has_logical_date else None)

    def question(self, now: datetime) -> TimetableQuestion:
        """Return the question to an author's own timetable or mappers, which is asked as of the run's date."""
        return TimetableQuestion.about_run(
            now, run_id=self.run_id, run_type=self.run_type, date=self.date(now), run_after=self.run_after,
            interval=self.interval, partition_key=self.partition_key,
        )  # fmt: skip
