"""Waiting for changes by other processes: the kernel or the database wakes the command.

SQLite: a commit is appended to a file beside the database, and all processes of a SQLite database are on one machine,
so inotify reports each commit, shortly before the commit can be read: after an event the command looks again, at
intervals that double. PostgreSQL: the command asks the schedulers for a notification of each change of a run, and
listens. Logs: inotify reports that a file grows.

Behind these there is a slow sweep, as in the scheduler. It is the only mechanism on macOS, which has no inotify, and
for parses on PostgreSQL, which no notification reports.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asynsched.bell import Hint, decode_hints, encode_hints
from asynsched.clock import SystemClock
from asynsched.store.engines.urls import DatabaseUrl, parse_url

if TYPE_CHECKING:
    from inotify_simple import INotify

    from asynsched.keys import DagRunKey

SWEEP_SECONDS = 5.0
"""Longest wait for an event before the caller looks anyway."""
BLIND_SWEEP_SECONDS = 1.0
"""The same interval if no event can come."""
AGAIN_SECONDS = 0.02
"""How soon after an event the caller looks again: SQLite appends a commit before it syncs and publishes it."""
BURST_SECONDS = 0.01
"""How long the events of a burst are gathered: a busy scheduler commits more often than a look is useful."""


class Changes:
    """Changes since the last wait, or since this object was made: make it before the first look.

    Args:
        database: Its URL.
        run: The run to hear of, on PostgreSQL; None: nothing is heard from there.

    Raises:
        StoreUnavailable: PostgreSQL cannot be reached; `wait` raises it, too.
    """

    def __init__(self, database: str, run: "DagRunKey | None" = None) -> None:
        url = parse_url(database)
        self._inotify = _open_inotify()
        self._names: dict[int, set[str]] = {}
        self._pause = AGAIN_SECONDS
        self._listener = None
        if url.path is not None:
            path = url.path.resolve()  # SQLite keeps its log beside the file that a symbolic link names
            self._watch(path.parent, path.name)
        elif run is not None:
            self._listener = _Listener(url, run)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        if self._inotify is not None:
            self._inotify.close()

    def follow(self, file: Path, top: Path) -> None:
        """Also watch a file. Neither it nor its folders below `top` need exist yet. Call this before each look."""
        folders = [folder for folder in file.parents if folder.is_relative_to(top)]
        for folder, child in zip(reversed(folders), [*reversed(folders[:-1]), file], strict=True):
            # The folder first: a child that is made after this look is an event.
            self._watch(folder, child.name)
            if not child.exists():
                return

    def wait(self, seconds: float | None = None) -> bool:
        """Return True when something has changed; False after that many seconds, or when it is time to look again."""
        seconds = SWEEP_SECONDS if seconds is None else min(seconds, SWEEP_SECONDS)
        if self._listener is not None:
            has_changed = self._listener.wait(self._inotify, seconds)
            return self._take_events(0) or has_changed
        if self._names:
            has_changed = self._take_events(min(seconds, self._pause))
            self._pause = AGAIN_SECONDS if has_changed else min(2 * self._pause, SWEEP_SECONDS)
            return has_changed
        time.sleep(min(seconds, BLIND_SWEEP_SECONDS))
        return False

    def _take_events(self, seconds: float) -> bool:
        """Return at the first events that concern a watched name; False when the time is over."""
        if self._inotify is None:
            return False
        clock = SystemClock()
        deadline = clock.monotonic() + seconds
        while events := self._inotify.read(
            max(0, int((deadline - clock.monotonic()) * 1000)), int(BURST_SECONDS * 1000)
        ):
            if any(event.name.startswith(tuple(self._names.get(event.wd, ()))) for event in events):
                return True
            if clock.monotonic() >= deadline:
                return False
        return False

    def _watch(self, folder: Path, name: str) -> None:
        """Watch the files in a folder whose names begin like this."""
        if self._inotify is None:
            return
        from inotify_simple import flags

        try:
            number = self._inotify.add_watch(folder, flags.CREATE | flags.MODIFY | flags.MOVED_TO)
        except OSError:  # it does not exist yet, or this user has no more watches: the sweep looks
            return
        self._names.setdefault(number, set()).add(name)  # a folder that is watched twice has one number


def _open_inotify() -> "INotify | None":
    if sys.platform != "linux":
        return None
    from inotify_simple import INotify

    try:
        return INotify()
    except OSError:  # this user has no more of them
        return None


class _Listener:
    """A connection to PostgreSQL that listens for changes of a run, on an event loop that runs only during a wait."""

    def __init__(self, url: DatabaseUrl, run: "DagRunKey") -> None:
        from asynsched.store.engines.driver_errors import store_errors
        from asynsched.store.engines.postgres_engine import ServerOrder

        self._url, self._run = url, run
        self._order = ServerOrder()
        self._errors = store_errors
        self._connection: Any = None
        self._has_changed = asyncio.Event()
        self._runner = asyncio.Runner()
        with self._errors(url.shown):
            self._runner.run(self._subscribe())

    def wait(self, inotify: "INotify | None", seconds: float) -> bool:
        with self._errors(self._url.shown):
            return self._runner.run(self._wait(inotify, seconds))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._runner.close()

    async def _subscribe(self) -> None:
        """Listen, and ask the schedulers to notify of the run; for a while, so a wait asks again and again."""
        from asynsched.store.engines.postgres_engine import connect
        from asynsched.store.schedulers import CHANNEL

        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._url, self._order)
            self._connection.add_termination_listener(lambda _: self._has_changed.set())
            await self._connection.add_listener(CHANNEL, self._hear)
        await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, encode_hints([Hint("watch", *self._run)]))

    async def _wait(self, inotify: "INotify | None", seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        if inotify is not None:
            loop.add_reader(inotify.fileno(), self._has_changed.set)
        try:
            async with asyncio.timeout(seconds):
                return await self._has_changed.wait()
        except TimeoutError:
            await self._subscribe()
            return False
        finally:
            self._has_changed.clear()
            if inotify is not None:
                loop.remove_reader(inotify.fileno())

    def _hear(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        try:
            hints = decode_hints(str(payload)) if payload else []
        except ValueError:
            return
        # An empty payload stands for one that was too long.
        if not payload or any((*self._run,) == (hint.dag_id, hint.run_id) and hint.kind != "watch" for hint in hints):
            self._has_changed.set()
