"""The file events that the watcher needs, independent of their source.

The folders are watched one by one, not recursively: so the scheduler's home and virtual environments are left out, and
the targets of symbolic links are taken in. A changed set of folders needs a new watch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable

import anyio
from anyio.abc import TaskGroup

from asynsched.clock import Clock

EventPaths = set[str]
"""Absolute paths that events name."""


class FileEvents(ABC):
    """The events of a set of folders, gathered until they are taken.

    Args:
        folders: Absolute paths of the folders.
        step: How long a burst must pause to be taken as one, seconds.
        debounce: Longest time that a burst is gathered, seconds.
        clock: Measures both.
        wake: Called in the event loop whenever there is something to take, or the watch has failed.
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
        self._paths: EventPaths = set()

    @abstractmethod
    def start(self, tasks: TaskGroup) -> None:
        """Begin to watch; `is_ready` is set once every folder is watched, or `failure` says why none is."""

    @abstractmethod
    def stop(self) -> None:
        """Stop watching, soon. Events that were gathered can still be taken."""

    def take(self) -> EventPaths:
        """Return the paths that events have named since the last call."""
        paths, self._paths = self._paths, set()
        return paths

    def _gather(self, paths: Iterable[str]) -> None:
        self._paths.update(paths)
        self._wake()

    def _fail(self, reason: Exception) -> None:
        self.failure = reason
        self._wake()
