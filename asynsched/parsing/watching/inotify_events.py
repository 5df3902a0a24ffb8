"""File events of Linux, by inotify: they arrive as they happen, and cost nothing while nothing happens."""

import errno
from datetime import timedelta
from functools import reduce
from operator import or_
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from inotify_simple import INotify, flags

from asynsched.parsing.watching.file_events import EventPaths, FileEvents

HAPPENINGS = reduce(
    or_,
    (
        flags.CREATE,
        flags.MODIFY,
        flags.CLOSE_WRITE,
        flags.ATTRIB,
        flags.MOVED_FROM,
        flags.MOVED_TO,
        flags.DELETE,
        flags.DELETE_SELF,
        flags.MOVE_SELF,
        flags.ONLYDIR,
    ),
)
ANYWHERE = "/"
"""Stands for events that the kernel's queue had no room for. No DAG folder has this path, so all of it is walked."""


class InotifyEvents(FileEvents):
    """Events that the event loop waits for. Threads add the folders' watches, and read the events."""

    _scope: anyio.CancelScope | None = None

    def start(self, tasks: TaskGroup) -> None:
        self._scope = anyio.CancelScope()
        tasks.start_soon(self._listen, self._scope, name="file_events")

    def stop(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def _listen(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self._hear(await anyio.to_thread.run_sync(INotify))
        except OSError as exc:
            self._fail(_explained(exc))
        finally:
            self.is_ready.set()

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

    async def _burst(self, inotify: INotify, folder_of: dict[int, str]) -> EventPaths:
        """Return the paths of events until these pause. A file that is written all the time is seen at each `step`."""
        end = self._clock.monotonic() + self._debounce
        paths: EventPaths = set()
        while more := await anyio.to_thread.run_sync(_read, inotify, folder_of):
            paths |= more
            if (left := end - self._clock.monotonic()) <= 0:
                break
            await self._clock.sleep(timedelta(seconds=min(self._step, left)))
        return paths


def _read(inotify: INotify, folder_of: dict[int, str]) -> EventPaths:
    """Return the paths of the events that are there. An event of a folder itself has no name."""
    return {
        str(Path(folder_of[event.wd], event.name)) if event.wd in folder_of else ANYWHERE
        for event in inotify.read(timeout=0)
    }


def _explained(failure: OSError) -> OSError:
    """Return the failure, with advice if its error number is not self-explanatory."""
    advice = {
        errno.ENOSPC: "this user has no more watches; raise fs.inotify.max_user_watches",
        errno.EMFILE: "this user, or this process, can open no more; raise fs.inotify.max_user_instances, or ulimit -n",
    }
    return OSError(failure.errno, advice[failure.errno]) if failure.errno in advice else failure
