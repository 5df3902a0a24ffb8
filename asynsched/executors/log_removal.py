"""The removal of logs: from the home at once, and from the archive as soon as it answers.

A folder that the archive is to lose is noted in the home first, so that an outage or a crash does not leave it there.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from asynsched.executors.log_archive import LogArchive
from asynsched.executors.log_paths import is_run_folder, remove_folders, run_folder
from asynsched.home import LOGS, make_folder, replace_file
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger

log = get_logger(__name__)

UNWANTED = ".unwanted"
"""Folder of notes below the log folder: one file for each folder that the archive is to lose."""


def remove_logs(home: Path, runs: Iterable[DagRunKey], *, are_archived: bool) -> None:
    """Remove every log of these runs from the home, and note those that the archive may have. Blocks."""
    folders = [run_folder(run) for run in runs]
    if are_archived:
        for folder in folders:
            try:
                _note(home / LOGS / UNWANTED, folder)
            except OSError as exc:  # of a full disk, for example: the run itself is deleted
                log.warning("logs.stay_in_store", folder=folder, reason=str(exc))
    remove_folders(home / LOGS / folder for folder in folders)


def remove_unwanted(home: Path, archive: LogArchive, *, at_most: int) -> int:
    """Remove noted folders from the archive, and return how many notes there were. Blocks.

    Several processes may do this at once. Raises LogStoreUnavailable, and OSError for the home.
    """
    n_notes = 0
    notes = home / LOGS / UNWANTED
    found = (note for note in notes.iterdir() if not note.suffix) if notes.is_dir() else iter(())
    for note in islice(found, at_most):
        n_notes += 1
        try:
            folder = note.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue  # another process has removed the folder
        if is_run_folder(folder):
            archive.remove_folder(folder)
        else:
            log.warning("logs.note_dropped", note=str(note), reason="it names no folder of a run")
        note.unlink(missing_ok=True)
    return n_notes


def _note(notes: Path, folder: str) -> None:
    make_folder(notes)
    replace_file(notes / hashlib.sha256(folder.encode()).hexdigest(), folder.encode())
