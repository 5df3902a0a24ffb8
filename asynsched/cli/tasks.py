"""`asynsched tasks list`."""

from typing import Any

from asynsched.cli.command import command, dag_argument, run_argument
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Listing
from asynsched.cli.session import Session
from asynsched.store.task_instances import TaskInstanceRow, list_task_instances

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
SPARE_COLUMNS = ("priority_weight", "pool", "scheduled_at", "queued_at", "ended_at", "started_at", "try_number")


@command("list")
@dag_argument
@run_argument
def show_tasks(session: Session, dag_id: str, run_id: str) -> Listing:
    """List the task instances of a run. `priority_weight` is the total, as the weight rule gives it."""
    run = session.read(find_run, dag_id, run_id)
    rows = [_fields(row) for row in session.read(list_task_instances, run.id)]
    unused = (name for name, none in UNMAPPED.items() if all(row[name] == none for row in rows))
    spare = (*unused, *SPARE_COLUMNS)
    return Listing(COLUMNS, rows, nothing="The run has no task instances yet.", spare=spare)


def _fields(row: TaskInstanceRow) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in COLUMNS if name != "duration_seconds"}
    fields["duration_seconds"] = None
    if row.started_at is not None and row.ended_at is not None:
        fields["duration_seconds"] = (row.ended_at - row.started_at).total_seconds()
    return fields
