"""How the slots of pools were used over time, and how long tasks waited for them: pure functions of a trace."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from asynsched.simulation.trace import RunTrace


class SlotsAt(Struct, frozen=True):
    """So many slots were taken from this instant on."""

    at: datetime
    slots: int


class PoolUse(Struct, frozen=True):
    """The use of one pool.

    Attributes:
        slots: What it has; -1 is no limit.
        peak: Most slots taken at once, from `peak_at` on the first time.
        mean: Slots taken on average.
        full_seconds: How long no slot was free.
        n_waited: Tasks that waited between being ready and being queued, for this pool or for another limit.
        longest_wait_seconds: Longest such wait.
        steps: The use over time: each instant at which it changed.
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
    """A try took slots of a pool from one instant to another."""

    pool: str
    slots: int
    start: datetime
    end: datetime


def occupations(runs: Iterable[RunTrace], end: datetime) -> Iterator[Occupation]:
    """Yield what each try took, up to the end of the simulation."""
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
        runs: What happened.
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
