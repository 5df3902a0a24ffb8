"""`asynsched dags …`: DAGs, their files and their errors; pausing DAGs and parsing files again."""

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.cli.command import command, completed_as, dag_argument, fail, told_output
from asynsched.cli.lookup import dag_of, read_dag_folder, structure_of
from asynsched.cli.output import FORMS, Done, Listing, Record, note
from asynsched.cli.session import Session
from asynsched.cli.unread_dags import long_parses, unparsed_files
from asynsched.errors import AsynschedError, DagError, NotFound, PlanNeeded
from asynsched.serialization.schema import DOUBTFUL, TEMPLATE, UNSTABLE, SerializedDag, SerializedTask
from asynsched.store.dags.dags import DagRow, find_dag, get_dag, list_dags, set_paused
from asynsched.store.dags.files import get_file, known_files, list_errors
from asynsched.store.rows import near_names

MOST_COUNTED = 1_000
"""Due runs are counted up to this number."""
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
FILE_ENDINGS = (".py", ".zip")
"""An unknown name that ends in one of these is taken for a file."""


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
@click.option("--warnings", is_flag=True, help="Also all other warnings; without it, only their number is shown.")
@click.option("--traceback", is_flag=True, help="Tracebacks below the table; JSON has them anyway.")
def show_errors(session: Session, warnings: bool, traceback: bool) -> Listing:
    """List the errors of DAG files, code that its author hardly means, and files that parse differently each time."""
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
        note(f"Warnings that are not shown: {n_left_out}. `asynsched dags errors --warnings` shows them.")
    for parse in long_parses(session.home):
        note(parse.sentence)
    details = ("traceback", "output", "is_warning")
    texts = ("traceback",) if traceback else ()
    return Listing(ERROR_COLUMNS, rows, "No DAG file has errors.", details, spare=("line", "kind"), texts=texts)


@command("pause")
@dag_argument
def pause_dag(session: Session, dag_id: str) -> Done:
    """Pause a DAG: no run is created, no queued run is started, and no task begins. Running tasks go on."""
    return _set_paused(session, dag_id, is_paused=True)


@command("unpause")
@dag_argument
def unpause_dag(session: Session, dag_id: str) -> Done:
    """Unpause a DAG, and tell which runs are about to be created."""
    dag_of(session, dag_id, make=True)
    coming = session.read(about_to_create, dag_id, session.now())  # before a scheduler creates them
    done = _set_paused(session, dag_id, is_paused=False)
    return Done(f"{done.sentence} {coming.sentence}", {**done.fields, **coming.fields})


@command("reparse")
@click.argument("name", metavar="DAG|FILE", shell_complete=completed_as("dag"))
def reparse_dag(session: Session, name: str) -> Done:
    """Parse a DAG's file again, even if it has not changed. Without a scheduler, this waits for the result.

    Name a file that has no DAG yet, because it is new or could not be parsed, by its path in the DAG folder or from
    here.
    """
    dag_id, path = _dag_and_file(session, name)
    fields = {"dag_id": dag_id or None, "file": path}
    if session.is_made and session.has_scheduler():
        session.change("dag.reparse", lambda _: None, hints=lambda _: [Hint("file", dag_id=dag_id, path=path)])
        return Done(f"The scheduler parses {path} again.", fields)
    read_dag_folder(session, make=True, again=path)
    wrong = [error.message for error in session.read(list_errors, path) if not error.is_warning]
    if wrong:
        fail(wrong[0])
    if dag_id:
        session.read(find_dag, dag_id)
    elif session.read(get_file, path) is None:
        fail(f"{path} is not taken for a DAG file: .airflowignore names it, or it mentions no dag (watch.safe_mode).")
    return Done(f"{path} is parsed.", fields)


