"""What two walks of the DAG folder tell apart, and in which order files are parsed."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from asynsched.channels import FileChanged
from asynsched.parsing.watching.discovery import FoundFile

SortMode = Literal["modified_time", "random_seeded_by_host", "alphabetical"]


def changes_between(before: Mapping[str, FoundFile], after: Mapping[str, FoundFile]) -> list[FileChanged]:
    """Return what was made, edited, removed, or is now ignored or no longer so, by path."""
    removed = [FileChanged(path, removed=True) for path in before if path not in after]
    changed = [
        FileChanged(path, is_ignored=found.is_ignored) for path, found in after.items() if before.get(path) != found
    ]
    return sorted(removed + changed, key=lambda change: change.path)


def in_order(
    changes: Iterable[FileChanged], files: Mapping[str, FoundFile], mode: SortMode, host: str
) -> list[FileChanged]:
    """Return the changes as their files are to be parsed; removed files come first.

    Args:
        changes: What is to be ordered.
        files: What is known of the files.
        mode: `modified_time`: newest first; `random_seeded_by_host`: by chance, the same on each start of one host;
            `alphabetical`.
        host: Name of the machine.

    Source:
        Airflow "file_parsing_sort_mode".
    """
    keys: dict[SortMode, Callable[[FileChanged], tuple[object, ...]]] = {
        "modified_time": lambda change: (-files[change.path].modified_ns, change.path),
        "random_seeded_by_host": lambda change: (_drawn_by(host, change.path),),
        "alphabetical": lambda change: (change.path,),
    }
    changes = list(changes)
    removed = [change for change in changes if change.path not in files]
    return removed + sorted((change for change in changes if change.path in files), key=keys[mode])


def _drawn_by(host: str, path: str) -> bytes:
    return hashlib.sha256(f"{host}\n{path}".encode("utf-8", "surrogateescape")).digest()
