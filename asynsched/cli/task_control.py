"""`asynsched tasks clear|mark|run`: let tasks run again, say how they have ended, or force one to start."""

from typing import Any

import click

from asynsched.cli.command import (
    command,
    completed_as,
    dag_argument,
    map_index_option,
    run_argument,
    task_argument,
    yes_option,
)
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
)
from asynsched.cli.session import Session
from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.dependencies import IGNORABLE
from asynsched.store.runs.requests import ClearTasks, ForceTask, MarkTasks


@command("clear")
@dag_argument
@run_argument
@click.argument("task_ids", metavar="[TASK]...", nargs=-1, shell_complete=completed_as("task"))
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
        ask(session, key, request, f"Clear {{n}} of {run.run_id}?")
    detail = {name: value for name, value in options.items() if value}
    return submit(session, key, request, action="task.clear", done=f"Cleared {{n}} of {run.run_id}.", detail=detail)


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
        ask(session, key, request, f"Mark {{n}} of {run.run_id} as {request.state}?")
    detail = {name: value for name, value in options.items() if value} | {"task_id": task_id}
    done = f"Marked {{n}} of {run.run_id} as {request.state}."
    return submit(session, key, request, action="task.mark", done=done, detail=detail)


@command("run")
@dag_argument
@run_argument
@task_argument
@map_index_option
@click.option("--ignore-all-deps", is_flag=True, help="All that the other flags ignore.")
@click.option("--ignore-depends-on-past", is_flag=True, help="How the task went in the run before.")
@click.option("--ignore-task-deps", is_flag=True, help="Its dates, its trigger rule, skips, setups, and its past.")
@click.option("--ignore-ti-state", is_flag=True, help="That it has ended, or runs: then it is killed first.")
@click.option("--ignore-in-retry-period", is_flag=True, help="That its retry, or its next poke, is not due yet.")
def force_task(
    session: Session,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: int,
    ignore_all_deps: bool,
    ignore_depends_on_past: bool,
    ignore_task_deps: bool,
    ignore_ti_state: bool,
    ignore_in_retry_period: bool,
) -> Done:
    """Let one task of a run start, and ignore some of what holds it. What is not ignored, it still waits for.

    Pools and other limits always hold. A run that has ended goes on for it.
    """
    run = session.read(find_run, dag_id, run_id)
    key = DagRunKey(run.dag_id, run.run_id)
    ignored: set[str] = set()
    if ignore_depends_on_past:
        ignored.add("depends_on_past")
    if ignore_task_deps or ignore_all_deps:
        ignored |= IGNORABLE
    request = ForceTask(
        task_id, map_index, tuple(sorted(ignored)), ignore_ti_state or ignore_all_deps,
        ignore_in_retry_period or ignore_all_deps,
    )  # fmt: skip
    detail = {"task_id": task_id, "map_index": map_index, "ignored": sorted(ignored)}
    explains = f"`asynsched why {dag_id} {run.run_id} {task_id}`"
    done = f"Task {task_id} of {run.run_id} starts as soon as {explains} names nothing."
    return submit(session, key, request, action="task.run", done=done, detail=detail)
