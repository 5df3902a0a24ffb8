"""Waiting for changes by other processes: the kernel or the database wakes the command.

SQLite: inotify reports each commit, shortly before the commit can be read (`file_events.py`): after an event the
command looks again, at intervals that double. PostgreSQL: the command asks the schedulers for a notification of each
change of a run, and listens. Logs: inotify reports that a file grows.

Behind these there is a slow sweep, as in the scheduler. It is the only mechanism on macOS, which has no inotify, and
for parses on PostgreSQL, which no notification reports.
"""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from asynsched.bell import Hint, decode_hints, encode_hints
from asynsched.clock import Clock
from asynsched.queries.file_events import FileEvents
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.urls import DatabaseUrl, parse_url

if TYPE_CHECKING:
    from asynsched.keys import DagRunKey

T = TypeVar("T")

SWEEP_SECONDS = 5.0
"""Longest wait for an event before the caller looks anyway."""
BLIND_SWEEP_SECONDS = 1.0
"""The same interval if no event reports changes of the database."""
PAUSE_SECONDS = 0.05
"""Shortest time between two reports of changes: a busy scheduler commits more often than a look is useful.

Also the first interval at which the caller looks again: SQLite appends a commit before it syncs and publishes it.
"""
BURST_SECONDS = 0.01
"""How long the events that begin during a wait are gathered: most commits are published after that time."""
RENEW_SECONDS = 10.0
"""How long a request for notifications is relied on: schedulers answer it for longer, but may start after it."""


class Changes:
    """Changes since the last report, or since this object was made: make it before the first look.

    Args:
        run: The run to hear of, on PostgreSQL; None: nothing is heard from there.

    Raises:
        StoreUnavailable: PostgreSQL cannot be reached; `wait` raises it, too.
    """

    def __init__(self, database: str, run: "DagRunKey | None" = None) -> None:
        url = parse_url(database)
        self._runner = asyncio.Runner()
        self._woken = asyncio.Event()
        self._is_notified = False
        self._not_before = 0.0  # in the time of the event loop: nothing is reported earlier
        self._files = FileEvents()
        self._listener = None
        self._sweep, self._pause = BLIND_SWEEP_SECONDS, PAUSE_SECONDS
        if url.path is not None:
            if self._files.watch_database(url.path):
                self._sweep = SWEEP_SECONDS
        elif run is not None:
            self._listener = _Listener(url, run, self._be_notified)
            try:
                self._run(self._listener.renew)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        self._runner.close()
        self._files.close()

    def follow(self, file: Path, top: Path) -> None:
        """Also watch a file. Neither it nor its folders below `top` need exist yet. Call this before each look."""
        self._files.follow(file, top)

    def wait(self, seconds: float = math.inf) -> bool:
        """Return True when something has changed; False after that many seconds, or when it is time to look again."""
        longest = SWEEP_SECONDS if self._listener is not None else self._pause
        has_changed = self._run(partial(self._wait, min(seconds, longest)))
        self._pause = PAUSE_SECONDS if has_changed else min(2 * self._pause, self._sweep)
        return has_changed

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run this on the event loop, where Ctrl-C cancels it: outside, it would leave a half-made loop behind."""

        async def interruptible() -> T:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                return await work()
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._runner.run(interruptible())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    async def _wait(self, seconds: float) -> bool:
        loop, clock = asyncio.get_running_loop(), Clock()
        deadline = loop.time() + seconds
        if self._listener is not None:
            await self._listener.renew()
        await clock.sleep(timedelta(seconds=self._not_before - loop.time()))
        try:
            async with asyncio.timeout_at(deadline):
                while not self._take_changes():
                    await self._wait_for_events()
                    await clock.sleep(timedelta(seconds=BURST_SECONDS))
        except TimeoutError:
            return False
        self._not_before = loop.time() + PAUSE_SECONDS
        return True

    async def _wait_for_events(self) -> None:
        """Return when there is an event, whatever it concerns, or a notification."""
        loop, descriptor = asyncio.get_running_loop(), self._files.fileno()
        if descriptor is not None:
            loop.add_reader(descriptor, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            self._woken.clear()
            if descriptor is not None:
                loop.remove_reader(descriptor)

    def _take_changes(self) -> bool:
        """Take what has been reported by now, and return whether that concerns the database, the run or a log."""
        is_notified, self._is_notified = self._is_notified, False
        return self._files.take() or is_notified

    def _be_notified(self) -> None:
        self._is_notified = True
        self._woken.set()


class _Listener:
    """A connection to PostgreSQL that listens for changes of a run.

    Args:
        notify: Called when a notification says that the run has changed.
    """

    def __init__(self, url: DatabaseUrl, run: "DagRunKey", notify: Callable[[], None]) -> None:
        from asynsched.store.engines.postgres import ServerOrder, command_timeout, connect

        self._connect = partial(connect, url, ServerOrder(), command_timeout=command_timeout(url.dsn))
        self._shown, self._run, self._notify = url.shown, run, notify
        self._connection: Any = None
        self._asked_at = -math.inf

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    async def renew(self) -> None:
        """Listen, and ask the schedulers to notify of the run, unless both has been done recently."""
        from asynsched.store.schedulers import CHANNEL

        now = asyncio.get_running_loop().time()
        is_connected = self._connection is not None and not self._connection.is_closed()
        if is_connected and now - self._asked_at < RENEW_SECONDS:
            return
        with store_errors(self._shown):
            if not is_connected:
                self._connection = await self._connect()
                self._connection.add_termination_listener(lambda _: self._notify())
                await self._connection.add_listener(CHANNEL, self._hear)
            hint = encode_hints([Hint("watch", *self._run)])
            await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, hint)
        self._asked_at = now

    def _hear(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        try:
            hints = decode_hints(str(payload))
        except ValueError:
            return
        if any((*self._run,) == (hint.dag_id, hint.run_id) and hint.kind != "watch" for hint in hints):
            self._notify()
