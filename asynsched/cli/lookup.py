"""Finds DAGs, runs, tasks and assets by the names that a user typed, or fails with the nearest names.

A user names a run by its run_id, by a beginning that no other run_id of the DAG has, or by the word `latest`. Where a
DAG or asset is not known yet, the DAG folder is read.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from asynsched.bell import ask_health
from asynsched.cli.output import have, note, some_of
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, HomeInUse, NotFound
from asynsched.home import served_dags_folder
from asynsched.states import FINISHED_RUN_STATES
from asynsched.store.dags.dags import DagRow, find_dag, get_dag
from asynsched.store.dags.files import get_file, known_files, list_errors
from asynsched.store.runs.dag_runs import get_run, list_runs, runs_beginning_with
from asynsched.store.runs.task_instances import list_task_instances
from asynsched.store.schema import DagRunRow, TaskInstanceRow

if TYPE_CHECKING:
    from asynsched.health import LongParse
    from asynsched.serialization.schema import SerializedDag
    from asynsched.store.schema import AssetRow


LATEST = "latest"
"""Names the run that `runs list DAG` shows first."""
MOST_CANDIDATES = 4
"""Runs that an error names when a beginning fits several."""
NEWEST_RUNS = 200
"""Runs among which the nearest to a mistyped run_id are looked for."""


def find_run(conn: Connection, dag_id: str, run_id: str, *, is_whole: bool = False) -> DagRunRow:
    """Return the run that a user has named; `is_whole`: a beginning of a run_id is not enough.

    Raises:
        NotFound: There is no such DAG or run; carries near names.
        AsynschedError: Several runs begin like that, or the DAG has no run that could be the latest one.
    """
    run = get_run(conn, dag_id, run_id)
    if run is not None:
        return run
    if run_id == LATEST and (newest := list_runs(conn, dag_id=dag_id, limit=1)):
        return newest[0]
    candidates = runs_beginning_with(conn, dag_id, run_id, MOST_CANDIDATES + 1) if run_id else []
    if len(candidates) == 1 and is_whole:
        advice = f"write {candidates[0].run_id}, or {LATEST}, where you are not asked"
        raise AsynschedError(f"{run_id!r} is only the beginning of a run_id: {advice}.")
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        named = ", ".join(run.run_id for run in candidates[:MOST_CANDIDATES])
        more = ", and more" if len(candidates) > MOST_CANDIDATES else ""
        raise AsynschedError(f"Several runs of the DAG {dag_id!r} begin with {run_id!r}: {named}{more}.")
    if get_dag(conn, dag_id) is None:
        find_dag(conn, dag_id)  # raises, and suggests near names
    if run_id == LATEST:
        raise AsynschedError(f"The DAG {dag_id!r} has no run yet.")
    if run_id.lower() == LATEST:
        raise NotFound("run", run_id, (LATEST,))
    known = [run.run_id for run in list_runs(conn, dag_id=dag_id, limit=NEWEST_RUNS)]
    raise NotFound("run", run_id, tuple(get_close_matches(run_id, known)))


def find_task(conn: Connection, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> TaskInstanceRow:
    """Return a task instance.

    Raises:
        NotFound: There is no such DAG, run or task; carries the nearest names.
        AsynschedError: The run has no tasks yet, or the task no instance of that map index.
    """
    run = find_run(conn, dag_id, run_id)
    instances = list_task_instances(conn, run.id)
    if not instances and run.state not in FINISHED_RUN_STATES:
        raise AsynschedError(f"The run {run.run_id!r} is {run.state}, and has no tasks yet.")
    for instance in instances:
        if instance.task_id == task_id and instance.map_index == map_index:
            return instance
    indexes = sorted(instance.map_index for instance in instances if instance.task_id == task_id)
    if indexes:
        from asynsched.scheduling.requests.run_requests import no_such_instance

        raise AsynschedError(no_such_instance(task_id, map_index, indexes))
    known = sorted({instance.task_id for instance in instances})
    raise NotFound("task", task_id, tuple(get_close_matches(task_id, known)))


def interruption(task: TaskInstanceRow) -> str:
    """Return how the newest try of a waiting task instance was handed back; empty if it was not."""
    from asynsched.scheduling.rules.try_end import was_interrupted  # few commands need it

    return task.reason if was_interrupted(task.state, task.reason) else ""


STARTING_TIME = timedelta(seconds=20)
"""How long a command waits for a scheduler that reads the folder for the first time."""


def dag_of(session: Session, dag_id: str, *, make: bool = False) -> DagRow:
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
    _read_unless_known(session, lambda: _is_active(session, dag_id), make=make)
    return session.read(find_dag, dag_id)


def known_dag_of(session: Session, dag_id: str) -> DagRow:
    """Return a DAG like `dag_of`, even if its file is gone. Raises NotFound."""
    _read_unless_known(session, lambda: _is_active(session, dag_id), make=False)
    return session.read(get_dag, dag_id) or session.read(find_dag, dag_id)


def asset_of(session: Session, name_or_uri: str, *, make: bool = False) -> "AssetRow":
    """Return an asset by its name or its URI; the DAG folder is read first as for `dag_of`. Raises NotFound."""
    from asynsched.store.assets import find_asset, get_asset

    def is_known() -> bool:
        return bool(session.read(find_asset, name=name_or_uri) or session.read(find_asset, uri=name_or_uri))

    _read_unless_known(session, is_known, make=make)
    return session.read(get_asset, name_or_uri)


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


def _is_active(session: Session, dag_id: str) -> bool:
    found = session.read(get_dag, dag_id)
    return found is not None and found.is_active


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
    return served_dags_folder(session.home) == folder or not session.read(known_files)


def structure_of(session: Session, dag: DagRow) -> "SerializedDag":
    """Return the newest version of a DAG."""
    from asynsched.serialization.decode import decode_dag
    from asynsched.store.dags.dags import get_version

    return decode_dag(session.read(get_version, dag.version_id or 0).serialized)


def why_unknown(conn: Connection, dag_id: str, *, tells_errors: bool) -> str:
    """Return in sentences why a DAG is not active; `tells_errors` if no other command could show those of files."""
    was = ""
    if (before := get_dag(conn, dag_id)) is not None:
        gone = "is gone" if get_file(conn, before.file_path) is None else "has it no longer"
        was = f"It was in {before.file_path}, which {gone}."
    return " ".join(filter(None, (was, unparsed_files(conn, tells_errors=tells_errors))))


def files_with_errors(conn: Connection) -> list[str]:
    """Return the files that could not be parsed, or only in part."""
    return list(dict.fromkeys(error.file_path for error in list_errors(conn) if not error.is_warning))


def unparsed_files(conn: Connection, *, tells_errors: bool = False) -> str:
    """Return a sentence about the files that could not be parsed, or only in part; empty if there are none."""
    files = files_with_errors(conn)
    if not files:
        return ""
    what = have(len(files), "DAG file")
    if tells_errors:
        return f"{what} errors: {some_of([error.message for error in list_errors(conn) if not error.is_warning])}."
    return f"{what} errors, {some_of(files)}: see `asynsched dags errors`."


def long_parses(home: Path) -> "tuple[LongParse, ...]":
    """Return the parses that take long now; none if no scheduler answers, or one of another version does."""
    answer = ask_health(home)
    if answer is None:
        return ()
    from asynsched.health import Health  # loads anyio, which reading commands do not need

    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(answer, type=Health).parses
    return ()
