"""The health of a scheduler: the age of every loop, and the oldest step that has not ended.

Everything is read from memory: nothing blocks, and any thread may ask, also while the event loop is stalled. That is
when it matters.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from asynsched._version import __version__
from asynsched.clock import Clock
from asynsched.service import Pulse


class LoopHealth(Struct, frozen=True):
    """One loop.

    Attributes:
        age_seconds: How long ago its last step ended.
        step_seconds: Age of the step that is under way; None between steps.
        is_stuck: Whether its step, or the time since the last one, is longer than in any healthy scheduler.
    """

    name: str
    age_seconds: float
    step_seconds: float | None = None
    waits_for_database: bool = False
    is_stuck: bool = False


class LongParse(Struct, frozen=True):
    """A parse under way, and its age; `limit_seconds` is the longest that the import of a file may take."""

    file: str
    seconds: float
    limit_seconds: float

    @property
    def sentence(self) -> str:
        """The parse and its age, for people."""
        return f"{self.file} is being parsed, for {self.seconds:.0f} s so far; limit {self.limit_seconds:.0f} s."


class WaitingLogs(Struct, frozen=True):
    """How many logs wait for `log.store`, and why the last one could not be stored; empty: none has failed."""

    n_logs: int = 0
    problem: str = ""

    @property
    def sentence(self) -> str:
        """The same for people; empty without a problem."""
        logs = "1 log waits" if self.n_logs == 1 else f"{self.n_logs} logs wait"
        return f"{logs} for the store of logs: {self.problem}." if self.problem else ""


class Health(Struct, frozen=True):
    """The health of a scheduler.

    Attributes:
        status: `stuck` if a loop is: the scheduler will not recover by itself. `waiting`: the database cannot be
            reached, and the scheduler goes on once it can.
        oldest_step: The loop in the oldest step; None between steps.
        oldest_step_seconds: Age of that step.
        loops: Every loop, including the lease's renewal.
        parses: Parses of DAG files that take long.
        logs: The logs that are still to be copied to `log.store`. A problem there concerns nothing else.
    """

    status: Literal["healthy", "waiting", "stuck"]
    scheduler_id: str
    version: str
    at: datetime
    oldest_step: str | None
    oldest_step_seconds: float | None
    loops: tuple[LoopHealth, ...]
    parses: tuple[LongParse, ...] = ()
    logs: WaitingLogs = WaitingLogs()

    @property
    def stuck_loops(self) -> tuple[str, ...]:
        return tuple(loop.name for loop in self.loops if loop.is_stuck)


class Vitals:
    """Knows the loops of one scheduler. `longest_step`: longest that a step, or its delay, may take, in seconds."""

    def __init__(self, clock: Clock, scheduler_id: str, longest_step: float) -> None:
        self._clock = clock
        self._scheduler_id = scheduler_id
        self._longest_step = longest_step
        self._loops: list[tuple[str, Pulse, Callable[[], timedelta | None]]] = []
        self._parses: Callable[[], tuple[LongParse, ...]] = tuple
        self._logs: Callable[[], WaitingLogs] = WaitingLogs

    def watch(self, name: str, pulse: Pulse, interval: Callable[[], timedelta | None]) -> None:
        """Report on this loop, too. `interval` returns the longest time between two of its steps."""
        self._loops.append((name, pulse, interval))

    def watch_parses(self, long_ones: Callable[[], tuple[LongParse, ...]]) -> None:
        self._parses = long_ones

    def watch_logs(self, waiting: Callable[[], WaitingLogs]) -> None:
        self._logs = waiting

    def health(self) -> Health:
        at = self._clock.monotonic()
        loops = tuple(
            self._loop(name, pulse, interval(), at) for name, pulse, interval in self._loops if pulse.is_running
        )
        steps = [(loop.step_seconds, loop.name) for loop in loops if loop.step_seconds is not None]
        seconds, oldest = max(steps, default=(None, None))
        status: Literal["healthy", "waiting", "stuck"] = "healthy"
        if any(loop.is_stuck for loop in loops):
            status = "stuck"
        elif any(loop.waits_for_database for loop in loops):
            status = "waiting"
        now = self._clock.now()
        return Health(
            status, self._scheduler_id, __version__, now, oldest, seconds, loops, self._parses(), self._logs()
        )

    def _loop(self, name: str, pulse: Pulse, interval: timedelta | None, at: float) -> LoopHealth:
        began_at, age = pulse.step_began_at, max(0.0, at - pulse.step_ended_at)
        step = None if began_at is None else max(0.0, at - began_at)
        if step is not None:
            is_stuck = step > self._longest_step
        else:
            longest = None if interval is None or pulse.is_outside else interval.total_seconds() + self._longest_step
            is_stuck = longest is not None and not pulse.waits_for_database and age > longest
        return LoopHealth(
            name,
            round(age, 3),
            None if step is None else round(step, 3),
            waits_for_database=pulse.waits_for_database,
            is_stuck=is_stuck,
        )
