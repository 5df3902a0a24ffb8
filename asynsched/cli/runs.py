"""`asynsched runs …`."""

from typing import Any

import click

from asynsched.cli.command import command, completed_as, dag_argument, run_argument
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Listing, Record
from asynsched.cli.session import Session
from asynsched.states import DagRunState
from asynsched.store.assets.events import consumed_events
from asynsched.store.dags.dags import find_dag, get_dag
from asynsched.store.runs.callbacks import list_callbacks
from asynsched.store.runs.dag_runs import DagRunRow, list_runs
from asynsched.store.runs.deadlines import list_deadlines

COLUMNS = (
    "dag_id",
    "run_id",
    "run_type",
    "state",
    "reason",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
    "run_after",
    "queued_at",
    "started_at",
    "ended_at",
)
USUAL_COLUMNS = ("dag_id", "run_id", "state", "reason", "logical_date", "started_at", "ended_at")
SPARE_COLUMNS = ("ended_at", "reason", "started_at")

CALLBACK_COLUMNS = ("event", "task_id", "map_index", "try_number", "state", "attempts")
EVENT_COLUMNS = ("name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id", "source_map_index")
DEADLINE_COLUMNS = ("name", "due_at", "state")


@command("list", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completed_as("dag"))
@click.option("--state", type=click.Choice([state.value for state in DagRunState]), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="How many at most.")
def show_runs(session: Session, dag_id: str | None, state: str | None, limit: int) -> Listing:
    """List runs, of one DAG or of all, newest first. A DAG whose file is gone keeps its runs."""
    runs = session.read(list_runs, dag_id=dag_id, state=state, limit=limit)
    if dag_id is not None and not runs and session.read(get_dag, dag_id) is None:
        session.read(find_dag, dag_id)  # raises, and names what is near
    rows = [run_fields(run) for run in runs]
    nothing = f"There are no runs in {session.place}."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=SPARE_COLUMNS)


@command("show", tables=True)
@dag_argument
@run_argument
def show_run(session: Session, dag_id: str, run_id: str) -> Record:
    """Show a run, the asset events that triggered it, its deadlines, and how far its callbacks have come."""
    run = session.read(find_run, dag_id, run_id)
    callbacks = [
        {name: getattr(item, name) for name in CALLBACK_COLUMNS} for item in session.read(list_callbacks, run.id)
    ]
    deadlines = [
        {name: getattr(item, name) for name in DEADLINE_COLUMNS} for item in session.read(list_deadlines, run.id)
    ]
    events = [{name: getattr(item, name) for name in EVENT_COLUMNS} for item in session.read(consumed_events, run.id)]
    sections = {"asset_events": events, "callbacks": callbacks, "deadlines": deadlines}
    return Record({**run_fields(run), "conf": run.conf, **sections}, sections=dict.fromkeys(sections, ()))


def run_fields(run: DagRunRow) -> dict[str, Any]:
    """Return what is shown of a run."""
    return {name: getattr(run, name) for name in COLUMNS}