def about_to_create(conn: Connection, dag_id: str, now: datetime) -> Done:
    """Return which runs of a DAG are due, and when the next one is."""
    from asynsched.scheduling.creation.scheduled_runs import coming_runs

    try:
        coming = coming_runs(conn, dag_id, now, at_most=MOST_COUNTED + 1)
    except PlanNeeded:
        return Done("The timetable of its file will be asked for its next run.", {})
    except DagError as exc:
        return Done(f"Its next run is not known: {exc}", {})
    due = [info for info in coming if info.run_after <= now]
    following = coming[len(due)].run_after if len(due) < len(coming) else None
    fields = {
        "due_runs": len(due),
        "first_logical_date": due[0].logical_date if due else None,
        "next_run_at": following,
    }
    if not coming:
        return Done("By its schedule it has no further run.", fields)
    if not due:
        return Done(f"Its next run is due at {following}.", fields)
    number = f"More than {MOST_COUNTED} runs are" if len(due) > MOST_COUNTED else f"{len(due)} runs are"
    number = "One run is" if len(due) == 1 else number
    then = "" if following is None else f" The next one is due at {following}."
    return Done(f"{number} due, from the logical date {due[0].logical_date} on.{then}", fields)


def _set_paused(session: Session, dag_id: str, *, is_paused: bool) -> Done:
    dag_of(session, dag_id, make=True)
    session.change(
        "dag.pause" if is_paused else "dag.unpause",
        lambda conn: set_paused(conn, dag_id, is_paused, session.now()),
        hints=lambda _: [Hint("dag", dag_id=dag_id)],
    )
    state = "paused" if is_paused else "unpaused"
    return Done(f"DAG {dag_id!r} is {state}.", {"dag_id": dag_id, "paused": is_paused})


def _dag_and_file(session: Session, name: str) -> tuple[str, str]:
    """Return the DAG, empty where a file is named, and the file's path in the DAG folder."""
    if session.is_made:
        found = session.read(get_dag, name)
        if found is not None and found.is_active:
            return name, found.file_path
        if session.read(get_file, name) is not None or session.read(list_errors, name):
            return "", name
    if (path := _path_in_folder(session.settings.dags_path, name)) is not None:
        return "", path
    try:
        return name, dag_of(session, name, make=True).file_path
    except NotFound as exc:
        if "/" not in name and not name.endswith(FILE_ENDINGS):
            raise
        near = near_names(Path(name).name, [file.path for file in session.read(known_files)]) if session.is_made else ()
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        message = f"There is no DAG {name!r}, and no file of that name in {session.settings.dags_path}.{hint}"
        raise AsynschedError(message) from exc


def _path_in_folder(folder: Path, name: str) -> str | None:
    """Return a file's path in the DAG folder, given that path or one from here; None if there is no such file."""
    for path in (folder / name, Path(name).absolute()):
        normal = Path(os.path.normpath(path))  # not resolved: a link in the folder is a file of the folder
        if normal.is_relative_to(folder) and normal.is_file():
            return normal.relative_to(folder).as_posix()
    return None


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
    """Return how the processes of the DAG's tasks start: by a fork, or why not."""
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


def as_dot(dag: SerializedDag) -> str:
    """Return a DAG in the DOT language."""
    lines = [f"digraph {_quoted(dag.dag_id)} {{", "  rankdir=LR", "  node [shape=box, style=rounded]"]
    lines += _frame(dag, None, "  ")
    lines += [line for task in dag.tasks for line in _edges_of_dot(task)]
    return "\n".join([*lines, "}", ""])


def _frame(dag: SerializedDag, group_id: str | None, indent: str) -> Iterator[str]:
    """Yield the tasks of a group, and the groups within it as frames."""
    for task in dag.tasks:
        if task.group_id == group_id:
            yield f"{indent}{_quoted(task.task_id)}"
    for group in dag.task_groups:
        if group.parent_id == group_id and group.group_id != group_id:
            yield f"{indent}subgraph {_quoted(f'cluster_{group.group_id}')} {{"
            yield f"{indent}  label={_quoted(group.group_id)}"
            yield from _frame(dag, group.group_id, indent + "  ")
            yield f"{indent}}}"


def _edges_of_dot(task: SerializedTask) -> Iterator[str]:
    for target in task.downstream_task_ids:
        label = task.edge_labels.get(target)
        attributes = f" [label={_quoted(label)}]" if label else ""
        yield f"  {_quoted(task.task_id)} -> {_quoted(target)}{attributes}"


def _quoted(text: str) -> str:
    """Quote a text; control characters, which labels may hold, become spaces."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
