"""Runs of tasks that do nothing, or little: hops in a chain, tasks at once, runs at once."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

from tests.benchmarks.measuring import Sheet, at_least_a_p, at_most_p, percentile
from tests.benchmarks.systems import Client, System

TASKS = """
import os
import time

from {sdk} import DAG, chain, task


@task
def mark(name, fib=0):
    started_at = time.time_ns()
    if fib:
        fibonacci(fib)
    marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{name} {started_at} {time.time_ns()}\\n".encode())


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

"""
CHAIN = """
with DAG("%(dag_id)s", schedule=None):
    chain(*[mark.override(task_id=f"step_{number}")(number%(fib)s) for number in range(%(n)d)])
"""
FAN_OUT = """
with DAG("fan_out", schedule=None, max_active_tasks=100):
    for number in range(100):
        mark.override(task_id=f"task_{number}")(number)
"""
CHAINS = """
for n in range(%(n)d):
    with DAG(f"chain_{n:02}", schedule=None):
        chain(*[mark.override(task_id=f"step_{number}")(f"{n}_{number}") for number in range(5)])
"""
PANDAS = "import pandas\n"
HEAVY_FIB = 33
N_CHAINS = 50


def chain_text(n: int, fib: str = "", dag_id: str = "chain") -> str:
    return TASKS + CHAIN % {"dag_id": dag_id, "n": n, "fib": fib}


def timed_runs(system: System, client: Client, dag_ids: Iterable[str], n_tasks: int) -> list[tuple[int, list]]:
    """Run these DAGs together, several times; return of each time when it was asked for, and its marks.

    The first time, which starts the template, is left out. The marks are waited for in their file: to ask the system
    would take a share of the machine.
    """
    dag_ids = list(dag_ids)
    client.wait_for_dags(*dag_ids)
    found = []
    for _ in range(system.n_runs):
        n_marks = system.count_marks() + n_tasks * len(dag_ids)
        triggered = [client.trigger(dag_id) for dag_id in dag_ids]
        client.wait_until(lambda n_marks=n_marks: system.count_marks() >= n_marks, f"{n_marks} marks are there")
        client.wait_for_success(*(key for key, _ in triggered))
        marks = sorted(system.read_marks(), key=lambda mark: mark[1])[-n_tasks * len(dag_ids) :]
        found.append((triggered[0][1], marks))
    return found[1:]


def hops(runs: list[tuple[int, list]]) -> list[float]:
    """Return the times from the end of a body to the start of the next, in seconds."""
    return [(after[1] - before[2]) / 1e9 for _, marks in runs for before, after in pairwise(marks)]


def lengths(runs: list[tuple[int, list]]) -> list[float]:
    """Return the times from triggering a run to the end of its last body, in seconds."""
    return [(max(mark[2] for mark in marks) - asked_at) / 1e9 for asked_at, marks in runs]


def chain_of_30(system: System, sheet: Sheet) -> None:
    """Hops of a chain of no-op tasks."""
    system.write("chain.py", chain_text(30))
    with system.serving() as client:
        found = hops(timed_runs(system, client, ["chain"], 30))
    sheet.seconds("hop, median", median(found), at_most_p(0.5))
    sheet.seconds("hop, p95", percentile(found, 0.95), at_most_p(1))


def forty_small(system: System, sheet: Sheet) -> None:
    """40 tasks of fib(10) in sequence, from triggering to the last mark."""
    system.write("chain.py", chain_text(40, ", fib=10"))
    with system.serving() as client:
        found = lengths(timed_runs(system, client, ["chain"], 40))
    sheet.seconds("trigger to last mark", median(found), at_most_p(40 * 0.7))


def ten_heavy(system: System, sheet: Sheet) -> None:
    """10 tasks of fib(33) in sequence, and the share of the time outside the tasks' own work."""
    system.write("chain.py", chain_text(10, f", fib={HEAVY_FIB}"))
    with system.serving() as client:
        runs = timed_runs(system, client, ["chain"], 10)
    own = [sum(mark[2] - mark[1] for mark in marks) / 1e9 for _, marks in runs]
    sheet.seconds("trigger to last mark", median(lengths(runs)))
    sheet.seconds("of that, outside of the bodies", median(a - b for a, b in zip(lengths(runs), own, strict=True)))


def fan_out_of_100(system: System, sheet: Sheet) -> None:
    """100 independent tasks at parallelism 16."""
    system.write("fan_out.py", TASKS + FAN_OUT)
    with system.serving(parallelism=16) as client:
        found = lengths(timed_runs(system, client, ["fan_out"], 100))
    sheet.rate("tasks", 100 / median(found), at_least_a_p(4))


def fifty_chains(system: System, sheet: Sheet) -> None:
    """50 DAGs of 5-task chains, triggered at once."""
    system.write("chains.py", TASKS + CHAINS % {"n": N_CHAINS})
    with system.serving() as client:
        found = lengths(timed_runs(system, client, [f"chain_{n:02}" for n in range(N_CHAINS)], 5))
    sheet.rate("tasks", 5 * N_CHAINS / median(found), at_least_a_p(4))


def pandas_file(system: System, sheet: Sheet) -> None:
    """Hops of a file that imports pandas, and their cost beyond those of a file that does not."""
    system.write("chain.py", chain_text(30))
    system.write("with_pandas.py", PANDAS + chain_text(30, dag_id="with_pandas"))
    with system.serving() as client:
        plain = median(hops(timed_runs(system, client, ["chain"], 30)))
        found = median(hops(timed_runs(system, client, ["with_pandas"], 30)))
    sheet.seconds("hop, median", found)
    sheet.seconds("beyond that of a file without it", found - plain, at_most_p(0.6))


RUNNING: dict[str, Callable[[System, Sheet], None]] = {
    "chain": chain_of_30,
    "forty-small": forty_small,
    "ten-heavy": ten_heavy,
    "fan-out": fan_out_of_100,
    "chains": fifty_chains,
    "pandas": pandas_file,
}
