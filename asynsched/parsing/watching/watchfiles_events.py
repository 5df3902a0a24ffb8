"""File events where there is no inotify, by watchfiles, from a thread of their own."""

import anyio
import anyio.from_thread
import anyio.to_thread
from watchfiles import watch

from asynsched.parsing.watching.file_events import FileEvents

SHORTEST_LOOK_SECONDS = 0.03
"""Time between two looks of watchfiles at its queue. Each look has a cost, even while nothing happens."""


class WatchfilesEvents(FileEvents):
    """Events that a thread polls for. It cannot be cancelled, but ends within one look after `stop`."""

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
