"""`asynsched runs …`."""

from typing import Any

import click

from asynsched.cli.command import command, completed_as, dag_argument, run_argument, yes_option
from asynsched.cli.lookup import find_run
from asynsched.cli.output import Done, Listing, Record
from asynsched.cli.requests import ask, concerned, dry_run_option, submit
from asynsched.cli.session import Session
from asynsched.keys import DagRunKey
from asynsched.states import DagRunState
from asynsched.store.assets.events import consumed_events
from asynsched.store.dags.dags import find_dag, get_dag
from asynsched.store.runs.callbacks import list_callbacks
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.runs.deadlines import list_deadlines
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkedRunState, MarkRun
from asynsched.store.schema import DagRunRow

_INTERNAL = {"id", "conf", "version_id", "scheduler_id", "lease_epoch", "backfill_id", "stop"}
COLUMNS = tuple(name for name in DagRunRow.__struct_fields__ if name not in _INTERNAL)
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


@command("clear")
@dag_argument
@run_argument
@click.option("--only-failed", is_flag=True, help="Only the tasks that have failed, or whose upstream has.")
@click.option("--latest", is_flag=True, help="Move the run to the newest version of its DAG first.")
@dry_run_option
@yes_option
def clear_run(
    session: Session, dag_id: str, run_id: str, only_failed: bool, latest: bool, dry_run: bool, yes: bool
) -> Done | Listing:
    """Let a run run again, with the version of its DAG that it began with.

    With --latest: tasks that the newest version lacks are removed, new ones are added.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    request = ClearTasks(only_failed=only_failed, latest=latest)
    if dry_run:
        return concerned(session, key, request)
    if not yes:
        ask(session, key, request, f"Clear {{n}} of {run.run_id}?")
    detail = {"only_failed": only_failed, "latest": latest}
    return submit(session, key, request, action="run.clear", done=f"Cleared {{n}} of {run.run_id}.", detail=detail)


@command("mark")
@dag_argument
@run_argument
@click.argument("state", type=click.Choice(["success", "failed"]))
@yes_option
def mark_run(session: Session, dag_id: str, run_id: str, state: MarkedRunState, yes: bool) -> Done:
    """Say how a run has ended. What runs is killed; teardowns that have not run yet still do.

    `success` marks all its tasks as success; `failed` skips those that wait.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    request = MarkRun(state)
    if not yes:
        ask(session, key, request, f"Mark the run {run.run_id} as {state}, and with it {{n}}?")
    done = f"Marked the run {run.run_id} as {state}, and with it {{n}}."
    return submit(session, key, request, action="run.mark", done=done, detail={"state": state})


@command("cancel")
@dag_argument
@run_argument
@yes_option
def cancel_run(session: Session, dag_id: str, run_id: str, yes: bool) -> Done:
    """End a run that is queued or running: its processes are killed, and it has failed.

    Tasks that wait are skipped, teardowns among them: `asynsched runs mark … failed` lets those have their turn.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    if not yes:
        ask(session, key, CancelRun(), f"Cancel the run {run.run_id}, and with it {{n}}?")
    done = f"Cancelled the run {run.run_id}, and with it {{n}}."
    return submit(session, key, CancelRun(), action="run.cancel", done=done, detail={})
