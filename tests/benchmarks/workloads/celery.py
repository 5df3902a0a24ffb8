"""Hops of a chain on Celery workers, beside Celery's own `delay` on the same broker."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.benchmarks.measuring import Sheet, at_most_p, percentile
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.running import chain_text, hops, timed_runs
from tests.engines.brokers import Redis
from tests.integration.remote.machines import free_port
from tests.support.up import MARK
from tests.support.waiting import until

N_STEPS = 30
BARE = """
import os
import time

from celery import Celery

app = Celery("bare", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, task_default_queue="bare", broker_connection_retry_on_startup=True)


@app.task
def step(number):
    started_at = time.time_ns()
    marks = os.open(os.environ["BARE_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{number} {started_at} {time.time_ns()}\\n".encode())
    os.close(marks)
    if number:
        step.delay(number - 1)
"""


def hops_on_celery(system: Ours, sheet: Sheet) -> None:
    """Chains of no-op tasks, in turn with chains of Celery's own tasks, each of which sends the next by `delay`."""
    system.n_runs = 2  # of each round; the first of them does not count
    system.write("chain.py", chain_text(N_STEPS))
    with tempfile.TemporaryDirectory(prefix="asynsched-celery-") as folder:  # another machine's
        ours, bare = _measure(system, Path(folder))
    floor = median(bare)
    sheet.seconds("delay, median", floor)
    sheet.seconds("delay, p95", percentile(bare, 0.95))
    sheet.seconds("hop, median", median(ours))
    sheet.seconds("hop, p95", percentile(ours, 0.95))
    sheet.seconds("hop beyond delay, median", median(ours) - floor, at_most_p(1))


def _measure(system: Ours, root: Path) -> tuple[list[float], list[float]]:
    """Return hops of both, in seconds."""
    broker = Redis(root)
    (root / "bare.py").write_text(BARE)
    port = free_port()
    environment = system.site.environment | {
        "BROKER": broker.url, "BARE_MARKS": str(root / "bare-marks"), "PYTHONPATH": str(root),
        "ASYNSCHED_CELERY__BROKER_URL": broker.url,
    }  # fmt: skip
    del environment[MARK]  # the workers outlive the scheduler
    system.site.env |= {
        "ASYNSCHED_EXECUTOR": "celery", "ASYNSCHED_CELERY__BROKER_URL": broker.url,
        "ASYNSCHED_WEB__LISTEN": f"127.0.0.1:{port}", "ASYNSCHED_WORKERS__ADDRESSES": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    ours, bare = [], []
    broker.start()
    try:
        with (
            running(["-m", "asynsched", "worker", "celery", "--home", str(root / "worker"), "-c", "2"], environment),
            running(["-m", "celery", "-A", "bare", "worker", "-c", "2", "-Q", "bare"], environment),
            system.serving() as client,
        ):
            for _ in range(3):
                ours += hops(timed_runs(system, client, ["chain"], N_STEPS))
                bare += bare_hops(environment)
    finally:
        broker.kill()
    return ours, bare


@contextmanager
def running(arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a worker, and stop it gently."""
    process = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def bare_hops(environment: dict[str, str]) -> list[float]:
    """Run a chain of Celery's own, and return the times from the end of a body to the start of the next, in seconds."""
    path = Path(environment["BARE_MARKS"])
    path.unlink(missing_ok=True)
    send = f"import bare; bare.step.delay({N_STEPS - 1})"
    subprocess.run([sys.executable, "-c", send], env=environment, check=True)
    until(lambda: path.exists() and path.read_bytes().count(b"\n") == N_STEPS, "the chain has ended")
    marks = sorted(tuple(map(int, line.split()[1:])) for line in path.read_text().splitlines())
    return [(after[0] - before[1]) / 1e9 for before, after in pairwise(marks)]
