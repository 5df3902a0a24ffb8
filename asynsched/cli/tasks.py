"""`asynsched tasks list`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from asynsched.cli.command import command, dag_argument, run_argument
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Listing, note
from asynsched.cli.session import Session
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.runs.task_instances import TaskInstanceRow, list_task_instances, list_tries

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
"""Columns for mapped tasks, and what they have for the others."""
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
    """Return the number of a task instance's newest try; 0 where there is none.

    One that is to go on or to be begun anew (deferred, rescheduled, interrupted) has not used its number up.
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
