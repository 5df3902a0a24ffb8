"""What keeps the active runs from going on, when none of them does."""

from datetime import datetime

from asynsched.explaining.runs import explain_run
from asynsched.explaining.snapshot import take_snapshot
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run

MOST_RUNS = 5
"""Runs that are told of by name."""


async def explain_standstill(database: Database, settings: Settings, now: datetime) -> str:
    """Return in a sentence what keeps the active runs from going on; empty if some run goes on after all."""
    snapshot = await take_snapshot(database, settings, now)
    runs = [snapshot.evaluation.runs[key] for key in sorted(snapshot.evaluation.runs)]
    told = []
    for run in runs[:MOST_RUNS]:
        row = await database.read(get_run, *run.key)
        explained = None if row is None else explain_run(snapshot, row, run)
        if explained is None or not explained.reasons:
            return ""
        more = len(explained.reasons) - 1
        told.append(f"{explained.subject}: {explained.reasons[0].text}{f', and {more} more' if more else ''}")
    if len(runs) > MOST_RUNS:
        told.append(f"and {len(runs) - MOST_RUNS} more")
    return "; ".join(told)
