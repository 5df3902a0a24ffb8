"""`asynsched tasks clear|mark`: let tasks run again, or say how they have ended."""

from typing import Any

import click

from asynsched.cli.command import command, dag_argument, run_argument, task_argument
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Done, Listing
from asynsched.cli.run_requests import (
    ask,
    concerned,
    downstream_option,
    dry_run_option,
    one_index_option,
    submit,
    upstream_option,
    yes_option,
)
from asynsched.cli.session import Session
from asynsched.keys import DagRunKey
from asynsched.store.run_requests import ClearTasks, MarkTasks


@command("clear")
@dag_argument
@run_argument
@click.argument("task_ids", metavar="[TASK]...", nargs=-1)
@upstream_option
@downstream_option
@click.option("--only-failed", is_flag=True, help="Only those that have failed, or whose upstream has.")
@click.option("--only-running", is_flag=True, help="Only those that run: they are killed and start again.")
@one_index_option
@dry_run_option
@yes_option
def clear_tasks(session: Session, dag_id: str, run_id: str, dry_run: bool, yes: bool, **options: Any) -> Done | Listing:
    """Let tasks of a run run again; without TASK, all of them.

    Their earlier tries and logs stay. The setups and teardowns that a task needs are cleared with it. A run that has
    ended starts again; what runs is killed first.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    request = ClearTasks(**options)
    if dry_run:
        return concerned(session, key, request)
    if not yes:
        ask(session, key, request, "Clear {n}?")
    detail = {name: value for name, value in options.items() if value}
    return submit(session, key, request, action="task.clear", done=f"Cleared {{n}} of {run_id}.", detail=detail)


@command("mark")
@dag_argument
@run_argument
@task_argument
@click.argument("state", type=click.Choice(["success", "failed", "skipped"]))
@upstream_option
@downstream_option
@one_index_option
@dry_run_option
@yes_option
def mark_tasks(
    session: Session, dag_id: str, run_id: str, task_id: str, dry_run: bool, yes: bool, **options: Any
) -> Done | Listing:
    """Say how a task has ended, whatever it did. What runs is killed.

    Tasks downstream that had failed because of it are cleared, and may run now.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    request = MarkTasks((task_id,), **options)
    if dry_run:
        return concerned(session, key, request)
    if not yes:
        ask(session, key, request, f"Mark {{n}} as {request.state}?")
    detail = {name: value for name, value in options.items() if value} | {"task_id": task_id}
    done = f"Marked {{n}} of {run_id} as {request.state}."
    return submit(session, key, request, action="task.mark", done=done, detail=detail)
