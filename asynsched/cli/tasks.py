"""`asynsched tasks …`: shows task instances, their tries and XComs; clears, marks and forces task instances."""

from collections.abc import Mapping
from datetime import datetime
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
from asynsched.cli.lookup import find_run, find_task
from asynsched.cli.output import Done, Listing, note
from asynsched.cli.requests import (
    Wording,
    carry_out,
    downstream_option,
    dry_run_option,
    one_index_option,
    upstream_option,
)
from asynsched.cli.session import Session
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.runs.requests import ClearTasks, ForceTask, MarkTasks
from asynsched.store.runs.task_instances import list_task_instances, list_tries
from asynsched.store.schema import TaskInstanceRow

COLUMNS = (
    "task_id",
    "map_index",
    "rendered_map_index",
    "state",
    "reason",
    "try_number",
    "scheduled_at",
    "queued_at",
    "started_at",
    "ended_at",
    "duration_seconds",
    "pool",
    "priority_weight",
)
UNMAPPED: dict[str, object] = {"rendered_map_index": None, "map_index": -1}
"""Columns for mapped tasks, and their values for other tasks."""
USUAL_COLUMNS = (
    "task_id", "map_index", "rendered_map_index", "state", "reason", "try_number", "started_at", "duration_seconds",
)  # fmt: skip
SPARE_COLUMNS = ("try_number", "duration_seconds", "reason")
TRY_COLUMNS = ("task_id", "map_index", "try_number", "state", "reason", "queued_at", "started_at", "ended_at")
_TO_GO_ON = {TaskInstanceState.DEFERRED, TaskInstanceState.UP_FOR_RESCHEDULE, TaskInstanceState.SCHEDULED}


@command("list", tables=True)
@dag_argument
@run_argument
@click.option("--all-tries", is_flag=True, help="Each try, also those that a retry or a clear has followed.")
def show_tasks(session: Session, dag_id: str, run_id: str, all_tries: bool) -> Listing:
    """List the task instances of a run. `priority_weight` is the total, as the weight rule gives it."""
    run = session.read(find_run, dag_id, run_id)
    if run.state == DagRunState.RUNNING and (lack := session.owners().lack(run.lease_epoch)) is not None:
        note(f"Nothing is done for this run: {lack.line}.")
    if all_tries:
        tries = tries_of(session, run.id)
        return Listing(TRY_COLUMNS, tries, nothing="The run has no tries yet.", spare=("map_index", "queued_at"))
    rows = [_fields(row) for row in session.read(list_task_instances, run.id)]
    unused = (name for name, none in UNMAPPED.items() if all(row[name] == none for row in rows))
    spare = (*unused, *SPARE_COLUMNS)
    return Listing(COLUMNS, rows, "The run has no task instances yet.", usual=USUAL_COLUMNS, spare=spare)


def tries_of(session: Session, dag_run_id: int) -> list[dict[str, Any]]:
    """Return every try of a run's tasks, by task; a task instance that has none yet is left out."""
    earlier = session.read(list_tries, dag_run_id)
    known = {(one.task_id, one.map_index, one.try_number): one.queued_at for one in earlier}
    newest = [(row, _newest_try(row, known)) for row in session.read(list_task_instances, dag_run_id)]
    rows: list[dict[str, Any]] = [{name: getattr(one, name) for name in TRY_COLUMNS} for one in earlier]
    rows += [
        {name: getattr(row, name) for name in TRY_COLUMNS} | {"try_number": number}
        for row, number in newest
        if number and (row.task_id, row.map_index, number) not in known
    ]
    return sorted(rows, key=lambda row: (row["task_id"], row["map_index"], row["try_number"]))


def _newest_try(row: TaskInstanceRow, known: Mapping[tuple[str, int, int], datetime | None]) -> int:
    """Return the number of a task instance's newest try; 0 if there is none.

    A try that is to resume or to begin again (deferred, rescheduled, interrupted) has not used its number up.
    """
    has_begun = row.token is not None and row.queued_at is not None
    is_over = known.get((row.task_id, row.map_index, row.try_number)) == row.queued_at
    return row.try_number + (row.state in _TO_GO_ON and has_begun and not is_over)


