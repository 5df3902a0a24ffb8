"""How far the DAG folder is read, and which parses take long: for callers that wait for the folder or for a DAG."""

from datetime import datetime, timedelta

import anyio

from asynsched.clock import Clock
from asynsched.health import LongParse
from asynsched.store.dags.dags import get_dag
from asynsched.store.database import Database

LONG_SECONDS = 2.0
"""A parse that takes longer is reported."""


class ParsesUnderWay:
    """Knows which files are being parsed, and which of them take long. Any thread may ask for `long_ones`."""

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._began_at: dict[str, float] = {}
        self._untold: dict[str, float] = {}

    def begin(self, path: str) -> None:
        """Note that the parse of a file begins."""
        self._began_at[path] = self._untold[path] = self._clock.monotonic()

    def end(self, path: str) -> None:
        """Note that it has ended."""
        self._began_at.pop(path, None)
        self._untold.pop(path, None)

    def long_ones(self) -> tuple[LongParse, ...]:
        """Return the parses that take long."""
        return self._long(list(self._began_at.items()))

    def take_new_long_ones(self) -> tuple[LongParse, ...]:
        """Return those that were not returned by this before."""
        found = self._long(list(self._untold.items()))
        for parse in found:
            del self._untold[parse.file]
        return found

    def next_long_at(self, now: datetime) -> datetime | None:
        """Return when `take_new_long_ones` has another one, if nothing ends before."""
        began_at = min(self._untold.values(), default=None)
        if began_at is None:
            return None
        # A microsecond more: a timedelta is rounded, and a tick that comes too early would repeat itself at once.
        return now + timedelta(seconds=began_at + LONG_SECONDS - self._clock.monotonic(), microseconds=1)

    def _long(self, began: list[tuple[str, float]]) -> tuple[LongParse, ...]:
        at = self._clock.monotonic()
        return tuple(
            LongParse(path, round(at - began_at, 3), self._limit_seconds)
            for path, began_at in began
            if at - began_at >= LONG_SECONDS
        )


class ReadingProgress:
    """Tells of each step of the reading. `is_complete` once every file was parsed and stored since the start."""

    def __init__(self) -> None:
        self.is_complete = False
        self._step = anyio.Event()

    def note(self, *, is_idle: bool) -> None:
        """Note a step, after which all files known by now are read, or not."""
        self.is_complete = self.is_complete or is_idle
        step, self._step = self._step, anyio.Event()
        step.set()

    async def step(self) -> None:
        """Wait for the next step."""
        await self._step.wait()

    async def until_read(self) -> None:
        """Wait until the folder is read."""
        while not self.is_complete:
            await self._step.wait()

    async def until_known(self, database: Database, dag_id: str) -> None:
        """Wait until there is such a DAG, or the folder is read and there is none. Later it does not wait at all."""
        while not self.is_complete:
            step = self._step
            found = await database.read(get_dag, dag_id)
            if found is not None and found.is_active:
                return
            await step.wait()
