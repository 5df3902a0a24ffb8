"""Which run of a DAG comes next: pure functions of its schedule, its last run and the time."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from asynsched.serialization.schedule_bounds import restriction
from asynsched.serialization.schema import SerializedDag
from asynsched.timetables import DagRunInfo, DataInterval, KnownTimetable, decode


def next_run(
    dag: SerializedDag, *, last: DataInterval | None, now: datetime, timetable: KnownTimetable | None = None
) -> DagRunInfo | None:
    """Return the run that follows `last`, due or not; None when there is none.

    Raises:
        TimetableError: The schedule has no future match, is invalid, or leads out of the calendar.
    """
    return (timetable or decode(dag.timetable)).next_run(last, restriction(dag), now)


def upcoming_runs(
    dag: SerializedDag,
    *,
    last: DataInterval | None,
    now: datetime,
    n: int,
    timetable: KnownTimetable | None = None,
) -> list[DagRunInfo]:
    """Return the next `n` runs at most, were the clock to stand still at `now`. Raises TimetableError."""
    return list(islice(_runs(dag, last, now, timetable or decode(dag.timetable)), n))


def _runs(
    dag: SerializedDag, last: DataInterval | None, now: datetime, timetable: KnownTimetable
) -> Iterator[DagRunInfo]:
    while (info := next_run(dag, last=last, now=now, timetable=timetable)) is not None:
        yield info
        last = info.data_interval
