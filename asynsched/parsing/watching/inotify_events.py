"""File events of Linux, by inotify: they arrive as they happen, and cost nothing while nothing happens."""

import errno
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
from inotify_simple import INotify, flags

from asynsched.parsing.watching.file_events import FileEvents

HAPPENINGS = (
    flags.CREATE | flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE
    | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
)  # fmt: skip
ANYWHERE = "/"
"""Stands for events that the kernel's queue had no room for. No DAG folder has this path, so all of it is walked."""
ADVICE: dict[int | None, str] = {
    errno.ENOSPC: "this user has no more watches; raise fs.inotify.max_user_watches",
    errno.EMFILE: "this user, or this process, can open no more; raise fs.inotify.max_user_instances, or ulimit -n",
}


class InotifyEvents(FileEvents):
    """Events that the event loop waits for. Threads add the folders' watches, and read the events."""

    async def _listen(self) -> None:
        try:
            await self._hear(await anyio.to_thread.run_sync(INotify))
        except OSError as exc:
            raise OSError(exc.errno, ADVICE.get(exc.errno, exc.strerror)) from exc

    async def _hear(self, inotify: INotify) -> None:
        try:
            folder_of = await anyio.to_thread.run_sync(self._watch_folders, inotify)
            self.is_ready.set()
            while True:
                await anyio.wait_readable(inotify)
                self._gather(await self._burst(inotify, folder_of))
        finally:
            # The kernel gives back the watches one by one.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(inotify.close)

    def _watch_folders(self, inotify: INotify) -> dict[int, str]:
        """Return the folders by the numbers of their watches."""
        return {inotify.add_watch(folder, HAPPENINGS): folder for folder in self.folders}

    async def _burst(self, inotify: INotify, folder_of: dict[int, str]) -> set[str]:
        """Return the paths of events until these pause. A file that is written all the time is seen at each `step`."""
        end = self._clock.monotonic() + self._debounce
        paths: set[str] = set()
        while more := await anyio.to_thread.run_sync(_read, inotify, folder_of):
            paths |= more
            if (left := end - self._clock.monotonic()) <= 0:
                break
            await self._clock.sleep(timedelta(seconds=min(self._step, left)))
        return paths


def _read(inotify: INotify, folder_of: dict[int, str]) -> set[str]:
    """Return the paths of the events that are there. An event of a folder itself has no name."""
    return {
        str(Path(folder_of[event.wd], event.name)) if event.wd in folder_of else ANYWHERE
        for event in inotify.read(timeout=0)
    }
