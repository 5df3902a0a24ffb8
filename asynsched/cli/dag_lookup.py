"""A DAG, or an asset, by the name that a user typed; the DAG folder is read first where nobody else does."""

import time
from collections.abc import Callable
from datetime import timedelta

from asynsched.cli.rendering import note
from asynsched.cli.session import Session
from asynsched.errors import HomeInUse
from asynsched.home import served_dags_folder
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.store.assets.names import AssetRow, find_asset, get_asset
from asynsched.store.dags.dags import DagRow, find_dag, get_dag
from asynsched.store.dags.files import known_files
from asynsched.store.dags.versions import get_version

STARTING_TIME = timedelta(seconds=20)
"""How long a command waits for a scheduler that reads the folder for the first time."""
LOOK_SECONDS = 0.1


def dag_of(session: Session, dag_id: str, *, make: bool = False) -> DagRow:
    """Return an active DAG.

    Where it is unknown and no scheduler serves the home, the DAG folder is read first: commands work on a folder that
    no scheduler has seen.

    Args:
        make: Whether what was found is to stay, in a home that is made. Otherwise it is known to this command alone,
            where there is no home yet.

    Raises:
        NotFound: There is none; carries the nearest names.
        AsynschedError: There is no DAG folder, and no home.
    """
    _have_read(session, lambda: _is_active(session, dag_id), make=make)
    return session.read(find_dag, dag_id)


def known_dag_of(session: Session, dag_id: str) -> DagRow:
    """Return a DAG as `dag_of` does, also one whose file is gone. Raises NotFound."""
    _have_read(session, lambda: _is_active(session, dag_id), make=False)
    return session.read(get_dag, dag_id) or session.read(find_dag, dag_id)


def asset_of(session: Session, name_or_uri: str, *, make: bool = False) -> AssetRow:
    """Return an asset by its name or its URI; the DAG folder is read first as for `dag_of`. Raises NotFound."""
    _have_read(
        session,
        lambda: bool(session.read(find_asset, name=name_or_uri) or session.read(find_asset, uri=name_or_uri)),
        make=make,
    )
    return session.read(get_asset, name_or_uri)


def read_dag_folder(session: Session, *, make: bool, again: str | None = None) -> None:
    """Read the DAG folder, in this home or, where there is none and none is to be made, in one that passes.

    Args:
        again: A file to parse even if it has not changed, relative to the folder.

    Raises:
        HomeInUse: Somebody else reads it, or a scheduler serves this home.
    """
    from asynsched.cli.folder_reading import read_folder  # half a scheduler

    if make:
        session.make()
    elif not (session.home.is_dir() and session.is_made):
        session.use_passing_home(keep_database=False)
    read_folder(session.settings, again=again)


def _is_active(session: Session, dag_id: str) -> bool:
    found = session.read(get_dag, dag_id)
    return found is not None and found.is_active


def _have_read(session: Session, is_known: Callable[[], bool], *, make: bool) -> None:
    """Read the DAG folder, unless this is known, somebody else reads it, or another one was read before."""
    if (session.is_made and is_known()) or not _may_read_folder(session):
        return
    note(f"Reading the DAG folder {session.settings.dags_path}.")
    try:
        read_dag_folder(session, make=make)
    except HomeInUse:
        note("A scheduler that is about to serve, or another command, reads it already: waiting for what it finds.")
        deadline = session.now() + STARTING_TIME
        while not is_known() and session.now() < deadline:
            time.sleep(LOOK_SECONDS)


def _may_read_folder(session: Session) -> bool:
    """Whether nobody else reads the DAG folder, and what is known comes from it: other DAGs would seem to be gone."""
    folder = session.settings.dags_path
    if not folder.is_dir():
        return False
    if not session.is_made:
        return True
    if session.has_scheduler():
        return False
    return served_dags_folder(session.home) == folder or not session.read(known_files)


def structure_of(session: Session, dag: DagRow) -> SerializedDag:
    """Return the newest version of a DAG."""
    return decode_dag(session.read(get_version, dag.version_id or 0).serialized)
