"""The results of a simulation: runs, tasks, tries and the use of pools, as plain values without row ids."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple, TypeVar

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
    """A task instance with its newest try and the earlier ones. Its state is None before it is scheduled."""

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
        """Every try that was queued, oldest first. A try that waits for its retry counts as an earlier one."""
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
    """Return all runs, in the order in which they were due, except the runs with these row ids."""
    return tuple(_run(whole) for whole in all_runs(conn) if whole.run.id not in without)


def _run(whole: WholeRun) -> RunTrace:
    tasks = tuple(_task(row, whole.tries.get((row.task_id, row.map_index), ())) for row in whole.tasks)
    return _without_ids(RunTrace, whole.run, tasks=tasks)


def _task(row: TaskInstanceRow, earlier: Collection[HistoryRow]) -> TaskTrace:
    return _without_ids(TaskTrace, row, earlier_tries=tuple(_without_ids(TryTrace, one) for one in earlier))


def _without_ids(trace: type[T], row: Struct, **parts: object) -> T:
    """Return a trace made of the fields of a row that have the same names, and of these parts."""
    names = (name for name in trace.__struct_fields__ if name not in parts)
    return trace(**{name: getattr(row, name) for name in names}, **parts)


class SlotsAt(Struct, frozen=True):
    """The number of slots taken from an instant on."""

    at: datetime
    slots: int


class PoolUse(Struct, frozen=True):
    """The use of one pool.

    Attributes:
        slots: The slots of the pool; -1 means no limit.
        peak: The most slots taken at once, for the first time at `peak_at`.
        mean: The average number of slots taken.
        full_seconds: How long no slot was free.
        n_waited: Tasks that were ready and had to wait, for this pool or for another limit.
        longest_wait_seconds: The longest such wait.
        steps: The use over time: one entry for each change.
    """

    pool: str
    slots: int
    peak: int
    peak_at: datetime | None
    mean: float
    full_seconds: float
    n_waited: int
    longest_wait_seconds: float
    steps: tuple[SlotsAt, ...]


class Occupation(NamedTuple):
    """The slots of a pool that a try took from one instant to another."""

    pool: str
    slots: int
    start: datetime
    end: datetime


def occupations(runs: Iterable[RunTrace], end: datetime) -> Iterator[Occupation]:
    """Yield the slots that each try took, up to the end of the simulation."""
    for run in runs:
        for task in run.tasks:
            for one in task.tries:
                if one.queued_at is not None:
                    yield Occupation(task.pool, task.pool_slots, one.queued_at, one.ended_at or end)


def pool_uses(
    runs: tuple[RunTrace, ...], capacities: Mapping[str, int | None], start: datetime, end: datetime
) -> tuple[PoolUse, ...]:
    """Return the use of each pool, by name.

    Args:
        runs: The runs with their tasks and tries.
        capacities: Slots of each pool, None for no limit.
        start: Start of the simulation.
        end: Its end.
    """
    changes: dict[str, dict[datetime, int]] = {name: defaultdict(int) for name in capacities}
    for taken in occupations(runs, end):
        change = changes.setdefault(taken.pool, defaultdict(int))
        change[taken.start] += taken.slots
        change[taken.end] -= taken.slots
    waits = _waits(runs)
    return tuple(
        _use(name, capacities.get(name, 0), changes[name], waits.get(name, []), start, end) for name in sorted(changes)
    )


def _waits(runs: Iterable[RunTrace]) -> dict[str, list[timedelta]]:
    waits: dict[str, list[timedelta]] = defaultdict(list)
    for run in runs:
        for task in run.tasks:
            if task.scheduled_at and task.queued_at and task.queued_at > task.scheduled_at:
                waits[task.pool].append(task.queued_at - task.scheduled_at)
    return waits


def _use(
    name: str,
    capacity: int | None,
    changes: Mapping[datetime, int],
    waits: list[timedelta],
    start: datetime,
    end: datetime,
) -> PoolUse:
    steps = _steps(changes)
    peak = max(steps, key=lambda step: step.slots, default=None)
    pairs = pairwise((*steps, SlotsAt(end, 0)))
    lasting = [(step.slots, (after.at - step.at).total_seconds()) for step, after in pairs]
    return PoolUse(
        pool=name,
        slots=-1 if capacity is None else capacity,
        peak=peak.slots if peak else 0,
        peak_at=peak.at if peak else None,
        mean=round(sum(slots * seconds for slots, seconds in lasting) / (end - start).total_seconds(), 3),
        full_seconds=sum(seconds for slots, seconds in lasting if capacity is not None and 0 < capacity <= slots),
        n_waited=len(waits),
        longest_wait_seconds=max(waits, default=timedelta()).total_seconds(),
        steps=steps,
    )


def _steps(changes: Mapping[datetime, int]) -> tuple[SlotsAt, ...]:
    steps: list[SlotsAt] = []
    slots = 0
    for at in sorted(changes):
        if changes[at]:
            slots += changes[at]
            steps.append(SlotsAt(at, slots))
    return tuple(steps)
