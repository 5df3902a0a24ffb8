"""What file events mean for the DAG folder: which files were touched, and whether it must be walked anew."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from asynsched.parsing.watching.discovery import (
    ROOT,
    VIRTUAL_ENVIRONMENT,
    FolderId,
    FoundFile,
    Snapshot,
    is_candidate,
    join,
    look,
)
from asynsched.parsing.watching.ignore_rules import IGNORE_FILES

MANY_EVENTS = 1000
"""From here on a walk is cheaper, and also finds what an overflowing queue of the kernel has lost."""


@dataclass
class Touched:
    """What a burst of events says.

    `files` are relative paths with what metadata tell of each now, None for one that is gone. `needs_walk` is set when
    folders, links or ignore files changed, `needs_watch` when a watched folder itself was removed or moved: another
    one may have its path, and even its inode, by now.
    """

    files: dict[str, FoundFile | None] = field(default_factory=dict)
    needs_walk: bool = False
    needs_watch: bool = False


def watched_folders(root: Path, snapshot: Snapshot) -> dict[str, FolderId]:
    """Return the absolute paths of the folders to watch. Names that are no text cannot be watched."""
    folders = dict(snapshot.outside)
    for identity, relative in snapshot.folders.items():
        folders[identity] = f"{root}/{relative}" if relative else str(root)
    return {path: identity for identity, path in folders.items() if _is_text(path)}


def interpret(root: Path, snapshot: Snapshot, events: Iterable[str]) -> Touched:
    """Return what the events say. Blocking: it looks at each file.

    Args:
        root: The DAG folder, absolute.
        snapshot: The folder as it was when the watch began.
        events: Absolute paths that something happened to, as the watched folders name them.
    """
    touched = Touched()
    watched = watched_folders(root, snapshot)
    for path in map(Path, events):
        folder, name = str(path.parent), path.name
        touched.needs_watch = touched.needs_watch or str(path) in watched
        if str(path) in watched or folder not in watched:
            touched.needs_walk = True
            continue
        for relative in _known_as(snapshot, watched[folder], name):
            if relative == ROOT or not is_candidate(name_of(relative)):
                touched.needs_walk = touched.needs_walk or relative == ROOT or _changes_walk(path, name)
                continue
            found = look(root / relative, is_ignored=snapshot.is_ignored(relative))
            touched.files[relative] = found
            # A link's target has to be watched, and a folder may be called `x.py`.
            touched.needs_walk = touched.needs_walk or path.is_symlink() or path.is_dir()
    touched.needs_walk = touched.needs_walk or len(touched.files) >= MANY_EVENTS
    return touched


def name_of(path: str) -> str:
    """Return the last part of a relative path."""
    return path.rpartition("/")[2]


def _known_as(snapshot: Snapshot, folder: FolderId, name: str) -> set[str]:
    """Return the relative paths under which the DAG folder has this file."""
    paths = set(snapshot.links.get((folder, name), ()))
    if folder in snapshot.folders:
        paths.add(join(snapshot.folders[folder], name))
    return paths


def _changes_walk(path: Path, name: str) -> bool:
    return name in IGNORE_FILES or name == VIRTUAL_ENVIRONMENT or path.is_dir() or path.is_symlink()


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
