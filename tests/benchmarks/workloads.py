"""The workloads. Each is given a new site, and returns its figures."""

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import psutil

from tests.benchmarks.client import Client, read_marks
from tests.benchmarks.measuring import Figure, percentile
from tests.support.up import Site, Up

MARKING_TASK = """
import os
import time

from asynsched import DAG, chain, task


@task
def mark(name):
    started_at = time.time_ns()
    marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{name} {started_at} {time.time_ns()}\\n".encode())

"""
CHAIN = """
with DAG("chain"):
    chain(*[mark.override(task_id=f"step_{number}")(number) for number in range(30)])
"""
FAN_OUT = """
with DAG("fan_out", max_active_tasks=100):
    for number in range(100):
        mark.override(task_id=f"task_{number}")(number)
"""
THREE_TASKS = """
from asynsched import DAG, EmptyOperator, chain

with DAG("{dag_id}", schedule="0 0 1 1 *"):
    chain(*[EmptyOperator(task_id=f"{{name}}{suffix}") for name in ("extract", "transform", "load")])
"""
MANY_DAGS = """
from datetime import datetime
from asynsched import DAG, BashOperator, chain

for n in range(500):
    with DAG(f"daily_{n:03}", schedule="@daily", start_date=datetime(2026, 1, 1)):
        chain(*[BashOperator(task_id=f"step_{k}", bash_command="true") for k in range(5)])
"""
N_RUNS = 6
N_FILES = 300
N_MANY_FILES = 10_000
N_SAVES = 40
IDLE_SECONDS = 30.0
LOOK_SECONDS = 0.005


@contextmanager
def served(site: Site, *flags: str) -> Iterator[tuple[Client, Up]]:
    site.env["MARKS"] = str(site.root / "marks")
    with site.up(*flags) as up:
        yield Client(site), up


def chain_of_30(site: Site, backend: str, p: float) -> list[Figure]:
    """Time between the end of a task's body and the start of the next one's."""
    (site.dags / "chain.py").write_text(MARKING_TASK + CHAIN)
    hops: list[float] = []
    with served(site) as (client, _):
        client.wait_until(lambda: "chain" in client.versions(), "the DAG is known")
        for number in range(N_RUNS):
            key, _asked_at = client.trigger("chain")
            client.wait_for_success(key)
            marks = sorted(read_marks(site.root / "marks"), key=lambda mark: mark[1])[-30:]
            if number > 0:  # the first run also starts the template
                hops += [(after[1] - before[2]) / 1e9 for before, after in pairwise(marks)]
    return [
        Figure(
            "chain of 30", backend, "hop, median", statistics.median(hops) * 1000, "ms", statistics.median(hops) / p
        ),
        Figure("chain of 30", backend, "hop, p95", percentile(hops, 0.95) * 1000, "ms", percentile(hops, 0.95) / p),
    ]


def fan_out_of_100(site: Site, backend: str, p: float) -> list[Figure]:
    """Time from the client's trigger to the end of the last of 100 independent bodies, at parallelism 16."""
    (site.dags / "fan_out.py").write_text(MARKING_TASK + FAN_OUT)
    rates: list[float] = []
    with served(site, "--parallelism", "16") as (client, _):
        client.wait_until(lambda: "fan_out" in client.versions(), "the DAG is known")
        for number in range(N_RUNS):
            key, asked_at = client.trigger("fan_out")
            client.wait_for_success(key)
            last_end = max(mark[2] for mark in read_marks(site.root / "marks"))
            if number > 0:
                rates.append(100 / ((last_end - asked_at) / 1e9))
    rate = statistics.median(rates)
    return [Figure("fan-out of 100", backend, "tasks, parallelism 16", rate, "/s", rate * p)]


def files_of_three_tasks(site: Site, backend: str, p: float) -> list[Figure]:
    """Time from the start of `asynsched up` until the DAGs of 300 files are all stored."""
    write_files(site)
    site.run("db", "upgrade")
    client = Client(site)
    started_at = time.perf_counter()
    with site.up():
        client.wait_until(lambda: len(client.versions()) == N_FILES, "every DAG is known")
        seconds = time.perf_counter() - started_at
    rate = N_FILES / seconds
    return [Figure("300 files", backend, "files registered", rate, "/s", rate * p)]


