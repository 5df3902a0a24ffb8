"""A folder that is watched with the kernel's own events."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from asynsched.channels import Channel, Channels, FileChanged, FolderScanned
from asynsched.clock import Clock
from asynsched.parsing.watching.file_events import FileEvents
from asynsched.parsing.watching.watcher import NativeEvents, Watcher
from asynsched.settings import Settings, WatchSettings
from tests.support.waiting import eventually


class Watched:
    """A watched folder, and what the watcher has said of it so far."""

    def __init__(
        self,
        root: Path,
        home: Path,
        queue_size: int = 10,
        *,
        file_events: type[FileEvents] = NativeEvents,
        watch: dict[str, Any] | None = None,
    ) -> None:
        self.root = root
        self.files: dict[str, FileChanged] = {}
        self.n_messages = 0
        self.n_scans = 0
        self._channel: Channel[FileChanged | FolderScanned] = Channel(queue_size)
        settings = Settings(dags_folder=str(root), home=str(home), watch=WatchSettings(**(watch or {})))
        channels = Channels(file_changes=self._channel)
        self.watcher = Watcher(settings, channels, Clock(), file_events=file_events)

    def write(self, path: str, text: str = "x = 1") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def known(self) -> set[str]:
        """The files that are to be parsed, as far as the messages tell."""
        return {path for path, change in self.files.items() if not change.removed and not change.is_ignored}

    async def until(self, check: Callable[[], object]) -> None:
        """Take messages until the check holds."""
        with anyio.fail_after(20):
            while not check():
                self._take(await self._channel.get())

    async def told_of(self, *paths: str) -> None:
        """Wait for news of each of these files."""
        for path in paths:
            self.files.pop(path, None)
        await self.until(lambda: self.files.keys() >= set(paths))

    async def told_of_edits(self, path: str) -> None:
        """Wait until the watcher is at rest, edit a file, and wait for news of it."""
        await self.at_rest()
        self.take_all()
        self.write(path, "y = 4444")
        await self.told_of(path)

    @property
    def watched_folders(self) -> frozenset[str]:
        """The absolute paths of the folders that are watched at the moment."""
        return frozenset() if self.watcher._events is None else self.watcher._events.folders

    async def at_rest(self) -> None:
        """Wait until changes are watched or polled, and a walk has found all earlier ones."""

        def is_caught_up() -> bool:
            watcher = self.watcher
            is_watched = watcher.is_polling or (watcher._events is not None and watcher._events.is_ready.is_set())
            return is_watched and not watcher._walk_again

        await eventually(is_caught_up, "the watcher is at rest")

    def take_all(self) -> None:
        """Take the messages that have come."""
        for message in self._channel.take():
            self._take(message)

    def _take(self, message: FileChanged | FolderScanned) -> None:
        if isinstance(message, FolderScanned):
            self.n_scans += 1
        else:
            self.files[message.path] = message
            self.n_messages += 1


@asynccontextmanager
async def watching(
    root: Path,
    *,
    home: Path | None = None,
    queue_size: int = 100,
    file_events: type[FileEvents] = NativeEvents,
    **watch: Any,
) -> AsyncIterator[Watched]:
    """Watch a folder inside the block, from when its first scan is done and its events arrive."""
    watched = Watched(root, home or root.parent / "home", queue_size, file_events=file_events, watch=watch)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watched.watcher.run)
        await watched.until(lambda: watched.n_scans)
        await watched.at_rest()
        yield watched
        tasks.cancel_scope.cancel()
