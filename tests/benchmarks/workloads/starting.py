"""Starts: of the scheduler on an empty home, of a command, and of the import of the authoring names."""

import sys
import time
from statistics import median

from tests.benchmarks.measuring import Sheet, at_most_p, command_seconds
from tests.benchmarks.systems import Ours, System
from tests.benchmarks.workloads.running import chain_text

TIMES = 15


def start_to_healthy(system: System, sheet: Sheet) -> None:
    """From the start of the process on an empty installation until it answers."""
    started_at = time.perf_counter()
    with system.serving():
        sheet.seconds("empty home, start to healthy", time.perf_counter() - started_at, at_most_p(90))


def commands(system: Ours, sheet: Sheet) -> None:
    """A command beside a scheduler that serves; and the import that a DAG file begins with."""
    system.write("chain.py", chain_text(30))
    site = system.site
    with system.serving() as client:
        client.wait_for_dags("chain")
        key, _ = client.trigger("chain")
        client.wait_for_success(key)
        for name, command in (("runs show", ("runs", "show", *key)), ("dags list", ("dags", "list"))):
            found = command_seconds(site.command(*command), TIMES, site.environment)
            sheet.seconds(f"asynsched {name}", median(found), at_most_p(30))
    program = "from asynsched import DAG, task, chain, Asset, Param"
    found = command_seconds([sys.executable, "-c", program], TIMES, site.environment)
    sheet.seconds("import of the authoring names", median(found), at_most_p(3))
