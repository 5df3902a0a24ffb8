"""File events of the kernel, by watchfiles, from a thread of their own.

The folders are watched one by one, not recursively: so the scheduler's home and virtual environments are left out, and
the targets of symbolic links are taken in. A changed set of folders needs a new watch.
"""

import threading
from collections.abc import Callable, Collection

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskGroup
from watchfiles import watch

EventPaths = set[str]
"""Absolute paths that something happened to."""


class _StopFlag:
    """What watchfiles asks again and again whether to stop. Its first question comes when the watch is in place."""

    def __init__(self, when_ready: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._when_ready: Callable[[], None] | None = when_ready

    def is_set(self) -> bool:
        if self._when_ready is not None:
            when_ready, self._when_ready = self._when_ready, None
            when_ready()
        return self._stop.is_set()

    def set(self) -> None:
        self._stop.set()


class FileEvents:
    """The events of a set of folders, gathered until they are taken.

    Args:
        folders: Absolute paths of the folders.
        step: How long a burst must pause to be taken as one, seconds; also the time between two looks.
        debounce: Longest time that a burst is gathered, seconds.
        wake: Called in the event loop whenever there is something to take, or the watch has failed.
    """

    def __init__(self, folders: Collection[str], *, step: float, debounce: float, wake: Callable[[], None]) -> None:
        self.folders = frozenset(folders)
        self.failure: Exception | None = None
        self.is_ready = anyio.Event()
        self._step_ms = max(1, round(step * 1000))
        self._debounce_ms = max(self._step_ms, round(debounce * 1000))
        self._wake = wake
        self._paths: EventPaths = set()
        self._flag: _StopFlag | None = None

    def start(self, tasks: TaskGroup) -> None:
        """Begin to watch; `is_ready` is set once every folder is watched, or `failure` says why none is."""
        self._flag = _StopFlag(lambda: anyio.from_thread.run_sync(self.is_ready.set))
        tasks.start_soon(self._listen, self._flag, name="file_events")

    def stop(self) -> None:
        """Stop watching. The thread ends within one step."""
        if self._flag is not None:
            self._flag.set()

    def take(self) -> EventPaths:
        """Return the paths that something happened to since the last call."""
        paths, self._paths = self._paths, set()
        return paths

    async def _listen(self, flag: _StopFlag) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                # The thread cannot be cancelled: it is told to stop, and awaited.
                tasks.start_soon(self._run_thread, flag, tasks.cancel_scope)
                try:
                    await anyio.sleep_forever()
                finally:
                    flag.set()
        finally:
            self.is_ready.set()

    async def _run_thread(self, flag: _StopFlag, scope: anyio.CancelScope) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._watch, flag)
        except (OSError, RuntimeError) as exc:
            # OSError: no room for more watches, or a folder is gone. RuntimeError: watchfiles' own, for an odd name.
            self.failure = exc
            self._wake()
        scope.cancel()

    def _watch(self, flag: _StopFlag) -> None:
        changes = watch(
            *self.folders,
            watch_filter=None,
            debounce=self._debounce_ms,
            step=self._step_ms,
            stop_event=flag,
            rust_timeout=0,
            raise_interrupt=False,
            force_polling=False,
            recursive=False,
            ignore_permission_denied=False,
        )
        for burst in changes:
            anyio.from_thread.run_sync(self._gather, {path for _, path in burst})

    def _gather(self, paths: EventPaths) -> None:
        self._paths |= paths
        self._wake()
