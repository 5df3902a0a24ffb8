"""A simulation in numbers, and as much of it as fits into one answer."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from asynsched.simulation.clock_changes import ClockChange
from asynsched.simulation.script import Assumption
from asynsched.simulation.span import FileProblem, RunTrace, SimulatedPool, SpanReport, part_of
from asynsched.states import FINISHED_RUN_STATES, DagRunState
from asynsched.store.runs.deadlines import MissedDeadline

T = TypeVar("T")

MOST_RUNS = 1000
"""Runs of an answer."""
MOST_TASKS = 10_000
"""Task instances of an answer."""
MOST_OTHERS = 1000
"""Entries of every other list of an answer."""


class SimulatedDag(Struct, frozen=True):
    """The runs of one DAG, in numbers; the lengths are None where no run has ended, or begun.

    Attributes:
        longest_delay_seconds: From the time at which a run is due to its start.
    """

    dag_id: str
    runs: int
    success: int
    failed: int
    unfinished: int
    task_starts: int
    mean_duration_seconds: float | None
    longest_seconds: float | None
    longest_delay_seconds: float | None


class Simulated(Struct, frozen=True):
    """What a scheduler will do in a span of time. Instants are UTC.

    Attributes:
        end: Before the end that was asked for if the time for the simulation was over.
        n_runs: How many runs there are; `runs` has the first ones.
        problems: Files, and DAGs of files, that are left out.
        assumptions: About tasks that have no history.
    """

    start: datetime
    end: datetime
    seed: int
    n_runs: int
    n_task_starts: int
    dags: tuple[SimulatedDag, ...]
    pools: tuple[SimulatedPool, ...]
    missed_deadlines: tuple[MissedDeadline, ...]
    clock_changes: tuple[ClockChange, ...]
    paused_dags: tuple[str, ...]
    problems: tuple[FileProblem, ...]
    assumptions: tuple[Assumption, ...]
    runs: tuple[RunTrace, ...]


def summary(span: SpanReport, dag_id: str | None = None) -> Simulated:
    """Return a simulation as one answer, of bounded size.

    Args:
        dag_id: Answer with the runs of this DAG alone.
    """
    runs = tuple(run for run in span.runs if dag_id in (None, run.dag_id))
    missed = tuple(miss for miss in span.missed_deadlines if dag_id in (None, miss.dag_id))
    return Simulated(
        start=span.start,
        end=span.end,
        seed=span.seed,
        n_runs=len(runs),
        n_task_starts=n_task_starts(runs),
        dags=dags_in_numbers(runs)[:MOST_OTHERS],
        pools=tuple(part_of(SimulatedPool, use) for use in span.pools)[:MOST_OTHERS],
        missed_deadlines=missed[:MOST_OTHERS],
        clock_changes=span.clock_changes[:MOST_OTHERS],
        paused_dags=span.paused_dags[:MOST_OTHERS],
        problems=span.problems[:MOST_OTHERS],
        assumptions=span.assumptions[:MOST_OTHERS],
        runs=_first(runs),
    )


def of_dags(found: Simulated, dag_ids: frozenset[str]) -> Simulated:
    """Return the part of a simulation that concerns some DAGs, with the pools of all."""

    def those(rows: Iterable[T]) -> tuple[T, ...]:
        return tuple(row for row in rows if getattr(row, "dag_id", None) in dag_ids)

    dags = those(found.dags)
    return replace(
        found, n_runs=sum(one.runs for one in dags), n_task_starts=sum(one.task_starts for one in dags), dags=dags,
        missed_deadlines=those(found.missed_deadlines), clock_changes=those(found.clock_changes),
        paused_dags=tuple(dag_id for dag_id in found.paused_dags if dag_id in dag_ids),
        problems=those(found.problems), assumptions=(), runs=those(found.runs),
    )  # fmt: skip


def _first(runs: Sequence[RunTrace]) -> tuple[RunTrace, ...]:
    n_tasks, found = 0, []
    for run in runs[:MOST_RUNS]:
        n_tasks += len(run.tasks)
        if n_tasks > MOST_TASKS:
            break
        found.append(run)
    return tuple(found)


def dags_in_numbers(runs: Iterable[RunTrace]) -> tuple[SimulatedDag, ...]:
    """Return how many runs of each DAG ended how, and how long they took; by dag_id."""
    by_dag = groupby(sorted(runs, key=attrgetter("dag_id")), key=attrgetter("dag_id"))
    return tuple(_in_numbers(dag_id, list(its)) for dag_id, its in by_dag)


def _in_numbers(dag_id: str, runs: Sequence[RunTrace]) -> SimulatedDag:
    lengths = [run.ended_at - run.started_at for run in runs if run.started_at and run.ended_at]
    delays = [run.started_at - run.run_after for run in runs if run.started_at]
    return SimulatedDag(
        dag_id=dag_id,
        runs=len(runs),
        success=sum(run.state == DagRunState.SUCCESS for run in runs),
        failed=sum(run.state == DagRunState.FAILED for run in runs),
        unfinished=sum(run.state not in FINISHED_RUN_STATES for run in runs),
        task_starts=n_task_starts(runs),
        mean_duration_seconds=_seconds(sum(lengths, timedelta()) / len(lengths) if lengths else None),
        longest_seconds=_seconds(max(lengths, default=None)),
        longest_delay_seconds=_seconds(max(delays, default=None)),
    )


def n_task_starts(runs: Iterable[RunTrace]) -> int:
    """Return how many tries of the tasks of runs were started."""
    return sum(len(task.tries) for run in runs for task in run.tasks)


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
