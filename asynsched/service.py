"""The contract of one long-lived task of the scheduler: woken by events, with an interval as safety net."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from asynsched.clock import Clock, jitter
from asynsched.errors import StoreUnavailable
from asynsched.loggers import get_logger
from asynsched.metrics.base import Metrics, NoMetrics

T = TypeVar("T")
log = get_logger(__name__)

FIRST_BACKOFF = timedelta(milliseconds=100)
LONGEST_BACKOFF = timedelta(seconds=10)
RETRY_DELAY = timedelta(seconds=1)
QUIET_SECONDS = 5.0
"""A loss this soon after a return belongs to the same outage: e.g. a connection that had not been used since."""


async def until_available(clock: Clock, query: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Return the result of a query. While the database cannot be reached, it is repeated each RETRY_DELAY."""
    while True:
        try:
            return await query(*args)
        except StoreUnavailable:
            await clock.sleep(RETRY_DELAY)


class Availability:
    """Logs once that the database is away, and once that it is back, however many services notice; for any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._without: set[str] = set()
        self._is_told = False
        self._lost_at = 0.0
        self._back_at = -QUIET_SECONDS

    def lost(self, who: str, error: Exception) -> None:
        """Note that a service cannot reach the database. Call it after each failed attempt."""
        with self._lock:
            now = self._clock.monotonic()
            self._without.add(who)
            if not self._is_told and now - self._back_at >= QUIET_SECONDS:
                self._is_told, self._lost_at = True, now
                log.warning("store.unavailable", service=who, error=str(error), then="retrying until it is back")

    def found(self, who: str) -> None:
        """Note that a service has reached the database again."""
        with self._lock:
            if who not in self._without:
                return
            self._without.discard(who)
            if not self._without:
                self._back_at = self._clock.monotonic()
                if self._is_told:
                    self._is_told = False
                    log.info("store.available", after_seconds=round(self._back_at - self._lost_at, 1))


class Pulse:
    """When the steps of one loop began and ended. The loop writes it; any thread may read it at any time.

    Attributes:
        is_running: Whether the loop runs.
        step_began_at: When the step that is under way began, in seconds of the monotonic clock; None between steps.
        step_ended_at: When the last step ended, or the loop began.
        waits_for_database: Whether the last step failed because the database cannot be reached.
        is_outside: Whether the step waits for a service outside that may hang. It does not count as a step then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_running = False
        self.step_began_at: float | None = None
        self.step_ended_at = clock.monotonic()
        self.waits_for_database = False
        self.is_outside = False
        self._n_outside = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        self.is_running = True
        self.step_ended_at = self._clock.monotonic()
        try:
            yield
        finally:
            self.is_running = False

    @contextmanager
    def step(self) -> Iterator[None]:
        self.step_began_at = self._clock.monotonic()
        try:
            yield
        finally:
            self.step_ended_at = self._clock.monotonic()
            self.step_began_at = None

    @contextmanager
    def outside(self) -> Iterator[None]:
        """In the block, the step waits for a service outside that may hang. Blocks may overlap."""
        if self._n_outside == 0:
            self.is_outside, self.step_began_at = True, None
        self._n_outside += 1
        try:
            yield
        finally:
            self._n_outside -= 1
            if self._n_outside == 0:
                self.is_outside = False
                self.step_began_at = self._clock.monotonic()


class Steps:
    """Wakes callers that wait for a state to which the steps of several services lead."""

    def __init__(self) -> None:
        self._next = anyio.Event()
        self._is_awaited = False

    def next(self) -> anyio.Event:
        """Return an event that is set when the next step of any of the services has ended."""
        self._is_awaited = True
        return self._next

    async def until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            await self.next().wait()

    def note_end(self) -> None:
        if self._is_awaited:
            ended, self._next, self._is_awaited = self._next, anyio.Event(), False
            ended.set()


class Service(ABC):
    """One cooperating task. Subclasses write `tick`, and call `wake` when there is something to do.

    `interval` is the longest time between two ticks, None for a service that only events wake. A tick may set
    `due_at` to be woken at an instant. A service waits for a lost database; any other failure ends the scheduler.

    All services of a scheduler share `availability`, `metrics` and `steps`.
    """

    name: str
    interval: timedelta | None = None
    longest_backoff = LONGEST_BACKOFF
    """The longest time between two attempts while the database is away, before jitter, which at most doubles it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.availability = Availability(clock)
        self.pulse = Pulse(clock)
        self.metrics: Metrics = NoMetrics()
        self.steps = Steps()
        self.due_at: datetime | None = None
        self._wakeup = anyio.Event()

    def wake(self) -> None:
        """Ask for a tick as soon as possible. Never blocks; many calls may make one tick."""
        self._wakeup.set()

    @property
    def is_at_rest(self) -> bool:
        """Whether no step is under way, and none was asked for."""
        return self.pulse.step_began_at is None and not self._wakeup.is_set()

    @abstractmethod
    async def tick(self, now: datetime) -> None:
        """Do one bounded pass."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tick until cancelled."""
        task_status.started()
        with self.pulse.running():
            await self._go_round()

    async def _go_round(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            self._wakeup = anyio.Event()
            try:
                with self.pulse.step():
                    await self.tick(self.clock.now())
            except StoreUnavailable as exc:
                self.pulse.waits_for_database = True
                self.availability.lost(self.name, exc)
                await self.clock.sleep(backoff + jitter(backoff))
                backoff = min(backoff * 2, self.longest_backoff)
                continue
            self.pulse.waits_for_database = False
            self.availability.found(self.name)
            backoff = FIRST_BACKOFF
            self.steps.note_end()
            await self.clock.wait(self._wakeup, self._longest_wait())

    def _longest_wait(self) -> timedelta | None:
        waits = [] if self.interval is None else [self.interval]
        if self.due_at is not None:
            waits.append(self.due_at - self.clock.now())
        return min(waits, default=None)
