"""FileTrigger: fires when a file exists."""

from __future__ import annotations

from asynsched.authoring.triggers.base import BaseTrigger, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


class FileTrigger(BaseTrigger):
    """Fires when a file exists, or a folder with a file in it at any depth. The payload is True.

    Args:
        filepath: The path or a glob pattern.
        recursive: Make `**` in the pattern match any number of folders.
        poke_interval: The seconds between two checks.
    """

    def __init__(self, filepath: str, recursive: bool = False, poke_interval: float = 5.0, **kwargs: Any) -> None:
        super().__init__()
        self.filepath = filepath
        self.recursive = recursive
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"filepath": self.filepath, "recursive": self.recursive, "poke_interval": self.poke_interval}
        return f"{__name__}.FileTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import asyncio

        # A folder may be large or on a slow disk: other triggers must not wait for it.
        while (found := await asyncio.to_thread(find_file, self.filepath, recursive=self.recursive)) is None:  # noqa: ASYNC110 - files announce nothing
            await asyncio.sleep(self.poke_interval)
        self.log.info("Found %s", found)
        yield TriggerEvent(True)


def find_file(pattern: str, *, recursive: bool) -> str | None:
    """Return the first match of a glob pattern that is a file, or a folder with a file in it; None without a match."""
    import glob
    from pathlib import Path

    for found in map(Path, glob.iglob(pattern, recursive=recursive)):  # noqa: PTH207 - absolute patterns
        if found.is_file() or any(inside.is_file() for inside in found.rglob("*")):
            return str(found)
    return None
