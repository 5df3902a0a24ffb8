"""Finds DAGs and assets that a user has named, and reads the DAG folder for those that are not known yet."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from asynsched.cli.output import have, note, some_of
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, HomeInUse, NotFound
from asynsched.home import served_dags_folder
from asynsched.queries.dags import DagInfo, get_dag, list_files
from asynsched.queries.import_errors import all_import_errors

if TYPE_CHECKING:
    from asynsched.queries.assets import AssetInfo


STARTING_TIME = timedelta(seconds=20)
"""How long a command waits for a scheduler that reads the folder for the first time."""


def dag_of(session: Session, dag_id: str, *, make: bool = False) -> DagInfo:
    """Return an active DAG.

    If it is unknown and no scheduler serves the home, the DAG folder is read first: commands work on a folder that no
    scheduler has seen.

    Args:
        make: Whether to create a home and keep the DAGs there. Otherwise, without a home, only this command knows
            them.

    Raises:
        NotFound: It does not exist; carries the nearest names.
        AsynschedError: There is no DAG folder, and no home.
    """
    _read_unless_known(session, partial(_exists, session, get_dag, dag_id), make=make)
    return session.read(get_dag, dag_id)


def all_of(session: Session, dag_ids: Sequence[str]) -> list[DagInfo]:
    """Return active DAGs, each once; the DAG folder is read first as for `dag_of`, into a home that is made.

    Raises:
        AsynschedError: The message names each one that does not exist, with the nearest names. NotFound for one DAG.
    """
    names = list(dict.fromkeys(dag_ids))
    if len(names) == 1:
        return [dag_of(session, names[0], make=True)]
    _read_unless_known(session, lambda: all(_exists(session, get_dag, name) for name in names), make=True)
    found, unknown = [], []
    for name in names:
        try:
            found.append(session.read(get_dag, name))
        except NotFound as exc:
            unknown.append(str(exc))
    if unknown:
        raise AsynschedError(f"{' '.join(unknown)} Nothing is changed.")
    return found


def known_dag_of(session: Session, dag_id: str) -> None:
    """Look for a DAG like `dag_of`, even if its file is gone. Raises NotFound."""
    _read_unless_known(session, partial(_exists, session, get_dag, dag_id), make=False)
    session.read(get_dag, dag_id, active=False)


def asset_of(session: Session, name_or_uri: str, *, make: bool = False) -> "AssetInfo":
    """Return an asset by its name or its URI; the DAG folder is read first as for `dag_of`. Raises NotFound."""
    from asynsched.queries.assets import asset_named

    _read_unless_known(session, partial(_exists, session, asset_named, name_or_uri), make=make)
    return session.read(asset_named, name_or_uri)


def read_dag_folder(session: Session, *, make: bool, again: str | None = None) -> None:
    """Read the DAG folder into this home or, if there is no home and `make` is false, into a temporary one.

    `again` is a file to parse even if it has not changed, relative to the folder.

    Raises:
        HomeInUse: Another command reads it, or a scheduler serves this home.
    """
    from asynsched.cli.folder_reading import read_folder  # loads half a scheduler

    if make:
        session.make()
    elif not (session.home.is_dir() and session.is_made):
        session.use_passing_home(keep_database=False)
    read_folder(session.settings, again=again)


def _exists(session: Session, question: Callable[[Connection, str], object], name: str) -> bool:
    try:
        session.read(question, name)
    except NotFound:
        return False
    return True


def _read_unless_known(session: Session, is_known: Callable[[], bool], *, make: bool) -> None:
    """Read the DAG folder, unless that is not needed, another process does, or the home has another folder."""
    if (session.is_made and is_known()) or not _may_read_folder(session):
        return
    note(f"Reading the DAG folder {session.settings.dags_path}.")
    try:
        read_dag_folder(session, make=make)
    except HomeInUse:
        note("A scheduler that is starting, or another command, is reading it: waiting for the result.")
        deadline = session.now() + STARTING_TIME
        with session.watching() as changes:
            while not is_known() and (seconds := (deadline - session.now()).total_seconds()) > 0:
                changes.wait(seconds)


def _may_read_folder(session: Session) -> bool:
    """Whether this command may read the DAG folder: no scheduler does, and the home has no DAGs of another folder."""
    folder = session.settings.dags_path
    if not folder.is_dir():
        return False
    if not session.is_made:
        return True
    if session.has_scheduler():
        return False
    return served_dags_folder(session.home) == folder or not session.read(list_files)


def why_unknown(conn: Connection, dag_id: str, *, tells_errors: bool) -> str:
    """Return in sentences why a DAG is not active; `tells_errors` if no other command could show those of files."""
    was = ""
    try:
        file = get_dag(conn, dag_id, active=False).file
    except NotFound:
        pass
    else:
        was = f"It was in {file}, which {'has it no longer' if file in list_files(conn) else 'is gone'}."
    for error in all_import_errors(conn):
        if dag_id in (error.dag_id, Path(error.file).stem):
            return " ".join(filter(None, (was, f"Its file {error.file} has an error: {error.message}")))
    return " ".join(filter(None, (was, unparsed_files(conn, tells_errors=tells_errors))))


def unparsed_files(conn: Connection, *, tells_errors: bool = False) -> str:
    """Return a sentence about the files that could not be parsed, or only in part; empty if there are none."""
    errors = all_import_errors(conn)
    files = list(dict.fromkeys(error.file for error in errors))
    if not files:
        return ""
    what = have(len(files), "DAG file")
    if tells_errors:
        return f"{what} errors: {some_of([error.message for error in errors])}."
    return f"{what} errors, {some_of(files)}: see `asynsched dags errors`."
