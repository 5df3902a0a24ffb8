"""Folders of DAG files: cold, unchanged, edited, idle."""

import time
from collections.abc import Callable

from tests.benchmarks.measuring import Sheet, at_least_a_p, at_most, percentile
from tests.benchmarks.systems import Client, Ours, System, cpu_seconds, memory_mb

THREE_TASKS = """
from {sdk} import DAG, chain, task


@task
def work():
    return None


with DAG("DAG_ID", schedule="0 0 1 1 *"):
    chain(*[work.override(task_id=f"{name}SUFFIX")() for name in ("extract", "transform", "load")])
"""
N_FILES = 300
N_MANY_FILES = 10_000
IDLE_SECONDS = 30.0
SETTLE_SECONDS = 5.0
LOOK_SECONDS = 0.005
PAUSE_SECONDS = 0.2
"""A person saves less often; and a save is not to meet the end of the one before."""


def three_tasks(dag_id: str, suffix: object = "") -> str:
    return THREE_TASKS.replace("DAG_ID", dag_id).replace("SUFFIX", str(suffix))


def write_files(system: System, n: int) -> None:
    for number in range(n):
        system.write(f"file_{number:05}.py", three_tasks(f"dag_{number:05}"))


def files(system: System, sheet: Sheet) -> None:
    """300 files of 3 tasks on a new installation, from its start; then the memory and CPU time of the idle system."""
    write_files(system, N_FILES)
    started_at = time.perf_counter()
    with system.serving() as client:
        client.wait_until(lambda: len(client.dag_ids()) == N_FILES, "every DAG is known")
        sheet.rate("files, start included", N_FILES / (time.perf_counter() - started_at))
        note_idle(system, sheet)


def save_to_visible(system: System, sheet: Sheet) -> None:
    """One file in the folder: from the save until its new version is seen."""
    with system.serving() as client:
        times = saves(system, client)
    sheet.spread("save to visible", times)


def ten_thousand_files(system: Ours, sheet: Sheet) -> None:
    """10,000 files of 3 tasks: cold, then started again; idle; then edits of one of them."""
    write_files(system, N_MANY_FILES)
    system.site.run("db", "upgrade")
    started_at = time.perf_counter()
    system.site.up_until_idle(timeout=3600)
    sheet.rate("cold, start and stop included", N_MANY_FILES / (time.perf_counter() - started_at), at_least_a_p(1.5))
    started_at = time.perf_counter()
    system.site.up_until_idle(timeout=600)
    sheet.seconds("nothing changed, all known, start and stop included", time.perf_counter() - started_at, at_most(3))
    started_at = time.perf_counter()
    with system.serving() as client:
        sheet.seconds("known ones, start to healthy", time.perf_counter() - started_at, at_most(3))
        note_idle(system, sheet, at_most(0.5), at_most(250))
        times = saves(system, client)
        sheet.seconds("save to visible, p95", percentile(times, 0.95), at_most(0.2))


def saves(system: System, client: Client) -> list[float]:
    """Save a file again and again; return how long each took to be seen by a client that looks all the time."""
    times: list[float] = []
    for number in range(system.n_saves):
        before = client.version("saved")
        saved_at = time.perf_counter()
        system.write("saved.py", three_tasks("saved", number))
        while client.version("saved") == before:
            assert time.perf_counter() < saved_at + 600, client.story()
            time.sleep(LOOK_SECONDS)
        times.append(time.perf_counter() - saved_at)
        time.sleep(PAUSE_SECONDS)
    return times


def note_idle(system: System, sheet: Sheet, cpu: object = None, memory: object = None) -> None:
    """Note CPU time and memory of every process of the system while nothing happens."""
    time.sleep(SETTLE_SECONDS)  # the work of a start is over
    processes = system.processes()
    before = cpu_seconds(processes)
    time.sleep(IDLE_SECONDS)
    sheet.amount("idle, CPU of one core", (cpu_seconds(processes) - before) / IDLE_SECONDS * 100, "%", cpu)
    sheet.amount("idle, memory", memory_mb(processes), "MB", memory)


FOLDERS: dict[str, Callable[[System, Sheet], None]] = {"files": files, "save": save_to_visible}
