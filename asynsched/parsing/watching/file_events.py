"""The file events that the watcher needs, independent of their source.

The folders are watched one by one, not recursively: so the scheduler's home and virtual environments are left out, and
the targets of symbolic links are taken in. A changed set of folders needs a new watch.
"""

import errno
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread

from asynsched.clock import Clock


class FileEvents(ABC):
    """The paths that events name in a set of folders, gathered until they are taken.

    Args:
        folders: Absolute paths of the folders.
        step: How long a burst must pause to be taken as one, seconds.
        debounce: Longest time that a burst is gathered, seconds.
        clock: Measures both.
        wake: Called in the event loop whenever there is something to take, or the watch has failed.

    Attributes:
        is_ready: Set once every folder is watched, or `failure` says why none is.
    """

    def __init__(
        self, folders: Collection[str], *, step: float, debounce: float, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self.folders = frozenset(folders)
        self.failure: Exception | None = None
        self.is_ready = anyio.Event()
        self._step = step
        self._debounce = debounce
        self._clock = clock
        self._wake = wake
        self._paths: set[str] = set()
        self._scope = anyio.CancelScope()

    async def listen(self) -> None:
        """Gather events until `stop` is called, or the watch fails."""
        try:
            with self._scope:
                await self._listen()
        except (OSError, RuntimeError) as exc:
            self.failure = exc
            self._wake()
        finally:
            self.is_ready.set()

    @abstractmethod
    async def _listen(self) -> None:
        """Watch the folders, set `is_ready`, and gather. OSError and RuntimeError mean that the watch has failed."""

    def stop(self) -> None:
        """Stop watching, soon. Events that were gathered can still be taken."""
        self._scope.cancel()

    def take(self) -> set[str]:
        """Return the absolute paths that events have named since the last call."""
        paths, self._paths = self._paths, set()
        return paths

    def _gather(self, paths: set[str]) -> None:
        self._paths |= paths
        self._wake()


if sys.platform == "linux":
    from inotify_simple import INotify, flags

    HAPPENINGS = (
        flags.CREATE | flags.MODIFY | flags.CLOSE_WRITE | flags.ATTRIB | flags.MOVED_FROM | flags.MOVED_TO
        | flags.DELETE | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
    )  # fmt: skip
ANYWHERE = "/"
"""Stands for events that the kernel's queue had no room for. No DAG folder has this path, so all of it is walked."""
ADVICE: dict[int | None, str] = {
    errno.ENOSPC: "this user has no more watches; raise fs.inotify.max_user_watches",
    errno.EMFILE: "this user, or this process, can open no more; raise fs.inotify.max_user_instances, or ulimit -n",
}


class InotifyEvents(FileEvents):
    """Events of Linux: they arrive as they happen, and cost nothing while nothing happens.

    The event loop waits for them; threads add the folders' watches, and read the events.
    """

    async def _listen(self) -> None:
        try:
            await self._hear(await anyio.to_thread.run_sync(INotify))
        except OSError as exc:
            raise OSError(exc.errno, ADVICE.get(exc.errno, exc.strerror)) from exc

    async def _hear(self, inotify: "INotify") -> None:
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

    def _watch_folders(self, inotify: "INotify") -> dict[int, str]:
        """Return the folders by the numbers of their watches."""
        return {inotify.add_watch(folder, HAPPENINGS): folder for folder in self.folders}

    async def _burst(self, inotify: "INotify", folder_of: dict[int, str]) -> set[str]:
        """Return the paths of events until these pause. A file that is written all the time is seen at each `step`."""
        end = self._clock.monotonic() + self._debounce
        paths: set[str] = set()
        while more := await anyio.to_thread.run_sync(_read, inotify, folder_of):
            paths |= more
            if (left := end - self._clock.monotonic()) <= 0:
                break
            await self._clock.sleep(timedelta(seconds=min(self._step, left)))
        return paths


def _read(inotify: "INotify", folder_of: dict[int, str]) -> set[str]:
    """Return the paths of the events that are there. An event of a folder itself has no name."""
    return {
        str(Path(folder_of[event.wd], event.name)) if event.wd in folder_of else ANYWHERE
        for event in inotify.read(timeout=0)
    }


SHORTEST_LOOK_SECONDS = 0.03
"""Time between two looks of watchfiles at its queue. Each look has a cost, even while nothing happens."""


class WatchfilesEvents(FileEvents):
    """Events where there is no inotify. A thread polls for them; it ends within one look after `stop`."""

    _is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def is_set(self) -> bool:
        """Whether to stop. The thread asks at each look, and first when the watch is in place."""
        if not self.is_ready.is_set():
            anyio.from_thread.run_sync(self.is_ready.set)
        return self._is_stopped

    async def _listen(self) -> None:
        await anyio.to_thread.run_sync(self._watch)

    def _watch(self) -> None:
        """Watch. Raises OSError without room for more watches, or without a folder; RuntimeError for an odd name."""
        from watchfiles import watch

        look = max(self._step, SHORTEST_LOOK_SECONDS)
        changes = watch(
            *self.folders,
            watch_filter=None,
            debounce=round(max(look, self._debounce) * 1000),
            step=round(look * 1000),
            stop_event=self,
            rust_timeout=0,
            raise_interrupt=False,
            force_polling=False,
            recursive=False,
            ignore_permission_denied=False,
        )
        for burst in changes:
            anyio.from_thread.run_sync(self._gather, {path for _, path in burst})


NativeEvents: type[FileEvents] = InotifyEvents if sys.platform == "linux" else WatchfilesEvents
