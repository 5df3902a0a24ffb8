"""Triggers that fire when a file exists, and may delete it."""

from __future__ import annotations

from asynsched.authoring.triggers.base import BaseEventTrigger, PollingTrigger, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar


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


class FileDeleteTrigger(PollingTrigger, BaseEventTrigger):
    """Deletes a file as soon as it exists, and fires. The payload is True.

    Args:
        filepath: The path; unlike that of a FileTrigger, it is no pattern.
        poke_interval: The seconds between two checks.
    """

    fields: ClassVar[tuple[str, ...]] = ("filepath", "poke_interval")

    def __init__(self, filepath: str, poke_interval: float = 5.0, **kwargs: Any) -> None:
        super().__init__()
        self.filepath = filepath
        self.poke_interval = poke_interval

    def check(self) -> TriggerEvent | None:
        return TriggerEvent(True) if self._has_deleted(self.filepath) else None

    def _has_deleted(self, filepath: str) -> bool:
        import os

        if not os.path.isfile(filepath):  # noqa: PTH113 - cheaper, and checked often
            return False
        try:
            os.unlink(filepath)  # noqa: PTH108 - as above
        except FileNotFoundError:  # another process has deleted it
            return False
        self.log.info("Deleted %s", filepath)
        return True


class DirectoryFileDeleteTrigger(FileDeleteTrigger):
    """Deletes a file as soon as it exists in a folder, and fires. The payload is `{"filepath": the path}`.

    Args:
        directory: The folder.
        filename: The name of the file.
        poke_interval: The seconds between two checks.
    """

    fields = ("directory", "filename", "poke_interval")

    def __init__(self, *, directory: str, filename: str, poke_interval: float = 5.0) -> None:
        import os

        super().__init__(os.path.join(directory, filename), poke_interval)  # noqa: PTH118 - as in FileDeleteTrigger
        self.directory = directory
        self.filename = filename

    def check(self) -> TriggerEvent | None:
        return TriggerEvent({"filepath": self.filepath}) if self._has_deleted(self.filepath) else None


def find_file(pattern: str, *, recursive: bool) -> str | None:
    """Return the first match of a glob pattern that is a file, or a folder with a file in it; None without a match."""
    import glob
    from pathlib import Path

    for found in map(Path, glob.iglob(pattern, recursive=recursive)):  # noqa: PTH207 - absolute patterns
        if found.is_file() or any(inside.is_file() for inside in found.rglob("*")):
            return str(found)
    return None
