"""A simulated month."""

import json
import os
import time

from tests.benchmarks.measuring import Sheet
from tests.benchmarks.systems import Ours

N_DAGS = 500
LAST_DAY = "2026-03-31"
MANY_DAGS = """
from datetime import datetime
from asynsched import DAG, BashOperator, chain

for n in range(N_DAGS):
    with DAG(f"daily_{n:03}", schedule="@daily", start_date=datetime(2026, 1, 1)):
        chain(*[BashOperator(task_id=f"step_{k}", bash_command="true") for k in range(5)])
"""


def a_month_simulated(system: Ours, sheet: Sheet) -> None:
    """30 days of 500 daily DAGs of 5 tasks: 75,000 ends of tasks.

    Once with a minute for each task, so that many end together, and once with another length for each.
    """
    site = system.site
    (site.dags / "many.py").write_text(MANY_DAGS.replace("N_DAGS", str(N_DAGS)))
    lengths = {
        f"daily_{n:03}.step_{k}": 20 + (n * 7919 + k * 104729) % 9973 / 100 for n in range(N_DAGS) for k in range(5)
    }
    (site.root / "lengths.json").write_text(json.dumps(lengths))
    span = ("simulate", str(site.dags), "--from", "2026-03-01", "--to", LAST_DAY)
    for name, flags in (("one length", ()), ("2,500 lengths", ("--durations", "lengths.json"))):
        before, started_at = os.times(), time.perf_counter()
        site.run(*span, *flags, timeout=600)
        after = os.times()
        sheet.seconds(f"{name}, time", time.perf_counter() - started_at)
        used = after.children_user + after.children_system - before.children_user - before.children_system
        sheet.seconds(f"{name}, CPU time", used)
