"""The removal of logs: from the home at once, and from the archive as soon as it answers.

A folder that the archive is to lose is noted in the home first, so that an outage or a crash does not leave it there.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from asynsched.executors.log_archive import LogArchive
from asynsched.executors.log_paths import remove_folders, run_folder
from asynsched.home import LOGS
from asynsched.keys import DagRunKey
from asynsched.protocol.home_files import PRIVATE_FILE

UNWANTED = ".unwanted"
"""Folder of notes below the log folder: one file for each folder that the archive is to lose."""


def remove_logs(home: Path, runs: Iterable[DagRunKey], *, are_archived: bool) -> None:
    """Remove every log of these runs from the home, and note those that the archive may have. Blocks."""
    folders = [run_folder(run) for run in runs]
    if are_archived:
        for folder in folders:
            _note(home / LOGS / UNWANTED, folder)
    remove_folders(home / LOGS / folder for folder in folders)


def remove_unwanted(home: Path, archive: LogArchive, *, at_most: int) -> int:
    """Remove noted folders from the archive, and return how many. Blocks. Raises LogStoreUnavailable."""
    n_removed = 0
    notes = home / LOGS / UNWANTED
    found = (note for note in notes.iterdir() if not note.suffix) if notes.is_dir() else iter(())
    for note in islice(found, at_most):
        archive.remove_folder(note.read_text(encoding="utf-8"))
        note.unlink(missing_ok=True)
        n_removed += 1
    return n_removed


def _note(notes: Path, folder: str) -> None:
    notes.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = notes / hashlib.sha256(folder.encode()).hexdigest()
    draft = note.with_suffix(".draft")
    draft.touch(mode=PRIVATE_FILE)
    draft.write_text(folder, encoding="utf-8")
    draft.replace(note)
