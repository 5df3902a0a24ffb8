"""File events where there is no inotify, by watchfiles, from a thread of their own."""

import threading
from collections.abc import Callable

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskGroup
from watchfiles import watch

from asynsched.parsing.watching.file_events import FileEvents

SHORTEST_LOOK_SECONDS = 0.03
"""Time between two looks of watchfiles at its queue. Each look has a cost, even while nothing happens."""


class _StopFlag:
    """The stop event that watchfiles polls. It polls first when the watch is in place."""

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


class WatchfilesEvents(FileEvents):
    """Events that a thread polls for. It ends within one look after `stop`."""

    _flag: _StopFlag | None = None

    def start(self, tasks: TaskGroup) -> None:
        self._flag = _StopFlag(lambda: anyio.from_thread.run_sync(self.is_ready.set))
        tasks.start_soon(self._listen, self._flag, name="file_events")

    def stop(self) -> None:
        if self._flag is not None:
            self._flag.set()

    async def _listen(self, flag: _StopFlag) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                # The thread cannot be cancelled: the flag stops it, and it is awaited.
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
            self._fail(exc)
        scope.cancel()

    def _watch(self, flag: _StopFlag) -> None:
        look = max(self._step, SHORTEST_LOOK_SECONDS)
        changes = watch(
            *self.folders,
            watch_filter=None,
            debounce=round(max(look, self._debounce) * 1000),
            step=round(look * 1000),
            stop_event=flag,
            rust_timeout=0,
            raise_interrupt=False,
            force_polling=False,
            recursive=False,
            ignore_permission_denied=False,
        )
        for burst in changes:
            anyio.from_thread.run_sync(self._gather, {path for _, path in burst})
