"""The engine alone: a scheduler in this process whose executor ends every task at once, on a real database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio
import structlog

from asynsched import Scheduler
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.home import prepare_home
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database, open_direct
from asynsched.store.runs.transitions import Batch
from tests.benchmarks.measuring import Sheet, at_least
from tests.benchmarks.systems import Ours
from tests.support.instant_executor import InstantExecutor
from tests.support.passing_database import PassingDatabase
from tests.support.waiting import eventually

LAYERS = """
from asynsched import DAG, chain, task


@task
def work():
    return None


with DAG("layers", schedule=None, max_active_runs=2000, max_active_tasks=1000):
    chain(*[[work.override(task_id=f"task_{layer}_{n}")() for n in range(WIDTH)] for layer in range(DEPTH)])
"""
PARALLELISM = 128
TICK_SECONDS = 0.001
N_RUNS = 100


def layers(depth: int, width: int) -> str:
    return LAYERS.replace("WIDTH", str(width)).replace("DEPTH", str(depth))


class NotingDatabase(PassingDatabase):
    """Passes everything on, and notes how large the batches of state changes are and how long they take."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.batches: list[tuple[int, float]] = []

    async def pass_on(self, call, query, args, kwargs):
        if not (args and isinstance(args[0], Batch)):
            return await super().pass_on(call, query, args, kwargs)
        n_rows = sum(len(rows) for rows in (args[0].tasks, args[0].new_tasks, args[0].runs))
        begin = time.perf_counter()
        result = await super().pass_on(call, query, args, kwargs)
        self.batches.append((n_rows, time.perf_counter() - begin))
        return result


@dataclass
class Engine:
    """A serving scheduler. `stalls` are the times for which its loop did nothing else, in seconds."""

    scheduler: Scheduler
    database: NotingDatabase
    executors: list[InstantExecutor]
    stalls: list[float] = field(default_factory=list)

    @property
    def executor(self) -> InstantExecutor:
        return self.executors[0]

    async def beat(self) -> None:
        """Note how much later than asked the loop comes back to this."""
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.stalls.append(time.perf_counter() - due)

    async def run_together(self, keys: list[DagRunKey], n_tasks: int) -> float:
        """Wait until the tasks of runs that were created just now have ended; return the seconds from the first."""
        # Some may have ended before this is called.
        self.n_tasks += n_tasks
        self.n_runs += len(keys)
        await self.wait(lambda: self.executor.n_ended >= self.n_tasks)
        await self.scheduler.wait_runs(self.n_runs)
        first_at, self.executor.first_at = self.executor.first_at, None
        return time.perf_counter() - first_at

    n_tasks: int = 0
    """Tasks of the runs that were waited for."""
    n_runs: int = 0

    async def wait(self, check: Callable[[], bool]) -> None:
        await eventually(check, "the engine has done it", seconds=900)


@asynccontextmanager
async def engine(system: Ours, parallelism: int = PARALLELISM) -> AsyncIterator[Engine]:
    """Serve a system's folder in this process, and wait until its files are known. Logs as `up` does, to a file."""
    with (system.site.root / "engine.log").open("a") as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        async with _engine(system, parallelism) as served:
            yield served
        structlog.reset_defaults()


@asynccontextmanager
async def _engine(system: Ours, parallelism: int) -> AsyncIterator[Engine]:
    settings = Settings(home=str(system.site.home), parallelism=parallelism, default_pool_slots=100_000)
    prepare_home(system.site.home)
    database = NotingDatabase(await open_database(system.database_url, default_pool_slots=100_000))
    executors: list[InstantExecutor] = []

    def make(context: ExecutorContext) -> Executor:
        executors.append(InstantExecutor(context))
        return executors[0]

    scheduler = Scheduler(dags=system.dags, database=database, executor=make, settings=settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        served = Engine(scheduler, database, executors)
        await eventually(lambda: scheduler._services.dispatcher.is_idle, "the files are known", seconds=300)
        tasks.start_soon(served.beat)
        yield served
        scheduler.request_stop()
        tasks.cancel_scope.cancel()
    await database.close()


def create_runs(system: Ours, dag_id: str, n: int) -> list[DagRunKey]:
    """Create queued runs of a DAG that is known."""
    with direct(system) as database:
        return database.write(_create_runs, dag_id, n)


def _create_runs(conn, dag_id: str, n: int) -> list[DagRunKey]:
    now = datetime.now(UTC)
    return [
        create_manual_run(conn, dag_id, Trigger(has_logical_date=False, run_id=f"{now:%s%f}-{k}"), now=now)
        for k in range(n)
    ]


@contextmanager
def direct(system: Ours) -> Iterator:
    database = open_direct(system.database_url, default_pool_slots=100_000)
    try:
        yield database
    finally:
        database.close()


def transitions(system: Ours, sheet: Sheet) -> None:
    """100 runs of 100 tasks that end at once: how many changes of state are stored in a second."""
    system.write("layers.py", layers(10, 10))
    asyncio.run(_known(system))
    keys = create_runs(system, "layers", N_RUNS)
    found, seconds = asyncio.run(_serve_runs(system, keys, 100 * N_RUNS))
    # Every task was queued and has ended, every run was started and has ended.
    n_changes = 2 * (100 * N_RUNS + N_RUNS)
    goal = 10_000 if system.backend == "sqlite" else 5_000
    sheet.rate("transitions", n_changes / seconds, at_least(goal))
    sheet.amount("largest batch", max(n_rows for n_rows, _ in found.database.batches), "rows")
    sheet.spread("batch stored", [each for _, each in found.database.batches])
    sheet.seconds("longest stall of the loop", max(found.stalls))


async def _known(system: Ours) -> None:
    async with engine(system):
        pass


async def _serve_runs(system: Ours, keys: list[DagRunKey], n_tasks: int) -> tuple[Engine, float]:
    async with engine(system) as served:
        return served, await served.run_together(keys, n_tasks)
