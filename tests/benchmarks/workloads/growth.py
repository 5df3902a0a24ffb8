"""Growth curves for docs/scale.md: the same small amount of work in ever larger surroundings."""

import asyncio
import time
from collections.abc import Callable

from asynsched.channels import RunCreated
from tests.benchmarks.measuring import Sheet
from tests.benchmarks.systems import Ours, memory_mb
from tests.benchmarks.workloads.engine import create_runs, direct, engine, layers
from tests.benchmarks.workloads.folders import write_files
from tests.benchmarks.workloads.history import CHAIN, seconds_a_task
from tests.support.history import N_TASKS, fill, look_at_sizes

TASKS = (10, 100, 1_000, 10_000)
DAGS = (100, 1_000, 10_000)
RUNS = (10, 100, 1_000)
HISTORY = (0, 10_000, 100_000, 1_000_000)
WIDTH = 10
SETTLE_SECONDS = 10


def tasks_of_a_dag(system: Ours, sheet: Sheet) -> None:
    """One run of a DAG, layers of ten tasks: from the start of its first task, by the engine alone."""
    for n_tasks in TASKS:
        system.write("layers.py", layers(n_tasks // WIDTH, WIDTH))
        seconds, stall = asyncio.run(_one_run(system, n_tasks))
        sheet.seconds(f"a task, of {n_tasks:,}", seconds / n_tasks)
        sheet.seconds(f"longest stall, {n_tasks:,} tasks", stall)


async def _one_run(system: Ours, n_tasks: int) -> tuple[float, float]:
    async with engine(system) as served:
        served.stalls.clear()
        key = await served.scheduler.trigger("layers")
        return await served.run_together([key], n_tasks), max(served.stalls)


def active_runs(system: Ours, sheet: Sheet) -> None:
    """Runs of a chain of a hundred tasks, active together, by the engine alone."""
    system.write("layers.py", layers(100, 1))
    for n_runs in RUNS:
        seconds = asyncio.run(_runs_together(system, n_runs))
        sheet.seconds(f"a task, {n_runs:,} active runs", seconds / (100 * n_runs))


async def _runs_together(system: Ours, n_runs: int) -> float:
    async with engine(system) as served:
        keys = await asyncio.to_thread(create_runs, system, "layers", n_runs)
        for key in keys:
            await served.scheduler.channels.runs.put(RunCreated(key))
        return await served.run_together(keys, 100 * n_runs)


def finished_tasks(system: Ours, sheet: Sheet) -> None:
    """One task, by the engine alone, with ever more finished ones in the database."""
    system.write("chain.py", CHAIN)
    asyncio.run(seconds_a_task(system))
    there = 0
    for n_finished in HISTORY:
        with direct(system) as database:
            if n_finished > there:
                database.write(fill, n_runs=(n_finished - there) // N_TASKS, n_dags=0, dag_id=f"past_{there}")
                database.write(look_at_sizes)
        there = n_finished
        seconds, cpu_seconds = asyncio.run(seconds_a_task(system))
        sheet.seconds(f"a task, {n_finished:,} finished ones", seconds)
        sheet.seconds(f"CPU time of it, {n_finished:,} finished ones", cpu_seconds)


def known_dags(system: Ours, sheet: Sheet) -> None:
    """A start with ever more DAGs, one a file."""
    for n_dags in DAGS:
        write_files(system, n_dags)
        system.site.up_until_idle(timeout=3600)
        started_at = time.perf_counter()
        with system.serving():
            sheet.seconds(f"start to healthy, {n_dags:,} DAGs", time.perf_counter() - started_at)
            time.sleep(SETTLE_SECONDS)  # the work of a start is over
            sheet.amount(f"memory, {n_dags:,} DAGs", memory_mb(system.processes()), "MB")


GROWTH: dict[str, Callable[[Ours, Sheet], None]] = {
    "growth-tasks": tasks_of_a_dag,
    "growth-runs": active_runs,
    "growth-history": finished_tasks,
    "growth-dags": known_dags,
}
