"""`asynsched tasks list|xcom`."""

from typing import Annotated, Any

import typer

from asynsched.cli.command import command, new_app
from asynsched.cli.lookup import find_run, find_task
from asynsched.cli.rendering import Listing
from asynsched.cli.session import Session
from asynsched.store.task_instances import TaskInstanceRow, list_task_instances
from asynsched.store.xcoms import list_xcoms

app = new_app()

COLUMNS = (
    "task_id",
    "map_index",
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
DagArgument = Annotated[str, typer.Argument(metavar="DAG")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN")]
TaskArgument = Annotated[str, typer.Argument(metavar="TASK")]
MapIndexOption = Annotated[int, typer.Option("--map-index", help="Which of a mapped task; -1 for one that is not.")]


@command(app, "list")
def list_tasks(session: Session, dag_id: DagArgument, run_id: RunArgument) -> Listing:
    """List the task instances of a run. `priority_weight` is the total, as the weight rule gives it."""
    run = session.read(find_run, dag_id, run_id)
    rows = [_fields(row) for row in session.read(list_task_instances, run.id)]
    return Listing(COLUMNS, rows, nothing="The run has no task instances yet.")


@command(app, "xcom")
def list_task_xcoms(
    session: Session, dag_id: DagArgument, run_id: RunArgument, task_id: TaskArgument, *, map_index: MapIndexOption = -1
) -> Listing:
    """List what a task instance has returned or pushed."""
    run = session.read(find_run, dag_id, run_id)
    session.read(find_task, dag_id, run_id, task_id, map_index)
    rows = [
        {"key": row.key, "value": row.value, "created_at": row.created_at}
        for row in session.read(list_xcoms, run.id, task_id, map_index)
    ]
    return Listing(("key", "value", "created_at"), rows, nothing="The task has pushed nothing.")


def _fields(row: TaskInstanceRow) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in COLUMNS if name != "duration_seconds"}
    fields["duration_seconds"] = None
    if row.started_at is not None and row.ended_at is not None:
        fields["duration_seconds"] = (row.ended_at - row.started_at).total_seconds()
    return fields
