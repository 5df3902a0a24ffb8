"""`asynsched dags list|show|errors`: what is known of DAGs and their files."""

import sys
from typing import Any

import click

from asynsched.cli.command import command, dag_argument, told_output
from asynsched.cli.dag_lookup import dag_of, structure_of
from asynsched.cli.dot import as_dot
from asynsched.cli.long_parses import long_parses
from asynsched.cli.rendering import FORMS, Listing, Record, note
from asynsched.cli.session import Session
from asynsched.cli.unread_dags import unparsed_files
from asynsched.serialization.schema import DOUBTFUL, TEMPLATE, UNSTABLE, SerializedDag, SerializedTask
from asynsched.store.dags.dags import DagRow, list_dags
from asynsched.store.dags.files import list_errors

DOT = "dot"
COLUMNS = ("dag_id", "file", "schedule", "paused", "next_run_at", "tags", "has_errors")
ERROR_COLUMNS = ("file", "kind", "message", "line", "dag_id")
DAG_FIELDS = (
    "description", "timezone", "start_date", "end_date", "catchup", "max_active_runs", "max_active_tasks", "doc_md",
)  # fmt: skip
TASK_FIELDS = (
    "task_id", "task_type", "group_id", "trigger_rule", "retries", "retry_delay", "execution_timeout", "pool",
    "pool_slots", "priority_weight", "weight_rule", "queue", "depends_on_past",
)  # fmt: skip
SPARE_TASK_FIELDS = (
    "queue", "weight_rule", "depends_on_past", "pool_slots", "group_id", "priority_weight", "execution_timeout",
    "retry_delay", "pool", "retries",
)  # fmt: skip


@command("list", tables=True)
def show_dags(session: Session) -> Listing:
    """List the DAGs. `next_run_at` is when the next scheduled run is due."""
    rows = [_dag_fields(dag) for dag in session.read(list_dags)]
    trouble = "" if rows else session.read(unparsed_files)
    nothing = f"No DAG is known in {session.place}. {trouble or '`asynsched up DIR` reads the DAG files of a folder.'}"
    return Listing(COLUMNS, rows, nothing, spare=("tags", "file"))


@command("show", tables=True)
@dag_argument
@told_output(
    click.option(
        "-o", "--output", type=click.Choice([*FORMS, DOT]), default=FORMS[0], show_default=True,
        help="Form of the answer; dot is for Graphviz.",
    )
)  # fmt: skip
def show_dag(session: Session, output: str, dag_id: str) -> Record | None:
    """Show a DAG, its tasks and its edges, in the newest version."""
    row = dag_of(session, dag_id)
    dag = structure_of(session, row)
    if output == DOT:
        sys.stdout.write(as_dot(dag))
        return None
    fields = _dag_fields(row) | {name: getattr(dag, name) for name in DAG_FIELDS}
    fields["assets"] = None if dag.asset_condition is None else dag.asset_condition.text
    fields["params"] = {name: param.value for name, param in dag.params.items()}
    fields["task_start"] = _task_start(session, row)
    fields["tasks"] = [_task_fields(task) for task in dag.tasks]
    fields["edges"] = _edges(dag)
    return Record(fields, sections={"tasks": SPARE_TASK_FIELDS, "edges": ()})


@command("errors", tables=True)
@click.option("--warnings", is_flag=True, help="All other warnings, too; without it, their number is said.")
@click.option("--traceback", is_flag=True, help="Tracebacks below the table; JSON has them anyway.")
def show_errors(session: Session, warnings: bool, traceback: bool) -> Listing:
    """List what is wrong with which DAG file, what its author hardly means, and what no two parses agree on."""
    found = session.read(list_errors)
    shown = [error for error in found if warnings or not error.is_warning or error.kind in (DOUBTFUL, UNSTABLE)]
    rows = [
        {
            "file": error.file_path,
            "kind": error.kind,
            "message": error.message,
            "line": error.line,
            "dag_id": error.dag_id,
            "traceback": error.traceback,
            "output": error.output,
            "is_warning": error.is_warning,
        }
        for error in shown
    ]
    if n_left_out := len(found) - len(shown):
        note(f"Warnings that are not shown: {n_left_out}. `asynsched dags errors --warnings` has them.")
    for parse in long_parses(session.home):
        note(parse.sentence)
    details = ("traceback", "output", "is_warning")
    texts = ("traceback",) if traceback else ()
    return Listing(ERROR_COLUMNS, rows, "No DAG file has errors.", details, spare=("line", "kind"), texts=texts)


def _dag_fields(dag: DagRow) -> dict[str, Any]:
    return {
        "dag_id": dag.dag_id,
        "file": dag.file_path,
        "schedule": dag.schedule_summary or None,
        "paused": dag.is_paused,
        "next_run_at": dag.next_dagrun_create_after,
        "tags": dag.tags,
        "has_errors": dag.has_errors,
    }


def _task_start(session: Session, dag: DagRow) -> str:
    """Return how processes for the DAG's tasks come about: by a fork, or why not."""
    obstacles = [error.message for error in session.read(list_errors, dag.file_path) if error.kind == TEMPLATE]
    return obstacles[0] if obstacles else "each task is a fork of a process that has loaded the file"


def _task_fields(task: SerializedTask) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TASK_FIELDS}


def _edges(dag: SerializedDag) -> list[dict[str, Any]]:
    """Return the edges, named as in Airflow's graph."""
    return [
        {"source_id": task.task_id, "target_id": target, "label": task.edge_labels.get(target)}
        for task in dag.tasks
        for target in task.downstream_task_ids
    ]
