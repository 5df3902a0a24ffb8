"""Tasks on the workers of an engine, beside tasks of the engine's own, on the same machine in turn: chains, fan-outs.

In a chain, a bare task sends the next one, as fast as its engine can: by Celery's `delay`, by Dask's `submit`, by
Slurm's `sbatch`. In a fan-out, one program sends all of them.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.measuring import Sheet, at_most_p, percentile
from tests.benchmarks.systems import Client, Ours
from tests.benchmarks.workloads.running import TASKS, chain_text, hops, lengths, timed_runs
from tests.engines.brokers import Redis
from tests.engines.slurm_site import PROGRAMS, SlurmSite, missing
from tests.integration.remote.machines import ROOT, free_port
from tests.support.up import MARK
from tests.support.waiting import until

N_STEPS = 30
N_JOBS = 10
"""Steps of a chain on Slurm, each of which takes seconds."""
N_INSTANCES = 300
ROUNDS = 3
MARKING = """
import os
import time

def mark(number):
    started_at = time.time_ns()
    marks = os.open(os.environ["BARE_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{number} {started_at} {time.time_ns()}\\n".encode())
    os.close(marks)
"""
BARE_CELERY = """
from celery import Celery

app = Celery("bare", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, task_default_queue="bare", broker_connection_retry_on_startup=True)


@app.task
def step(number):
    mark(number)
    if number:
        step.delay(number - 1)


def send(number):
    step.delay(number)


@app.task
def one(number):
    mark(number)


def send_all(n):
    started_at = time.time_ns()
    for number in range(n):
        one.delay(number)
    return started_at
"""
BARE_DASK = """
from distributed import Client, fire_and_forget, get_client, wait


def step(number):
    mark(number)
    if number:
        fire_and_forget(get_client().submit(step, number - 1, pure=False))


def send(number):
    with Client(os.environ["BARE_DASK"]) as client:
        client.submit(step, number, pure=False).result()


def one(number):
    mark(number)


def send_all(n):
    with Client(os.environ["BARE_DASK"]) as client:
        started_at = time.time_ns()
        wait([client.submit(one, number, pure=False) for number in range(n)])
    return started_at
"""
MAPPED = """
with DAG("mapped", schedule=None, max_active_tasks=%(n)d):
    mark.expand(name=list(range(%(n)d)))
"""
BARE_SLURM = """
import subprocess
import sys


def step(number):
    mark(number)
    if number:
        send(number - 1)


def send(number):
    command = f"{sys.executable} -c 'import bare; bare.step({number})'"
    subprocess.run(["sbatch", "--quiet", "--output=/dev/null", f"--wrap={command}"], check=True)
"""


@dataclass
class _Engine:
    """An engine to measure.

    Attributes:
        send: The name of the engine's function that sends a task.
        bare: Its own tasks: a module with `send` for a chain and `send_all` for a fan-out, without `mark`.
        settings: Environment variables of the scheduler.
        environment: Those of the workers besides.
        workers: Arguments of Python for each worker.
    """

    send: str
    bare: str
    settings: dict[str, str]
    environment: dict[str, str]
    workers: Sequence[Sequence[str]] = field(default_factory=list)


MakeEngine = Callable[[Path], AbstractContextManager[_Engine]]
"""Returns an engine that serves until the end of the block, on a machine of its own: the folder."""


def hops_on_celery(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Celery's own tasks, with Redis."""
    _hops(system, sheet, _celery)


def hops_on_dask(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Dask's own tasks, on the same worker."""
    _hops(system, sheet, _dask)


def hops_on_slurm(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Slurm's own jobs, on a real cluster of one node."""
    _hops(system, sheet, partial(_slurm, marks=system.marks), n_steps=N_JOBS, has_goal=False)


def fan_out_on_celery(system: Ours, sheet: Sheet) -> None:
    """300 instances of a mapped no-op task, in turn with 300 of Celery's own tasks, with Redis."""
    _fan_out(system, sheet, _celery)


def fan_out_on_dask(system: Ours, sheet: Sheet) -> None:
    """300 instances of a mapped no-op task, in turn with 300 of Dask's own tasks, on the same worker."""
    _fan_out(system, sheet, _dask)


def _hops(system: Ours, sheet: Sheet, make: MakeEngine, *, n_steps: int = N_STEPS, has_goal: bool = True) -> None:
    system.write("chain.py", chain_text(n_steps))
    ours: list[float] = []
    bare: list[float] = []
    with _serving(system, make) as (engine, client, environment):
        for _ in range(ROUNDS):
            ours += hops(timed_runs(system, client, ["chain"], n_steps))
            bare += bare_hops(environment, n_steps)
    floor = median(bare)
    sheet.seconds(f"{engine.send}, median", floor)
    sheet.seconds(f"{engine.send}, p95", percentile(bare, 0.95))
    sheet.seconds("hop, median", median(ours))
    sheet.seconds("hop, p95", percentile(ours, 0.95))
    sheet.seconds(f"hop beyond {engine.send}, median", median(ours) - floor, at_most_p(1) if has_goal else None)


def _fan_out(system: Ours, sheet: Sheet, make: MakeEngine) -> None:
    system.write("mapped.py", TASKS + MAPPED % {"n": N_INSTANCES})
    ours: list[float] = []
    bare: list[float] = []
    with _serving(system, make) as (engine, client, environment):
        bare_fan_out(environment)  # the first one starts the processes of its worker
        for _ in range(ROUNDS):
            ours += lengths(timed_runs(system, client, ["mapped"], N_INSTANCES))
            bare.append(bare_fan_out(environment))
    sheet.rate(f"tasks of the engine's own, by {engine.send}", N_INSTANCES / median(bare))
    sheet.rate("tasks", N_INSTANCES / median(ours))
    sheet.amount(f"tasks, to those by {engine.send}", median(bare) / median(ours) * 100, "%")


@contextmanager
def _celery(folder: Path) -> Iterator[_Engine]:
    broker = Redis(folder)
    broker.start()
    try:
        url = {"ASYNSCHED_CELERY__BROKER_URL": broker.url}
        workers = [
            ["-m", "asynsched", "worker", "celery", "--home", str(folder / "worker"), "-c", "2"],
            ["-m", "celery", "-A", "bare", "worker", "-c", "2", "-Q", "bare"],
        ]
        settings = {"ASYNSCHED_EXECUTOR": "celery", **url}
        yield _Engine("delay", BARE_CELERY, settings, {"BROKER": broker.url, **url}, workers)
    finally:
        broker.kill()


@contextmanager
def _dask(folder: Path) -> Iterator[_Engine]:
    port = str(free_port())
    address = f"tcp://127.0.0.1:{port}"
    settings = {"ASYNSCHED_EXECUTOR": "dask", "ASYNSCHED_DASK__ADDRESS": address}
    settings["ASYNSCHED_DASK__WORKER_HOMES"] = str(folder / "homes")
    worker = ["--no-nanny", "--nthreads", "2", "--no-dashboard", "--local-directory", str(folder / "scratch")]
    workers = [
        ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
        ["-m", "dask", "worker", address, "--host", "127.0.0.1", *worker],
    ]
    yield _Engine("submit", BARE_DASK, settings, {"BARE_DASK": address}, workers)


@contextmanager
def _slurm(folder: Path, marks: Path) -> Iterator[_Engine]:
    with pytest.MonkeyPatch.context() as patch:
        cluster = SlurmSite(folder, patch)
        try:
            cluster.start_slurm()
            cluster.machine()
            until(lambda: "idle" in cluster.slurm_says("sinfo", "--noheader", "--format=%T"), "the node is ready")
            settings = {
                "ASYNSCHED_EXECUTOR": "slurm",
                "ASYNSCHED_SLURM__OPTIONS": '["--output=/dev/null"]',
                "ASYNSCHED_SLURM__SETUP": f"export MARKS={marks} PYTHONPATH={ROOT}",
                "ASYNSCHED_SLURM__WORKER_HOMES": str(folder),
            }
            yield _Engine("sbatch", BARE_SLURM, settings, {})
        finally:
            cluster.close()


@contextmanager
def _serving(system: Ours, make: MakeEngine) -> Iterator[tuple[_Engine, Client, dict[str, str]]]:
    """Serve a system with an engine and its workers. Yields the engine, a client, and the environment of workers."""
    system.n_runs = 2  # of each round; the first of them does not count
    address = f"127.0.0.1:{free_port()}"
    at = {"ASYNSCHED_WEB__LISTEN": address, "ASYNSCHED_WORKERS__ADDRESSES": f"http://{address}"}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asynsched-engine-")))  # another machine's
        engine = stack.enter_context(make(root))
        (root / "bare.py").write_text(MARKING + engine.bare)
        own = {"BARE_MARKS": str(root / "bare-marks"), "PYTHONPATH": str(root)}
        environment = system.site.environment | own | engine.environment
        del environment[MARK]  # the workers outlive the scheduler
        system.site.env |= engine.settings | at
        for arguments in engine.workers:
            stack.enter_context(running(arguments, environment))
        yield engine, stack.enter_context(system.serving()), environment


@contextmanager
def running(arguments: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a worker, and stop it gently."""
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def bare_hops(environment: dict[str, str], n_steps: int) -> list[float]:
    """Run a chain of the engine's own. Return the times from the end of a body to the start of the next, in seconds."""
    _, marks = _bare_marks(environment, f"bare.send({n_steps - 1})", n_steps)
    return [(after[0] - before[1]) / 1e9 for before, after in pairwise(marks)]


def bare_fan_out(environment: dict[str, str]) -> float:
    """Run a fan-out of the engine's own. Return the time from the first call to the last end, in seconds."""
    started_at, marks = _bare_marks(environment, f"bare.send_all({N_INSTANCES})", N_INSTANCES)
    return (max(ended_at for _, ended_at in marks) - int(started_at)) / 1e9


def _bare_marks(environment: dict[str, str], call: str, n_marks: int) -> tuple[str, list[tuple[int, int]]]:
    """Return what a call of the module `bare` returned, and starts and ends of its tasks, in nanoseconds since 1970."""
    path = Path(environment["BARE_MARKS"])
    path.unlink(missing_ok=True)
    program = [sys.executable, "-c", f"import bare; print({call})"]
    returned = subprocess.run(program, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    until(lambda: path.exists() and path.read_bytes().count(b"\n") == n_marks, f"{n_marks} bare tasks have ended")
    rows = (line.split() for line in path.read_text().splitlines())
    return returned, sorted((int(start), int(end)) for _, start, end in rows)


ON_ENGINES = {
    "celery": hops_on_celery,
    "dask": hops_on_dask,
    **({} if missing(PROGRAMS) else {"slurm": hops_on_slurm}),
    "celery-fan-out": fan_out_on_celery,
    "dask-fan-out": fan_out_on_dask,
}
"""The workloads of engines; that of Slurm where it is installed."""
