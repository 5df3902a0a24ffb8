"""`asynsched runs …`: shows, clears, marks and cancels DAG runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from asynsched.cli.command import command, completed_as, dag_argument, run_argument, yes_option
from asynsched.cli.lookup import find_run
from asynsched.cli.output import Done, Listing, Record
from asynsched.cli.requests import Wording, carry_out, dry_run_option
from asynsched.cli.session import Session
from asynsched.states import DagRunState
from asynsched.store.assets import consumed_events
from asynsched.store.dags.dags import find_dag, get_dag
from asynsched.store.runs.callbacks import list_callbacks
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.runs.deadlines import list_deadlines
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkedRunState, MarkRun
from asynsched.store.schema import DagRunRow

_INTERNAL = {"id", "conf", "version_id", "scheduler_id", "lease_epoch", "backfill_id", "stop"}
COLUMNS = tuple(name for name in DagRunRow.__struct_fields__ if name not in _INTERNAL)
USUAL_COLUMNS = ("dag_id", "run_id", "state", "reason", "logical_date", "started_at", "ended_at")
SPARE_COLUMNS = ("ended_at", "reason", "started_at", "logical_date")

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
        session.read(find_dag, dag_id)  # raises, and suggests near names
    rows = [run_fields(run) for run in runs]
    nothing = f"There are no runs in {session.place}."
    return Listing(COLUMNS, rows, nothing, usual=USUAL_COLUMNS, spare=SPARE_COLUMNS)


@command("show", tables=True)
@dag_argument
@run_argument
def show_run(session: Session, dag_id: str, run_id: str) -> Record:
    """Show a run, the asset events that triggered it, its deadlines and its callbacks."""
    run = session.read(find_run, dag_id, run_id)
    queries: tuple[tuple[str, Sequence[str], Callable[..., Iterable[object]]], ...] = (
        ("asset_events", EVENT_COLUMNS, consumed_events),
        ("callbacks", CALLBACK_COLUMNS, list_callbacks),
        ("deadlines", DEADLINE_COLUMNS, list_deadlines),
    )
    sections = {
        name: [{column: getattr(item, column) for column in columns} for item in session.read(query, run.id)]
        for name, columns, query in queries
    }
    return Record({**run_fields(run), "conf": run.conf, **sections}, sections=dict.fromkeys(sections, ()))


def run_fields(run: DagRunRow) -> dict[str, Any]:
    """Return the fields of a run that are shown."""
    return {name: getattr(run, name) for name in COLUMNS}


@command("clear")
@dag_argument
@run_argument
@click.option("--only-failed", is_flag=True, help="Only the tasks that have failed, or whose upstream has.")
@click.option("--latest", is_flag=True, help="Move the run to the newest version of its DAG first.")
@dry_run_option
@yes_option
def clear_run(session: Session, dag_id: str, run_id: str, dry_run: bool, yes: bool, **options: Any) -> Done | Listing:
    """Clear all tasks of a run, so that it runs again, with the version of its DAG that it began with.

    With --latest: tasks that the newest version lacks are removed, new ones are added.
    """
    wording = Wording("run.clear", "Clear {n} of {run}?", "Cleared {n} of {run}.")
    request = ClearTasks(**options)
    return carry_out(session, dag_id, run_id, request, wording, detail=options, dry_run=dry_run, yes=yes)


@command("mark")
@dag_argument
@run_argument
@click.argument("state", type=click.Choice(["success", "failed"]))
@yes_option
def mark_run(session: Session, dag_id: str, run_id: str, state: MarkedRunState, yes: bool) -> Done | Listing:
    """Mark a run as ended. Running tasks are killed; teardowns that have not run yet still do.

    `success` marks all its tasks as success; `failed` skips the tasks that wait.
    """
    wording = Wording(
        "run.mark",
        f"Mark the run {{run}} as {state}, and with it {{n}}?",
        f"Marked the run {{run}} as {state}, and with it {{n}}.",
    )
    return carry_out(session, dag_id, run_id, MarkRun(state), wording, detail={"state": state}, yes=yes)


@command("cancel")
@dag_argument
@run_argument
@yes_option
def cancel_run(session: Session, dag_id: str, run_id: str, yes: bool) -> Done | Listing:
    """Cancel a run that is queued or running: its processes are killed, and it has failed.

    Tasks that wait are skipped, teardowns among them: `asynsched runs mark … failed` runs the teardowns.
    """
    wording = Wording(
        "run.cancel", "Cancel the run {run}, and with it {n}?", "Cancelled the run {run}, and with it {n}."
    )
    return carry_out(session, dag_id, run_id, CancelRun(), wording, yes=yes)
