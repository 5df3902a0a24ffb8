"""Which run of a DAG comes next: pure functions of its schedule, its last run and the time."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from asynsched.serialization.schema import SerializedDag
from asynsched.timetables import DagRunInfo, DataInterval, TimeRestriction, Timetable, decode


def restriction(dag: SerializedDag) -> TimeRestriction:
    """Return the bounds of a DAG's schedule: its dates, or the earliest of its tasks' where it has none."""
    starts = [task.start_date for task in dag.tasks if task.start_date is not None]
    earliest = dag.start_date or min(starts, default=None)
    return TimeRestriction(earliest=earliest, latest=dag.end_date, catchup=bool(dag.catchup))


def next_run(
    dag: SerializedDag, *, last: DataInterval | None, now: datetime, timetable: Timetable | None = None
) -> DagRunInfo | None:
    """Return the run that follows `last`, due or not; None when there is none.

    Raises:
        TimetableError: The schedule has no future match, or is invalid.
    """
    timetable = timetable or decode(dag.timetable)
    return timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction(dag), now=now)


def upcoming_runs(dag: SerializedDag, *, last: DataInterval | None, now: datetime, n: int) -> list[DagRunInfo]:
    """Return the next `n` runs at most, were the clock to stand still at `now`."""
    return list(islice(_runs(dag, last, now), n))


def _runs(dag: SerializedDag, last: DataInterval | None, now: datetime) -> Iterator[DagRunInfo]:
    timetable = decode(dag.timetable)
    while (info := next_run(dag, last=last, now=now, timetable=timetable)) is not None:
        yield info
        last = info.data_interval
