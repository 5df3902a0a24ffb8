"""The file events that the watcher needs, independent of their source.

The folders are watched one by one, not recursively: so the scheduler's home and virtual environments are left out, and
the targets of symbolic links are taken in. A changed set of folders needs a new watch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

import anyio

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
