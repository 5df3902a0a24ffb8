"""Runs that are due at an instant: how much later they start."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from asynsched.store.runs.dag_runs import list_runs
from tests.benchmarks.measuring import Goal, Sheet, at_least, at_most
from tests.benchmarks.systems import OurClient, Ours

N_DAGS = 1_000
N_FILES = 20
LEAD_SECONDS = 60
"""From the writing of the files until the first run is due: they are to be known by then."""
DUE = """
import os
import time
from datetime import UTC, datetime, timedelta

from asynsched import DAG, task

FIRST = datetime.fromtimestamp(FIRST_SECONDS, UTC)


@task
def mark(name):
    marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(marks, f"{name} {time.time_ns()} {time.time_ns()}\\n".encode())


for n in range(FROM, TO):
    due = FIRST + timedelta(seconds=n * STEP_SECONDS)
    with DAG(f"due_{n:04}", schedule=timedelta(days=1), start_date=due, catchup=True):
        mark(f"due_{n:04}")
"""


def due_together(system: Ours, sheet: Sheet) -> None:
    """1,000 DAGs due in the same second."""
    _measure(system, sheet, 1 / N_DAGS, at_most(0.5))


def due_in_turn(system: Ours, sheet: Sheet) -> None:
    """1,000 DAGs, one due each 100 ms."""
    _measure(system, sheet, 0.1, at_most(0.05))


def _measure(system: Ours, sheet: Sheet, step_seconds: float, goal: Goal) -> None:
    first = int(time.time()) + LEAD_SECONDS
    for number in range(N_FILES):
        step = N_DAGS // N_FILES
        values = {
            "FIRST_SECONDS": first,
            "FROM": number * step,
            "TO": (number + 1) * step,
            "STEP_SECONDS": step_seconds,
        }
        text = DUE
        for name, value in values.items():
            text = text.replace(name, str(value))
        system.write(f"due_{number:02}.py", text)
    due = {
        f"due_{n:04}": datetime.fromtimestamp(first, UTC) + timedelta(seconds=n * step_seconds) for n in range(N_DAGS)
    }
    with system.serving() as client:
        client.wait_for_dags(*due)
        sheet.seconds("files known before the first run was due", first - time.time(), at_least(0))
        client.wait_until(lambda: system.count_marks() == N_DAGS, "every run has run its task", 900)
        starts = _starts(client)
    marks = {name: datetime.fromtimestamp(start / 1e9, UTC) for name, start, _ in system.read_marks()}
    sheet.spread("run started", [(starts[name] - at).total_seconds() for name, at in due.items()], None, None, goal)
    sheet.spread("body of its task begun", [(marks[name] - at).total_seconds() for name, at in due.items()])


def _starts(client: OurClient) -> dict[str, datetime]:
    return {run.dag_id: run.started_at for run in client.database.read(list_runs, limit=N_DAGS + 1)}


LATENESS: dict[str, Callable[[Ours, Sheet], None]] = {"due-together": due_together, "due-in-turn": due_in_turn}
