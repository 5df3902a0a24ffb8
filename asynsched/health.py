"""How a scheduler is: the age of every loop, and the oldest step that has not ended.

Everything is read from memory: nothing blocks, and it may be asked from any thread, also while the event loop stands
still. That is when it matters.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from msgspec import Struct

from asynsched._version import __version__
from asynsched.clock import Clock
from asynsched.service import Pulse, Service


class LoopHealth(Struct, frozen=True):
    """One loop.

    Attributes:
        name: What it is called in the log, too.
        age_seconds: How long ago its last step ended.
        step_seconds: For how long the step that is under way has gone on; None between steps.
        waits_for_database: Whether it waits for the database to come back.
        is_stuck: Whether its step, or the time until it, is longer than a scheduler that is well ever takes.
    """

    name: str
    age_seconds: float
    step_seconds: float | None = None
    waits_for_database: bool = False
    is_stuck: bool = False


class LongParse(Struct, frozen=True):
    """A parse that goes on, and for how long it has; `limit_seconds`: how long the import of a file may take."""

    file: str
    seconds: float
    limit_seconds: float

    @property
    def sentence(self) -> str:
        """What is said of it."""
        return f"{self.file} is being parsed, for {self.seconds:.0f} s so far; limit {self.limit_seconds:.0f} s."


class Health(Struct, frozen=True):
    """How a scheduler is.

    Attributes:
        status: `stuck` when a loop is: the scheduler will not mend by itself. `waiting`: the database cannot be
            reached, and the scheduler goes on when it can.
        oldest_step: The loop whose step that is under way began first; None between steps.
        oldest_step_seconds: For how long that step has gone on.
        loops: Every loop, the lease's renewal among them.
        parses: The parses of DAG files that take long.
    """

    status: Literal["healthy", "waiting", "stuck"]
    scheduler_id: str
    version: str
    at: datetime
    oldest_step: str | None
    oldest_step_seconds: float | None
    loops: tuple[LoopHealth, ...]
    parses: tuple[LongParse, ...] = ()

    @property
    def stuck_loops(self) -> tuple[str, ...]:
        """The names of the loops that are stuck."""
        return tuple(loop.name for loop in self.loops if loop.is_stuck)


class Vitals:
    """Knows the loops of one scheduler.

    Args:
        clock: What their steps are timed by.
        scheduler_id: Whose they are.
        longest_step: Seconds that a step, or a delay of one, may take.
    """

    def __init__(self, clock: Clock, scheduler_id: str, longest_step: float) -> None:
        self._clock = clock
        self._scheduler_id = scheduler_id
        self._longest_step = longest_step
        self._loops: list[tuple[str, Pulse, Callable[[], timedelta | None]]] = []
        self._parses: Callable[[], tuple[LongParse, ...]] = tuple

    def watch(self, services: Sequence[Service]) -> None:
        """Tell of these loops, too."""
        for service in services:
            self._loops.append((service.name, service.pulse, partial(getattr, service, "interval")))

    def watch_pulse(self, name: str, pulse: Pulse, interval: timedelta) -> None:
        """Tell of a loop that is no service, and goes round each `interval` at least."""
        self._loops.append((name, pulse, lambda: interval))

    def watch_parses(self, long_ones: Callable[[], tuple[LongParse, ...]]) -> None:
        """Tell of these parses, too."""
        self._parses = long_ones

    def health(self) -> Health:
        """Return how the scheduler is now."""
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
        return Health(status, self._scheduler_id, __version__, now, oldest, seconds, loops, self._parses())

    def _loop(self, name: str, pulse: Pulse, interval: timedelta | None, at: float) -> LoopHealth:
        began_at, age = pulse.step_began_at, max(0.0, at - pulse.step_ended_at)
        step = None if began_at is None else max(0.0, at - began_at)
        if step is not None:
            is_stuck = step > self._longest_step
        else:
            longest = None if interval is None else interval.total_seconds() + self._longest_step
            is_stuck = longest is not None and not pulse.waits_for_database and age > longest
        return LoopHealth(
            name,
            round(age, 3),
            None if step is None else round(step, 3),
            waits_for_database=pulse.waits_for_database,
            is_stuck=is_stuck,
        )
