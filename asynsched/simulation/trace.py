"""What happened in a simulation: its runs, their tasks and tries, as plain values without ids of rows or tokens."""

from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

from msgspec import Struct
from sqlalchemy import Connection

from asynsched.store.runs.task_instances import WholeRun, all_runs
from asynsched.store.schema import HistoryRow, TaskInstanceRow

T = TypeVar("T", bound=Struct)


class TryTrace(Struct, frozen=True):
    """An earlier try of a task instance."""

    try_number: int
    state: str | None
    reason: str
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None


class TaskTrace(Struct, frozen=True):
    """A task instance, with its newest try and the earlier ones. No state: nobody has looked at it yet."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None
    reason: str
    scheduled_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    pool: str
    pool_slots: int
    earlier_tries: tuple[TryTrace, ...] = ()

    @property
    def tries(self) -> tuple[TryTrace, ...]:
        """Every try that was queued, oldest first. One that waits for its retry is an earlier one already."""
        is_told = bool(self.earlier_tries) and self.earlier_tries[-1].queued_at == self.queued_at
        if self.queued_at is None or is_told:
            return self.earlier_tries
        newest = TryTrace(self.try_number, self.state, self.reason, self.queued_at, self.started_at, self.ended_at)
        return (*self.earlier_tries, newest)


class RunTrace(Struct, frozen=True):
    """A DAG run and its task instances, in the order in which they were queued."""

    dag_id: str
    run_id: str
    run_type: str
    state: str
    reason: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    tasks: tuple[TaskTrace, ...]


def read_trace(conn: Connection, *, without: Collection[int] = ()) -> tuple[RunTrace, ...]:
    """Return all runs, in the order in which they were due, but those whose row ids are named."""
    return tuple(_run(whole) for whole in all_runs(conn) if whole.run.id not in without)


def _run(whole: WholeRun) -> RunTrace:
    tasks = tuple(_task(row, whole.tries.get((row.task_id, row.map_index), ())) for row in whole.tasks)
    return _without_ids(RunTrace, whole.run, tasks=tasks)


def _task(row: TaskInstanceRow, earlier: Collection[HistoryRow]) -> TaskTrace:
    return _without_ids(TaskTrace, row, earlier_tries=tuple(_without_ids(TryTrace, one) for one in earlier))


def _without_ids(trace: type[T], row: Struct, **parts: object) -> T:
    """Return what a trace has of a row, which names it alike, beside these parts."""
    names = (name for name in trace.__struct_fields__ if name not in parts)
    return trace(**{name: getattr(row, name) for name in names}, **parts)
