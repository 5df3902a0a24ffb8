"""An event loop whose time stands still while anything runs, and leaps to the next timer when nothing does.

Callbacks run in the order in which they became ready, as on any asyncio loop, so a program that uses no threads and
no sockets runs the same way every time. Work that was given to a thread is waited for before time moves on.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

from asynsched.clock import VirtualClock
from asynsched.errors import SimulationStalled

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
TIMER_RESOLUTION = 1e-6
"""Seconds. Timers closer than a microsecond are one: a float of many virtual years holds no finer steps."""


class _LeapingSelector(selectors.DefaultSelector):
    """Never waits for a timer: moves the clock there instead."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self.in_flight = 0
        self.workers: anyio.CapacityLimiter | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.in_flight or (self.workers is not None and self.workers.borrowed_tokens):
            return super().select(timeout if timeout == 0 else None)
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise SimulationStalled
        self._clock.leap(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop that takes its time from a VirtualClock, and moves it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._leaping = _LeapingSelector(clock)
        self._virtual_clock = clock
        super().__init__(self._leaping)
        self._clock_resolution = TIMER_RESOLUTION

    def time(self) -> float:
        """Return the seconds of the virtual clock."""
        return self._virtual_clock.monotonic()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; time stands still until it has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._leaping.in_flight += 1
        future.add_done_callback(self._landed)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """End the threads of `run_in_executor`; a thread waits for them, so time stands still."""
        self._leaping.in_flight += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._leaping.in_flight -= 1

    def watch_workers(self, limiter: anyio.CapacityLimiter) -> None:
        """Let time stand still while a worker thread of anyio holds a token of this limiter."""
        self._leaping.workers = limiter

    def _landed(self, _: "asyncio.Future[Any]") -> None:
        self._leaping.in_flight -= 1


def run_virtual(main: Callable[[], Awaitable[T]], clock: VirtualClock) -> T:
    """Run a coroutine function to its end in virtual time, on a loop of its own.

    Raises:
        SimulationStalled: Nothing is ready and no timer is set, so nothing could ever happen again.
    """
    loop = VirtualLoop(clock)

    async def started() -> T:
        loop.watch_workers(anyio.to_thread.current_default_thread_limiter())
        return await main()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(started())
