"""The effect of a change of the DAG files on a span: its simulations before and after, compared run by run."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from asynsched.simulation.span import SpanReport
from asynsched.simulation.trace import PoolUse, RunTrace
from asynsched.store.runs.deadlines import MissedDeadline

TaskName = tuple[str, str]
"""dag_id, task_id"""


class RunName(Struct, frozen=True):
    """A run that only one of the simulations has."""

    dag_id: str
    run_id: str
    logical_date: datetime | None
    run_after: datetime


class TaskCount(Struct, frozen=True):
    """A task that only one of the simulations has, and how many instances it has there."""

    dag_id: str
    task_id: str
    n_instances: int


class RunChange(Struct, frozen=True):
    """A run that both simulations have, but that goes differently.

    Attributes:
        start_later_seconds: How much later it starts; negative: earlier; None: it has not started in both.
        end_later_seconds: How much later it ends; negative: earlier; None: it has not ended in both.
        duration_before_seconds: From its start to its end before the change; None if it has not ended.
        duration_after_seconds: From its start to its end after the change; None if it has not ended.
    """

    dag_id: str
    run_id: str
    logical_date: datetime | None
    state_before: str
    state_after: str
    start_later_seconds: float | None
    end_later_seconds: float | None
    duration_before_seconds: float | None
    duration_after_seconds: float | None


class PoolChange(Struct, frozen=True):
    """The use of a pool before the change and after it."""

    pool: str
    slots_before: int | None
    slots_after: int | None
    peak_before: int
    peak_after: int
    mean_before: float
    mean_after: float
    full_seconds_before: float
    full_seconds_after: float
    longest_wait_seconds_before: float
    longest_wait_seconds_after: float


class Comparison(Struct, frozen=True):
    """All differences after a change.

    Attributes:
        deadlines_missed: Deadlines that are missed only after the change.
        deadlines_saved: Deadlines that were missed only before the change.
    """

    runs_added: tuple[RunName, ...]
    runs_removed: tuple[RunName, ...]
    tasks_added: tuple[TaskCount, ...]
    tasks_removed: tuple[TaskCount, ...]
    runs_changed: tuple[RunChange, ...]
    deadlines_missed: tuple[MissedDeadline, ...]
    deadlines_saved: tuple[MissedDeadline, ...]
    pools: tuple[PoolChange, ...]


def compare(before: SpanReport, after: SpanReport) -> Comparison:
    """Return the differences between two simulations. Runs with the same DAG and run_id are the same run."""
    old = {(run.dag_id, run.run_id): run for run in before.runs}
    new = {(run.dag_id, run.run_id): run for run in after.runs}
    old_tasks, new_tasks = _instances(before.runs), _instances(after.runs)
    changes = (_run_change(old[key], new[key]) for key in old if key in new)
    return Comparison(
        runs_added=tuple(_name(run) for key, run in new.items() if key not in old),
        runs_removed=tuple(_name(run) for key, run in old.items() if key not in new),
        tasks_added=tuple(TaskCount(*name, n) for name, n in sorted(new_tasks.items()) if name not in old_tasks),
        tasks_removed=tuple(TaskCount(*name, n) for name, n in sorted(old_tasks.items()) if name not in new_tasks),
        runs_changed=tuple(change for change in changes if change is not None),
        deadlines_missed=_only_in(after.missed_deadlines, before.missed_deadlines),
        deadlines_saved=_only_in(before.missed_deadlines, after.missed_deadlines),
        pools=_pool_changes(before.pools, after.pools),
    )


def _instances(runs: Iterable[RunTrace]) -> dict[TaskName, int]:
    counts: dict[TaskName, int] = defaultdict(int)
    for run in runs:
        for task in run.tasks:
            counts[run.dag_id, task.task_id] += 1
    return counts


def _only_in(these: tuple[MissedDeadline, ...], others: tuple[MissedDeadline, ...]) -> tuple[MissedDeadline, ...]:
    known = set(others)
    return tuple(miss for miss in these if miss not in known)


def _name(run: RunTrace) -> RunName:
    return RunName(run.dag_id, run.run_id, run.logical_date, run.run_after)


def _run_change(old: RunTrace, new: RunTrace) -> RunChange | None:
    if (old.state, old.started_at, old.ended_at) == (new.state, new.started_at, new.ended_at):
        return None
    return RunChange(
        dag_id=new.dag_id,
        run_id=new.run_id,
        logical_date=new.logical_date,
        state_before=old.state,
        state_after=new.state,
        start_later_seconds=_seconds(old.started_at, new.started_at),
        end_later_seconds=_seconds(old.ended_at, new.ended_at),
        duration_before_seconds=_seconds(old.started_at, old.ended_at),
        duration_after_seconds=_seconds(new.started_at, new.ended_at),
    )


def _seconds(earlier: datetime | None, later: datetime | None) -> float | None:
    return None if earlier is None or later is None else (later - earlier).total_seconds()


def _pool_changes(before: Iterable[PoolUse], after: Iterable[PoolUse]) -> tuple[PoolChange, ...]:
    old, new = ({use.pool: use for use in uses} for uses in (before, after))
    unused = PoolUse("", 0, 0, None, 0.0, 0.0, 0, 0.0, ())
    changes = []
    for name in sorted(old.keys() | new.keys()):
        was, is_now = old.get(name, unused), new.get(name, unused)
        changes.append(
            PoolChange(
                pool=name,
                slots_before=was.slots if name in old else None,
                slots_after=is_now.slots if name in new else None,
                peak_before=was.peak,
                peak_after=is_now.peak,
                mean_before=was.mean,
                mean_after=is_now.mean,
                full_seconds_before=was.full_seconds,
                full_seconds_after=is_now.full_seconds,
                longest_wait_seconds_before=was.longest_wait_seconds,
                longest_wait_seconds_after=is_now.longest_wait_seconds,
            )
        )
    return tuple(changes)
