"""Measure: `python -m tests.benchmarks [--on sqlite|postgresql] [--peer airflow] [--growth] [NAME …]`.

Prints Markdown tables, as docs/benchmark-history.md and docs/scale.md have them, and writes the figures as JSON.
"""

import argparse
import compileall
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asynsched
import sandbox
from asynsched.cli import live_on
from tests.benchmarks import airflow
from tests.benchmarks.flames import recorded
from tests.benchmarks.measuring import Figure, Sheet, machine, medians, table, yardstick_seconds
from tests.benchmarks.systems import Ours, System
from tests.benchmarks.workloads.airflow_files import airflow_files
from tests.benchmarks.workloads.dying import dead_without_a_word
from tests.benchmarks.workloads.engine import transitions
from tests.benchmarks.workloads.events import event_latency
from tests.benchmarks.workloads.folders import FOLDERS, ten_thousand_files
from tests.benchmarks.workloads.growth import GROWTH
from tests.benchmarks.workloads.history import one_task_in_a_full_database
from tests.benchmarks.workloads.lateness import LATENESS
from tests.benchmarks.workloads.running import RUNNING
from tests.benchmarks.workloads.simulating import a_month_simulated
from tests.benchmarks.workloads.starting import commands, start_to_healthy
from tests.benchmarks.workloads.tabs import hops_beside_tabs
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.up import Site

Workload = Callable[[Any, Sheet], None]
SHARED: dict[str, Workload] = {**RUNNING, **FOLDERS, "start": start_to_healthy}
"""The workloads that a peer can run, too."""
OWN: dict[str, Workload] = {
    "many-files": ten_thousand_files,
    "death": dead_without_a_word,
    "engine": transitions,
    "history": one_task_in_a_full_database,
    **LATENESS,
    "events": event_latency,
    "tabs": hops_beside_tabs,
    "commands": commands,
    "simulate": a_month_simulated,
    "airflow-files": airflow_files,
}
if all(find_spec(name) is not None for name in ("celery", "redis", "distributed")):
    from tests.benchmarks.workloads.engines import ON_ENGINES
    from tests.benchmarks.workloads.in_flight import tasks_in_flight

    OWN |= ON_ENGINES | {"in-flight": tasks_in_flight}
WORKLOADS = {**SHARED, **OWN, **GROWTH}
BACKENDS = ("sqlite", "postgresql")
PEER_FOLDER = Path(tempfile.gettempdir()) / "asynsched-peer-airflow"


def main() -> None:
    options = _options()
    _compile_modules()
    live_on()  # the engine alone is to collect garbage as `asynsched up` does
    figures: list[Figure] = []
    yardsticks: list[float] = []
    with ExitStack() as stack:
        needs_server = options.peer or "postgresql" in options.on
        server = stack.enter_context(running_postgres()) if needs_server else None
        for name in options.names * options.rounds:
            for make in _systems(name, options, server):
                yardsticks.append(yardstick_seconds())
                found = _measure(name, make, yardsticks[-1], options.flames)
                print(table(found), file=sys.stderr, flush=True)
                figures += found
    p = statistics.median(yardsticks)
    print(f"{machine()}; P = {p * 1000:.1f} ms, measured again before each row\n\n{table(medians(figures))}")
    if options.json:
        document = {"machine": machine(), "p_seconds": p, "figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *WORKLOADS], help=", ".join(WORKLOADS))
    parser.add_argument("--on", choices=BACKENDS, action="append", help="a database of ours; by default both")
    parser.add_argument("--peer", choices=["airflow"], help="measure it beside ours, where it can do the same")
    parser.add_argument("--peer-folder", type=Path, default=PEER_FOLDER, help="where its environment is, or is made")
    parser.add_argument("--growth", action="store_true", help="also the growth curves of docs/scale.md")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="so often; the table has the medians")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--flames", type=Path, metavar="FOLDER", help="write flame graphs there")
    options = parser.parse_args()
    options.on = options.on or list(BACKENDS)
    options.names = options.names or [name for name in WORKLOADS if options.growth or name not in GROWTH]
    if "pandas" in options.names and find_spec("pandas") is None:
        parser.error("the workload pandas needs pandas: pip install -e '.[benchmark]'")
    return options


def _compile_modules() -> None:
    """Compile our modules, as pip does when it installs a package, also where Python is told to write no bytecode."""
    for package in (asynsched, sandbox):
        compileall.compile_dir(Path(package.__file__).parent, quiet=1)


def _systems(
    name: str, options: argparse.Namespace, server: PostgresServer | None
) -> Iterator[Callable[[Path], System]]:
    """Yield the factories of the systems on which the workload is measured, in turn."""
    for backend in options.on:
        database = server.new_database() if backend == "postgresql" else None
        yield lambda root, backend=backend, database=database: Ours(Site(root, database), backend)
    if options.peer and name in SHARED:
        python = airflow.install(options.peer_folder)
        for is_tuned in (False, True):
            url = server.new_database(migrated=False)
            yield lambda root, url=url, is_tuned=is_tuned: airflow.Airflow(root, python, url, is_tuned=is_tuned)


def _measure(name: str, make: Callable[[Path], System], p: float, flames: Path | None) -> list[Figure]:
    """Run a workload on a system of its own."""
    with tempfile.TemporaryDirectory(prefix="asynsched-benchmark-") as folder:
        system = make(Path(folder) / "site")
        sheet = Sheet(name, system.name, p, has_goals=isinstance(system, Ours))
        with recorded(system, flames, f"{name}-{system.name}"):
            WORKLOADS[name](system, sheet)
        return sheet.figures


if __name__ == "__main__":
    main()