def _fields(row: TaskInstanceRow) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in COLUMNS if name != "duration_seconds"}
    fields["duration_seconds"] = None
    if row.started_at is not None and row.ended_at is not None:
        fields["duration_seconds"] = (row.ended_at - row.started_at).total_seconds()
    return fields


@command("clear")
@dag_argument
@run_argument
@click.argument("task_ids", metavar="[TASK]...", nargs=-1, shell_complete=completed_as("task"))
@upstream_option
@downstream_option
@click.option("--only-failed", is_flag=True, help="Only tasks that have failed, or whose upstream has.")
@click.option("--only-running", is_flag=True, help="Only running tasks: they are killed and start again.")
@one_index_option
@dry_run_option
@yes_option
def clear_tasks(session: Session, dag_id: str, run_id: str, dry_run: bool, yes: bool, **options: Any) -> Done | Listing:
    """Clear tasks of a run, so that they run again; without TASK, all of them.

    Their earlier tries and logs stay. The setups and teardowns that a task needs are cleared with it. A run that has
    ended starts again; running tasks are killed first.
    """
    wording = Wording("task.clear", "Clear {n} of {run}?", "Cleared {n} of {run}.")
    detail = {name: value for name, value in options.items() if value}
    return carry_out(session, dag_id, run_id, ClearTasks(**options), wording, detail=detail, dry_run=dry_run, yes=yes)


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
    """Mark a task as ended, regardless of its own result. A running task is killed.

    Tasks downstream that had failed because of it are cleared, and may run now.
    """
    request = MarkTasks((task_id,), **options)
    wording = Wording(
        "task.mark", f"Mark {{n}} of {{run}} as {request.state}?", f"Marked {{n}} of {{run}} as {request.state}."
    )
    detail = {name: value for name, value in options.items() if value} | {"task_id": task_id}
    return carry_out(session, dag_id, run_id, request, wording, detail=detail, dry_run=dry_run, yes=yes)


@command("run")
@dag_argument
@run_argument
@task_argument
@map_index_option
@click.option("--ignore-all-deps", is_flag=True, help="Everything that the other flags ignore.")
@click.option("--ignore-depends-on-past", is_flag=True, help="The task's state in the previous run.")
@click.option("--ignore-task-deps", is_flag=True, help="Its dates, its trigger rule, skips, setups, and its past.")
@click.option("--ignore-ti-state", is_flag=True, help="That it has ended; or that it is running: it is killed first.")
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
) -> Done | Listing:
    """Start one task of a run, and ignore some of its dependencies. It still waits for the others.

    Pools and other limits always hold. A run that has ended goes on for it.
    """
    from asynsched.scheduling.evaluation.decisions import IGNORABLE

    ignored = sorted(IGNORABLE if ignore_task_deps or ignore_all_deps else ())
    if ignore_depends_on_past and not ignored:
        ignored = ["depends_on_past"]
    request = ForceTask(
        task_id, map_index, tuple(ignored), ignore_ti_state or ignore_all_deps,
        ignore_in_retry_period or ignore_all_deps,
    )  # fmt: skip
    explains = f"`asynsched why {dag_id} {{run}} {task_id}`"
    wording = Wording("task.run", "", f"Task {task_id} of {{run}} starts as soon as {explains} names nothing.")
    detail = {"task_id": task_id, "map_index": map_index, "ignored": ignored}
    run = session.read(find_run, dag_id, run_id)
    return carry_out(session, dag_id, run.run_id, request, wording, detail=detail, yes=True)


@command("xcom", tables=True)
@dag_argument
@run_argument
@task_argument
@map_index_option
def show_xcoms(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> Listing:
    """List the XComs of a task instance."""
    from asynsched.authoring.transport import readable
    from asynsched.store.runs.xcoms import XComEntry, list_xcoms

    task = session.read(find_task, dag_id, run_id, task_id, map_index)
    entries = session.read(list_xcoms, task.dag_run_id, task_id, map_index)
    rows = [{**entry._asdict(), "value": readable(entry.value)} for entry in entries]
    return Listing(XComEntry._fields, rows, nothing="The task has pushed nothing.")
