"""FileTrigger: fires when a file exists."""

from __future__ import annotations

from asynsched.authoring.triggers.base import PollingTrigger, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class FileTrigger(PollingTrigger):
    """Fires when a file exists, or a folder with a file in it at any depth. The payload is True.

    Args:
        filepath: The path or a glob pattern.
        recursive: Make `**` in the pattern match any number of folders.
        poke_interval: The seconds between two checks.
    """

    fields = ("filepath", "recursive", "poke_interval")

    def __init__(self, filepath: str, recursive: bool = False, poke_interval: float = 5.0, **kwargs: Any) -> None:
        super().__init__()
        self.filepath = filepath
        self.recursive = recursive
        self.poke_interval = poke_interval

    def check(self) -> TriggerEvent | None:
        found = find_file(self.filepath, recursive=self.recursive)
        if found is None:
            return None
        self.log.info("Found %s", found)
        return TriggerEvent(True)


def find_file(pattern: str, *, recursive: bool) -> str | None:
    """Return the first match of a glob pattern that is a file, or a folder with a file in it; None without a match."""
    import glob
    from pathlib import Path

    for found in map(Path, glob.iglob(pattern, recursive=recursive)):  # noqa: PTH207 - absolute patterns
        if found.is_file() or any(inside.is_file() for inside in found.rglob("*")):
            return str(found)
    return None
