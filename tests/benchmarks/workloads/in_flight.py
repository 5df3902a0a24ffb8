"""Very many tasks at once on an engine: how long the event loop stalls while the engine gets and has them."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import anyio
import structlog

from asynsched import Scheduler
from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.executors.engines.celery import CeleryEngine, CeleryExecutor
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected
from asynsched.home import prepare_home
from asynsched.settings import CelerySettings, Settings, WebSettings, WorkersSettings
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.pools import set_pool
from asynsched.web.server import open_listener, serve
from tests.benchmarks.measuring import Sheet
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.engines import running
from tests.engines.brokers import Redis
from tests.integration.remote.machines import free_port
from tests.support.up import MARK
from tests.support.waiting import eventually

N_TASKS = 10_000
TICK_SECONDS = 0.001
LOOKS_SECONDS = 12.0
"""How long the scheduler is watched once the engine has all tasks: it looks at all of them every five seconds."""
MAPPED = """
from asynsched import DAG, task

with DAG("many", schedule=None, max_active_tasks=N_TASKS):
    @task
    def work(n):
        pass

    work.expand(n=list(range(N_TASKS)))
"""


class CountingEngine(CeleryEngine):
    """Counts the jobs that Celery has taken."""

    n_taken = 0

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        answers = await super().submit(jobs)
        CountingEngine.n_taken += sum(isinstance(answer, Accepted) for answer in answers)
        return answers


class CountingExecutor(CeleryExecutor):
    engine_class = CountingEngine


def tasks_in_flight(system: Ours, sheet: Sheet) -> None:
    """10,000 instances of a mapped task on Celery with Redis, with a worker that runs two of them at once."""
    system.write("many.py", MAPPED.replace("N_TASKS", str(N_TASKS)))
    with tempfile.TemporaryDirectory(prefix="asynsched-in-flight-") as folder:  # another machine's
        broker = Redis(Path(folder))
        broker.start()
        try:
            stalls, seconds = asyncio.run(_trigger(system, broker.url, Path(folder) / "worker"))
        finally:
            broker.kill()
    sheet.seconds("from the trigger until all are with the engine", seconds)
    sheet.seconds("longest stall of the loop", max(stalls))
    sheet.amount("stalls of more than 100 ms", sum(stall > 0.1 for stall in stalls), "")


async def _trigger(system: Ours, broker_url: str, worker_home: Path) -> tuple[list[float], float]:
    """Run the DAG; return the stalls of the loop, and the time until the engine has all of its tasks, in seconds."""
    stalls: list[float] = []
    CountingEngine.n_taken = 0
    async with _serving(system, broker_url) as scheduler:
        environment = system.site.environment | {"ASYNSCHED_CELERY__BROKER_URL": broker_url}
        del environment[MARK]  # the worker is another site's
        worker = ["-m", "asynsched", "worker", "celery", "--home", str(worker_home), "-c", "2"]
        async with _running(worker, environment), anyio.create_task_group() as beside:
            beside.start_soon(_beat, stalls)
            started_at = time.perf_counter()
            await scheduler.trigger("many")
            await eventually(lambda: CountingEngine.n_taken >= N_TASKS, "the engine has them all", seconds=600)
            seconds = time.perf_counter() - started_at
            await asyncio.sleep(LOOKS_SECONDS)
            beside.cancel_scope.cancel()
    return stalls, seconds


@asynccontextmanager
async def _running(arguments: Sequence[str], environment: dict[str, str]) -> AsyncIterator[None]:
    """Run a worker, and stop it gently while the loop serves its last requests."""
    with ExitStack() as stack:
        stack.enter_context(running(arguments, environment))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(stack.close)


async def _beat(stalls: list[float]) -> None:
    """Note how much later than asked the loop comes back to this."""
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        stalls.append(time.perf_counter() - due)


@asynccontextmanager
async def _serving(system: Ours, broker_url: str) -> AsyncIterator[Scheduler]:
    """Serve a system's folder and its workers in this process, until the file is known. Logs to a file."""
    address = f"127.0.0.1:{free_port()}"
    settings = Settings(
        home=str(system.site.home), executor=f"celery={__name__}:{CountingExecutor.__name__}",
        max_map_length=N_TASKS, celery=CelerySettings(broker_url=broker_url),
        workers=WorkersSettings(addresses=(f"http://{address}",), slots=N_TASKS),
    )  # fmt: skip
    prepare_home(system.site.home)
    database = await open_database(system.database_url)
    await database.write(set_pool, DEFAULT_POOL, N_TASKS)
    listener = open_listener(WebSettings(listen=address))
    with (system.site.root / "engine.log").open("a") as log, closing(listener.socket):
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        scheduler = Scheduler(dags=system.dags, database=database, settings=settings)
        async with anyio.create_task_group() as tasks:
            await tasks.start(scheduler.serve)
            await tasks.start(_serve_workers, scheduler, listener.socket)
            await eventually(lambda: scheduler._services.dispatcher.is_idle, "the file is known", seconds=300)
            yield scheduler
            scheduler.request_stop()
            tasks.cancel_scope.cancel()
        structlog.reset_defaults()
    await database.close()


async def _serve_workers(scheduler: Scheduler, socket, *, task_status) -> None:
    task_status.started()
    await serve(scheduler.web(), socket, scheduler.settings.web, at_once=True)
