"""`asynsched dags pause|unpause|reparse`."""

import os
from pathlib import Path

import click

from asynsched.bell import Hint
from asynsched.cli.command import command, completed_as, dag_argument, fail
from asynsched.cli.dag_lookup import dag_of, read_dag_folder
from asynsched.cli.rendering import Done
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, NotFound
from asynsched.store.dags.dags import find_dag, get_dag, set_paused
from asynsched.store.dags.files import get_file, known_files, list_errors
from asynsched.store.rows import near_names

FILE_ENDINGS = (".py", ".zip")
"""A name with one of these is taken for that of a file, where nothing has it."""


@command("pause")
@dag_argument
def pause_dag(session: Session, dag_id: str) -> Done:
    """Pause a DAG: no run is created, no queued run is started, and no task begins. Tasks that run go on."""
    return _set_paused(session, dag_id, is_paused=True)


@command("unpause")
@dag_argument
def unpause_dag(session: Session, dag_id: str) -> Done:
    """Unpause a DAG, and say which runs are about to be created."""
    from asynsched.cli.coming_runs import about_to_create  # timetables, which pausing can do without

    dag_of(session, dag_id, make=True)
    coming = session.read(about_to_create, dag_id, session.now())  # before a scheduler creates them
    done = _set_paused(session, dag_id, is_paused=False)
    return Done(f"{done.sentence} {coming.sentence}", {**done.fields, **coming.fields})


@command("reparse")
@click.argument("name", metavar="DAG|FILE", shell_complete=completed_as("dag"))
def reparse_dag(session: Session, name: str) -> Done:
    """Parse a DAG's file again, even if it has not changed. Without a scheduler, this waits for the result.

    A file that has no DAG yet, because it is new or could not be parsed, is named by its path in the DAG folder, or by
    its path from here.
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
    """Return the path, relative to the DAG folder, of a file that is named by that or from here; None for no file."""
    for path in (folder / name, Path(name).absolute()):
        normal = Path(os.path.normpath(path))  # not resolved: a link in the folder is a file of the folder
        if normal.is_relative_to(folder) and normal.is_file():
            return normal.relative_to(folder).as_posix()
    return None


def _set_paused(session: Session, dag_id: str, *, is_paused: bool) -> Done:
    dag_of(session, dag_id, make=True)
    session.change(
        "dag.pause" if is_paused else "dag.unpause",
        lambda conn: set_paused(conn, dag_id, is_paused, session.now()),
        hints=lambda _: [Hint("dag", dag_id=dag_id)],
    )
    state = "paused" if is_paused else "unpaused"
    return Done(f"DAG {dag_id!r} is {state}.", {"dag_id": dag_id, "paused": is_paused})
