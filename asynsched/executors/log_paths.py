"""Where the log of a try is: Airflow's layout, safe for every id."""

import hashlib
import re
import shutil
import string
import sys
from collections.abc import Iterable
from pathlib import Path

from asynsched.keys import DagRunKey, TaskInstanceKey

MAX_COMPONENT_BYTES = 200
"""File systems allow 255 bytes; the component's prefix and a hash must fit, too."""

DAG_PREFIX, RUN_PREFIX = "dag_id=", "run_id="
_HASH_LENGTH = 16
_RUN_FOLDER = re.compile(f"{DAG_PREFIX}[^/\0\n]+/{RUN_PREFIX}[^/\0\n]+")
_SAFE = frozenset(
    string.digits + "-_.+:=@, " + (string.ascii_letters if sys.platform != "darwin" else string.ascii_lowercase)
)
"""Characters that a path keeps; capitals only where file names are case-sensitive."""


def log_path(key: TaskInstanceKey, try_number: int) -> str:
    """Return the path of a try's log, relative to the log folder, with forward slashes.

    Different keys never share a path: an id that is too long, or has characters unfit for a file name, is cut and
    distinguished by a hash.
    """
    return "/".join([*_folders(key), f"attempt={try_number}.log"])


def callback_log_path(key: TaskInstanceKey, event: str, try_number: int) -> str:
    """Return the path of a callback's log: beside the log of its try; for a run's callback, in the run's folder."""
    # A run's own callbacks have no try; those of its deadlines are numbered.
    number = f".{try_number}" if try_number else ""
    name = f"attempt={try_number}.{event}.log" if key.task_id else f"{event}{number}.log"
    return "/".join([*_folders(key), name])


def run_folder(run: DagRunKey) -> str:
    """Return the path of a run's folder, relative to the log folder: all logs of the run are in it."""
    return "/".join(_run_folders(run))


def is_run_folder(path: str) -> bool:
    """Return whether a path, relative to the log folder, has the form of a run's folder."""
    return _RUN_FOLDER.fullmatch(path) is not None


def remove_folders(folders: Iterable[Path]) -> None:
    """Remove folders of logs, and skip files that cannot be removed. Does not follow symbolic links."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def run_ids_of(folders: Iterable[str]) -> list[str] | None:
    """Return the run_ids of runs of a DAG by the names of their folders; None if one may stand for any run."""
    run_ids = [folder.removeprefix(RUN_PREFIX) for folder in folders]
    # A run_id that was too long or odd is not in the name.
    return run_ids if all(folder_name(run_id) == run_id for run_id in run_ids) else None


def _folders(key: TaskInstanceKey) -> list[str]:
    folders = _run_folders(DagRunKey(key.dag_id, key.run_id))
    if key.task_id:
        folders.append(f"task_id={folder_name(key.task_id)}")
    if key.map_index >= 0:
        folders.append(f"map_index={key.map_index}")
    return folders


def _run_folders(run: DagRunKey) -> list[str]:
    return [f"{DAG_PREFIX}{folder_name(run.dag_id)}", f"{RUN_PREFIX}{folder_name(run.run_id)}"]


def folder_name(text: str) -> str:
    """Return the folder name of an id: the id itself, if it is a valid name."""
    if _SAFE.issuperset(text) and len(text) <= MAX_COMPONENT_BYTES:
        return text
    readable = "".join(char if char in _SAFE else "_" for char in text)[: MAX_COMPONENT_BYTES - _HASH_LENGTH - 1]
    # An id that is kept unchanged has no "~".
    return f"{readable}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:_HASH_LENGTH]}"
