"""The next runs that a DAG's schedule makes."""

from datetime import datetime
from itertools import islice
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.queries.context import QueryContext
from asynsched.queries.own_timetables import ask_timetable
from asynsched.scheduling.creation.scheduled_runs import MAX_EXISTING, runs_after
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import ParsedDag, SerializedDag, TimetableQuestion
from asynsched.store.dags.dags import find_dag, get_version
from asynsched.store.runs.dag_runs import dates_after, last_run_of_partitions, last_scheduled_run
from asynsched.timetables import CronPartitionTimetable, CustomTimetable, DagRunInfo, KnownTimetable, PlannedRun, decode

MOST_UPCOMING = 1000
"""Runs of one answer."""


class UpcomingRun(Struct, frozen=True):
    """A run that a schedule will make, due or not. `partition_key` is that of a schedule by partitions."""

    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    run_after: datetime
    partition_key: str | None = None
    partition_date: datetime | None = None


class StoredSchedule(NamedTuple):
    """A DAG's schedule, and where it stands.

    Attributes:
        last: Its newest scheduled run.
        made: The logical dates after it that have a run, such as one that was triggered for its date: the scheduler
            passes over these.
    """

    dag: SerializedDag
    file: str
    timetable: KnownTimetable
    last: DagRunInfo | None
    made: frozenset[datetime]

    @property
    def is_asked(self) -> bool:
        """Whether it is code of its DAG file, which must be asked."""
        return isinstance(self.timetable, CustomTimetable)

    @property
    def is_by_partitions(self) -> bool:
        return isinstance(self.timetable, CronPartitionTimetable)

    def question(self, n: int) -> TimetableQuestion:
        """Return the question to an author's own timetable about its next runs."""
        return TimetableQuestion(last=None if self.last is None else PlannedRun.of(self.last), n_runs=n)

    def next_runs(self, n: int, now: datetime, answer: ParsedDag | None = None) -> list[UpcomingRun]:
        """Return the next runs, computed as if the clock stood at `now`. Raises TimetableError.

        Args:
            answer: Of an author's own timetable.
        """
        timetable = self.timetable
        if isinstance(timetable, CustomTimetable):
            timetable = timetable.planned(None if answer is None else answer.plan)
        coming = runs_after(self.dag, timetable, None if self.last is None else self.last.data_interval, now)
        return [_upcoming(info) for info in islice((info for info in coming if self._is_open(info)), n)]

    def _is_open(self, info: DagRunInfo) -> bool:
        return info.partition_key is not None or info.logical_date not in self.made


def read_schedule(conn: Connection, dag_id: str) -> StoredSchedule:
    """Return the schedule of an active DAG. Raises NotFound."""
    row = find_dag(conn, dag_id)
    dag = decode_dag(get_version(conn, row.version_id or 0).serialized)
    timetable = decode(dag.timetable)
    if isinstance(timetable, CronPartitionTimetable):
        interval = last_run_of_partitions(conn, dag_id)
        last = None if interval is None else DagRunInfo(interval.end, interval)
    else:
        last = last_scheduled_run(conn, dag_id)
    made = dates_after(conn, dag_id, None if last is None else last.logical_date, MAX_EXISTING)
    return StoredSchedule(dag, row.file_path, timetable, last, made)


async def upcoming(
    context: QueryContext, dag_id: str, n: int = 1, *, now: datetime | None = None
) -> tuple[UpcomingRun, ...]:
    """Return the runs that the scheduler would create next if the clock stood still; also of a paused DAG.

    Args:
        n: How many, MOST_UPCOMING at most.
        now: As if it were that instant.

    Raises:
        NotFound: There is no such DAG.
        DagError: Its schedule cannot be computed; an author's own timetable has no answer.
    """
    at, n = now or context.clock.now(), min(n, MOST_UPCOMING)
    schedule = await context.ask(read_schedule, dag_id)
    answer = None
    if schedule.is_asked:
        answer = await ask_timetable(context, schedule.file, dag_id, schedule.question(n), at)
    return tuple(await run_sync(schedule.next_runs, n, at, answer))


def _upcoming(info: DagRunInfo) -> UpcomingRun:
    return UpcomingRun(
        info.logical_date, info.data_interval.start, info.data_interval.end, info.run_after, info.partition_key,
        info.partition_date,
    )  # fmt: skip
