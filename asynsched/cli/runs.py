"""`asynsched runs …`."""

from typing import Annotated, Any

import typer

from asynsched.cli.command import command, new_app
from asynsched.cli.lookup import find_run
from asynsched.cli.rendering import Listing, Record
from asynsched.cli.session import Session
from asynsched.states import DagRunState
from asynsched.store.dag_runs import DagRunRow, list_runs
from asynsched.store.dags import find_dag

app = new_app()

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


@command(app, "list")
def list_dag_runs(
    session: Session,
    dag_id: Annotated[str | None, typer.Argument(metavar="[DAG]", show_default=False)] = None,
    *,
    state: Annotated[DagRunState | None, typer.Option(help="Only runs in this state.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
) -> Listing:
    """List runs, of one DAG or of all, newest first."""
    if dag_id is not None:
        session.read(find_dag, dag_id)
    runs = session.read(list_runs, dag_id=dag_id, state=state, limit=limit)
    return Listing(COLUMNS, [run_fields(run) for run in runs], nothing="There are no runs.")


@command(app, "show")
def show_dag_run(
    session: Session,
    dag_id: Annotated[str, typer.Argument(metavar="DAG")],
    run_id: Annotated[str, typer.Argument(metavar="RUN")],
) -> Record:
    """Show a run."""
    run = session.read(find_run, dag_id, run_id)
    return Record({**run_fields(run), "conf": run.conf})


def run_fields(run: DagRunRow) -> dict[str, Any]:
    """Return what is shown of a run."""
    return {name: getattr(run, name) for name in COLUMNS}