def ten_thousand_files(site: Site, backend: str, p: float) -> list[Figure]:
    """Time of `asynsched up --until-idle` on 10,000 new files, start and stop included; then once more on the same."""
    write_files(site, N_MANY_FILES)
    site.run("db", "upgrade")
    seconds = []
    for _ in range(2):
        started_at = time.perf_counter()
        site.up_until_idle(timeout=3600)
        seconds.append(time.perf_counter() - started_at)
    assert len(Client(site).versions()) == N_MANY_FILES
    rate = N_MANY_FILES / seconds[0]
    return [
        Figure("10,000 files", backend, "cold, start and stop included", rate, "/s", rate * p),
        Figure("10,000 files", backend, "nothing changed, start to stop", seconds[1], "s", seconds[1] / p),
    ]


def save_to_visible(site: Site, backend: str, p: float) -> list[Figure]:
    """Time from the save of a file until a client that looks every few milliseconds sees its new version."""
    times: list[float] = []
    with served(site) as (client, _):
        for number in range(N_SAVES):
            before = client.versions().get("saved")
            saved_at = time.perf_counter()
            (site.dags / "saved.py").write_text(THREE_TASKS.format(dag_id="saved", suffix=number))
            while client.versions().get("saved") == before:
                assert time.perf_counter() < saved_at + 30, site.story()
                time.sleep(LOOK_SECONDS)
            times.append(time.perf_counter() - saved_at)
            time.sleep(0.2)  # a person saves less often; and a save is not to meet the end of the one before
    return [
        Figure(
            "save to visible", backend, "median", statistics.median(times) * 1000, "ms", statistics.median(times) / p
        ),
        Figure("save to visible", backend, "p95", percentile(times, 0.95) * 1000, "ms", percentile(times, 0.95) / p),
    ]


def idle_with_300_dags(site: Site, backend: str, p: float) -> list[Figure]:
    """CPU time and memory of every process of the scheduler while nothing happens."""
    write_files(site)
    site.up_until_idle(timeout=180)
    with site.up():
        time.sleep(5)  # what a start does is over
        processes = site.processes()
        before = cpu_seconds(processes)
        time.sleep(IDLE_SECONDS)
        share = (cpu_seconds(processes) - before) / IDLE_SECONDS
        memory = sum(process.memory_full_info().uss for process in processes) / 1024**2
    return [
        Figure("idle, 300 DAGs", backend, "CPU of one core", share * 100, "%"),
        Figure("idle, 300 DAGs", backend, "memory", memory, "MiB"),
    ]


def a_month_simulated(site: Site, backend: str, p: float) -> list[Figure]:
    """Time that `asynsched simulate` takes for 30 days of 500 daily DAGs of 5 tasks: 75,000 ends of tasks.

    Once with a minute for each task, so that many end together, and once with another length for each.
    """
    (site.dags / "many.py").write_text(MANY_DAGS)
    lengths = {
        f"daily_{n:03}.step_{k}": 20 + (n * 7919 + k * 104729) % 9973 / 100 for n in range(500) for k in range(5)
    }
    (site.root / "lengths.json").write_text(json.dumps(lengths))
    span = ("simulate", str(site.dags), "--from", "2026-03-01", "--to", "2026-03-31")
    figures = []
    for name, flags in (("one length", ()), ("2,500 lengths", ("--durations", "lengths.json"))):
        before, started_at = os.times(), time.perf_counter()
        site.run(*span, *flags, timeout=600)
        seconds, after = time.perf_counter() - started_at, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        figures += [
            Figure("a month simulated", backend, f"{name}, time", seconds, "s", seconds / p),
            Figure("a month simulated", backend, f"{name}, CPU time", cpu, "s", cpu / p),
        ]
    return figures


def figures_of_times(workload: str, backend: str, name: str, times: list[float], p: float) -> list[Figure]:
    """Return median and p95 of times in seconds."""
    found = {"median": statistics.median(times), "p95": percentile(times, 0.95)}
    return [
        Figure(workload, backend, f"{name}, {which}", seconds * 1000, "ms", seconds / p)
        for which, seconds in found.items()
    ]


def write_files(site: Site, n: int = N_FILES) -> None:
    for number in range(n):
        (site.dags / f"file_{number:03}.py").write_text(THREE_TASKS.format(dag_id=f"dag_{number:03}", suffix=""))


def cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


WORKLOADS: dict[str, Callable[[Site, str, float], list[Figure]]] = {
    "chain": chain_of_30,
    "fan-out": fan_out_of_100,
    "files": files_of_three_tasks,
    "many-files": ten_thousand_files,
    "save": save_to_visible,
    "idle": idle_with_300_dags,
    "simulate": a_month_simulated,
}
