"""One finished task where the database is full: finished runs, blocked tasks, other DAGs."""

import asyncio
import time
from statistics import median

from asynsched.channels import RunCreated
from tests.benchmarks.measuring import Sheet, at_most
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.engine import Engine, create_runs, direct, engine
from tests.support.history import N_TASKS, fill, look_at_sizes

CHAIN = """
from asynsched import DAG, chain, task


@task
def work():
    return None


with DAG("measured", schedule=None, max_active_runs=2000):
    chain(*[work.override(task_id=f"step_{n}")() for n in range(100)])

with DAG("past", schedule=None):
    work()

with DAG("blocked", schedule=None, max_active_runs=2000):
    work.override(task_id="gate")() >> [work.override(task_id=f"behind_{n}")() for n in range(1000)]
"""
N_FINISHED = 1_000_000
N_BLOCKED_RUNS = 100
N_DAGS = 10_000
N_MEASURED = 10


def one_task_in_a_full_database(system: Ours, sheet: Sheet) -> None:
    """The time of one finished task: alone, and beside all that."""
    system.write("chain.py", CHAIN)
    alone, alone_cpu = asyncio.run(seconds_a_task(system))
    with direct(system) as database:
        database.write(fill, n_runs=N_FINISHED // N_TASKS, n_dags=N_DAGS)
        database.write(look_at_sizes)
    full, full_cpu = asyncio.run(seconds_a_task(system, n_blocked=N_BLOCKED_RUNS))
    sheet.seconds("one task, nothing else there", alone)
    sheet.seconds("one task, beside all that", full)
    sheet.amount("ratio", full / alone, "", at_most(1.25))
    sheet.amount("ratio of CPU times", full_cpu / alone_cpu, "")


async def seconds_a_task(system: Ours, n_blocked: int = 0) -> tuple[float, float]:
    """Return the median time of one task of a chain, whose tasks end at once, and its CPU time in this process."""
    async with engine(system) as served:
        if n_blocked:
            await _block(system, served, n_blocked)
        times, cpu_times = [], []
        for _ in range(N_MEASURED):
            begin = time.process_time()
            key = await served.scheduler.trigger("measured")
            times.append(await served.run_together([key], 100) / 100)
            cpu_times.append((time.process_time() - begin) / 100)
        return median(times), median(cpu_times)


async def _block(system: Ours, served: Engine, n_runs: int) -> None:
    """Make runs whose thousand tasks each wait for one that never ends."""
    keys = await asyncio.to_thread(create_runs, system, "blocked", n_runs)
    for key in keys:
        await served.scheduler.channels.runs.put(RunCreated(key))
    await served.wait(lambda: served.executor.n_gates >= n_runs)
