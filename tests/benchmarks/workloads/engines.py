"""Hops of a chain on the workers of an engine, beside tasks of the engine's own, on the same machine in turn.

A bare task sends the next one, as fast as its engine can: by Celery's `delay`, by Dask's `submit`, by Slurm's `sbatch`.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.measuring import Goal, Sheet, at_most_p, percentile
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.running import chain_text, hops, timed_runs
from tests.engines.brokers import Redis
from tests.engines.slurm_site import MISSING, SlurmSite
from tests.integration.remote.machines import ROOT, free_port
from tests.support.up import MARK
from tests.support.waiting import until

N_STEPS = 30
N_JOBS = 10
"""Steps of a chain on Slurm, each of which takes seconds."""
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
"""
BARE_DASK = """
from distributed import Client, fire_and_forget, get_client


def step(number):
    mark(number)
    if number:
        fire_and_forget(get_client().submit(step, number - 1, pure=False))


def send(number):
    with Client(os.environ["BARE_DASK"]) as client:
        client.submit(step, number, pure=False).result()
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
        bare: Its own chain: a module with `send`, without `mark`.
        settings: Environment variables of the scheduler.
        environment: Those of the workers besides.
        workers: Arguments of Python for each worker.
    """

    bare: str
    settings: dict[str, str]
    environment: dict[str, str]
    workers: Sequence[Sequence[str]] = field(default_factory=list)
    n_steps: int = N_STEPS


def hops_on_celery(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Celery's own tasks, with Redis."""
    with tempfile.TemporaryDirectory(prefix="asynsched-celery-") as folder:  # another machine's
        broker = Redis(Path(folder))
        broker.start()
        try:
            url = {"ASYNSCHED_CELERY__BROKER_URL": broker.url}
            home = str(Path(folder) / "worker")
            workers = [
                ["-m", "asynsched", "worker", "celery", "--home", home, "-c", "2"],
                ["-m", "celery", "-A", "bare", "worker", "-c", "2", "-Q", "bare"],
            ]
            engine = _Engine(
                BARE_CELERY, {"ASYNSCHED_EXECUTOR": "celery", **url}, {"BROKER": broker.url, **url}, workers
            )
            _write(sheet, "delay", *_measure(system, Path(folder), engine), at_most_p(1))
        finally:
            broker.kill()


def hops_on_dask(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Dask's own tasks, on the same worker."""
    port = str(free_port())
    address = f"tcp://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="asynsched-dask-") as folder:
        settings = {"ASYNSCHED_EXECUTOR": "dask", "ASYNSCHED_DASK__ADDRESS": address}
        settings["ASYNSCHED_DASK__WORKER_HOMES"] = str(Path(folder) / "homes")
        worker = ["--no-nanny", "--nthreads", "2", "--no-dashboard", "--local-directory", str(Path(folder) / "scratch")]
        workers = [
            ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
            ["-m", "dask", "worker", address, "--host", "127.0.0.1", *worker],
        ]
        engine = _Engine(BARE_DASK, settings, {"BARE_DASK": address}, workers)
        _write(sheet, "submit", *_measure(system, Path(folder), engine), at_most_p(1))


def hops_on_slurm(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Slurm's own jobs, on a real cluster of one node."""
    with tempfile.TemporaryDirectory(prefix="asynsched-slurm-") as folder, pytest.MonkeyPatch.context() as patch:
        cluster = SlurmSite(Path(folder), patch)
        try:
            cluster.start_slurm()
            cluster.machine()
            until(lambda: "idle" in cluster.slurm_says("sinfo", "--noheader", "--format=%T"), "the node is ready")
            settings = {
                "ASYNSCHED_EXECUTOR": "slurm",
                "ASYNSCHED_SLURM__OPTIONS": '["--output=/dev/null"]',
                "ASYNSCHED_SLURM__SETUP": f"export MARKS={system.marks} PYTHONPATH={ROOT}",
                "ASYNSCHED_SLURM__WORKER_HOMES": folder,
            }
            _write(sheet, "sbatch", *_measure(system, Path(folder), _Engine(BARE_SLURM, settings, {}, n_steps=N_JOBS)))
        finally:
            cluster.close()


def _write(sheet: Sheet, name: str, ours: list[float], bare: list[float], goal: Goal | None = None) -> None:
    floor = median(bare)
    sheet.seconds(f"{name}, median", floor)
    sheet.seconds(f"{name}, p95", percentile(bare, 0.95))
    sheet.seconds("hop, median", median(ours))
    sheet.seconds("hop, p95", percentile(ours, 0.95))
    sheet.seconds(f"hop beyond {name}, median", median(ours) - floor, goal)


def _measure(system: Ours, root: Path, engine: _Engine) -> tuple[list[float], list[float]]:
    """Return hops of both, in seconds."""
    system.n_runs = 2  # of each round; the first of them does not count
    system.write("chain.py", chain_text(engine.n_steps))
    (root / "bare.py").write_text(MARKING + engine.bare)
    own = {"BARE_MARKS": str(root / "bare-marks"), "PYTHONPATH": str(root)}
    environment = system.site.environment | own | engine.environment
    del environment[MARK]  # the workers outlive the scheduler
    address = f"127.0.0.1:{free_port()}"
    at = {"ASYNSCHED_WEB__LISTEN": address, "ASYNSCHED_WORKERS__ADDRESSES": f"http://{address}"}
    system.site.env |= engine.settings | at
    ours, bare = [], []
    with ExitStack() as stack:
        for arguments in engine.workers:
            stack.enter_context(running(arguments, environment))
        client = stack.enter_context(system.serving())
        for _ in range(3):
            ours += hops(timed_runs(system, client, ["chain"], engine.n_steps))
            bare += bare_hops(environment, engine.n_steps)
    return ours, bare


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
    path = Path(environment["BARE_MARKS"])
    path.unlink(missing_ok=True)
    send = f"import bare; bare.send({n_steps - 1})"
    subprocess.run([sys.executable, "-c", send], env=environment, check=True)
    until(lambda: path.exists() and path.read_bytes().count(b"\n") == n_steps, "the chain has ended")
    marks = sorted(tuple(map(int, line.split()[1:])) for line in path.read_text().splitlines())
    return [(after[0] - before[1]) / 1e9 for before, after in pairwise(marks)]


ENGINES = {"celery": hops_on_celery, "dask": hops_on_dask} | ({} if MISSING else {"slurm": hops_on_slurm})
"""The workloads of the engines; that of Slurm where it is installed."""
