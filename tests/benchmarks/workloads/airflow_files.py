"""Unmodified files of Airflow beside the same file with our names: parse and hop, measured in turn."""

import asyncio
import sys
import time
from collections.abc import Iterator
from statistics import median

from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.settings import Settings
from tests.benchmarks.measuring import Sheet, at_most, at_most_p, command_seconds
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.running import chain_text, hops, timed_runs

OURS = "from {sdk} import DAG, chain, task\n"
IMPORTS = {
    "ours": OURS,
    "airflow_3": "from airflow.sdk import DAG, chain, task\n",
    "airflow_2": "from airflow import DAG\nfrom airflow.decorators import task\n"
    "from airflow.models.baseoperator import chain\n",
}
"""The imports of the file, by its DAG. That of Airflow 2 has an argument of Airflow 2, too."""
N_PARSES = 60
N_ROUNDS = 4
N_IMPORTS = 30


def airflow_files(system: Ours, sheet: Sheet) -> None:
    """Parse and hop of a file with the names of Airflow 3, and of Airflow 2, as multiples of those of our names."""
    for dag_id, imports in IMPORTS.items():
        text = chain_text(30, dag_id=dag_id).replace(OURS, imports)
        system.write(f"{dag_id}.py", text.replace("schedule=", "schedule_interval=") if dag_id == "airflow_2" else text)
    parses = {dag_id: list[float]() for dag_id in IMPORTS}
    for dag_id, seconds in asyncio.run(_parses(system)):
        parses[dag_id].append(seconds)
    _note(sheet, "parse", parses)
    found = {dag_id: list[float]() for dag_id in IMPORTS}
    with system.serving() as client:
        for _ in range(N_ROUNDS):
            for dag_id in IMPORTS:
                found[dag_id].append(median(hops(timed_runs(system, client, [dag_id], 30))))
    _note(sheet, "hop", found)
    program = [sys.executable, "-c", "from asynsched import DAG, task"]
    sheet.seconds("import of DAG and task", median(command_seconds(program, N_IMPORTS)), at_most_p(3))


async def _parses(system: Ours) -> list[tuple[str, float]]:
    """Parse each file in turn, in confined processes of one server; return how long each parse took."""
    settings = Settings(dags_folder=str(system.dags), home=str(system.site.home))
    system.site.home.mkdir(exist_ok=True)
    (system.site.home / "tmp").mkdir(exist_ok=True)
    found = []
    async with SandboxParser(settings) as parser:
        for number in range(N_PARSES + 1):
            for dag_id in IMPORTS:
                started_at = time.perf_counter()
                report = await parser.parse(f"{dag_id}.py")
                assert not report.errors, report.errors
                if number:  # the first one starts the server
                    found.append((dag_id, time.perf_counter() - started_at))
    return found


def _note(sheet: Sheet, what: str, found: dict[str, list[float]]) -> None:
    for dag_id, times in found.items():
        sheet.seconds(f"{what}, {dag_id}", median(times))
    for dag_id, ratio in _ratios(found):
        sheet.amount(f"{what}, {dag_id} / ours", ratio, "", at_most(1.2))


def _ratios(found: dict[str, list[float]]) -> Iterator[tuple[str, float]]:
    """Yield the median of the ratios of times that were measured one after the other."""
    for dag_id in (name for name in found if name != "ours"):
        yield dag_id, median(a / b for a, b in zip(found[dag_id], found["ours"], strict=True))
