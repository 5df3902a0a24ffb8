"""`asynsched runs clear|mark|cancel`."""

import click

from asynsched.cli.command import command, dag_argument, run_argument, yes_option
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Done, Listing
from asynsched.cli.run_requests import ask, concerned, dry_run_option, submit
from asynsched.cli.session import Session
from asynsched.keys import DagRunKey
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkedRunState, MarkRun


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
