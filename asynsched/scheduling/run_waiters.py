"""The callers in this program that wait for a run to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import anyio

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.keys import DagRunKey
from asynsched.service import Service
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import ended_among
from asynsched.timers import has_come

LOOK_INTERVAL = timedelta(seconds=5)
"""Time between two looks for the ends of runs that callers wait for."""


class RunWaiters(Service):
    """Wakes callers that wait for a run, and counts the runs that have ended."""

    name = "run waiters"

    def __init__(self, *, channels: Channels, clock: Clock) -> None:
        super().__init__(clock)
        self._channels = channels
        self._waiting: dict[DagRunKey, list[anyio.Event]] = {}
        self.n_ended = 0
        self._next_end = anyio.Event()
        self._database: Database | None = None
        self._look_at = clock.now()
        channels.run_ends.wakes(self.wake)

    def look_into(self, database: Database) -> None:
        """Poll a database in which other processes end runs too: their messages about that may be lost."""
        self._database = database
        self._look_at = self.clock.now()
        self.interval = LOOK_INTERVAL

    @contextmanager
    def waiting_for(self, run: DagRunKey) -> Iterator[anyio.Event]:
        """Yield an event that is set when the run has ended. Enter before the run can end."""
        event = anyio.Event()
        self._waiting.setdefault(run, []).append(event)
        try:
            yield event
        finally:
            self._waiting[run].remove(event)
            if not self._waiting[run]:
                del self._waiting[run]

    async def until_ended(self, n: int) -> None:
        while self.n_ended < n:
            await self._next_end.wait()

    async def tick(self, now: datetime) -> None:
        for message in self._channels.run_ends.take():
            self.n_ended += 1
            self._wake(message.run)
        if self._database is not None and self._waiting and has_come(self._look_at, now, LOOK_INTERVAL):
            self._look_at = now + LOOK_INTERVAL
            for run in await self._database.read(ended_among, list(self._waiting)):
                self._wake(run)
        self._next_end.set()
        self._next_end = anyio.Event()

    def _wake(self, run: DagRunKey) -> None:
        for event in self._waiting.get(run, ()):
            event.set()
