"""A whole scheduler that lives in virtual time: the production services, a database in memory, a scripted executor.

No process, thread or socket takes part: the result depends on the DAGs, the script and the start alone.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent import futures
from datetime import datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import msgspec

from asynsched.assembly import Foundation, Services, assemble
from asynsched.channels import Channels
from asynsched.clock import VirtualClock
from asynsched.errors import SimulationStalled
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.home import prepare_home
from asynsched.lease.expiry import Lease
from asynsched.metrics.base import Metrics, NoMetrics
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.serialization.schema import ParseReport
from asynsched.settings import LeaseSettings, Settings
from asynsched.simulation.folder import NO_STAMP, Ask, Planner
from asynsched.simulation.script import Script, ScriptedExecutor
from asynsched.store.dags.parse_results import DagDefaults, store_report
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_inline
from asynsched.store.schedulers import register_scheduler

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
TIMER_RESOLUTION = 1e-6
"""Seconds. Timers within a microsecond are one: a float of many virtual years has no finer steps."""


class _LeapingSelector(selectors.DefaultSelector):
    """Moves the clock to the next timer instead of waiting for it."""

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
    """An asyncio event loop whose time is that of a VirtualClock, which it moves."""

    def __init__(self, clock: VirtualClock) -> None:
        self._leaping = _LeapingSelector(clock)
        self._virtual_clock = clock
        super().__init__(self._leaping)
        self._clock_resolution = TIMER_RESOLUTION

    def time(self) -> float:
        """Return the seconds of the virtual clock."""
        return self._virtual_clock.monotonic()

    def run_in_executor(
        self, executor: futures.Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; the clock stops until it returns."""
        future = super().run_in_executor(executor, func, *args)
        self._leaping.in_flight += 1
        future.add_done_callback(self._landed)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """End the threads of `run_in_executor`; another thread waits for them, so the clock stops."""
        self._leaping.in_flight += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._leaping.in_flight -= 1

    def watch_workers(self, limiter: anyio.CapacityLimiter) -> None:
        """Stop time while a worker thread of anyio holds a token of this limiter."""
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


LEASE = timedelta(days=1000)
"""No other scheduler contends for it."""
NAME = "simulated"
N_LOOKS = 100
MOMENT = timedelta(milliseconds=1)
"""Time to store the last changes."""


class Simulation:
    """A scheduler of the DAGs of some parse reports, from `start` on.

    After `run_for`, its database and its executor show the results.

    Args:
        settings: The scheduler's settings; only the sources of versions are stored in its home.

    Attributes:
        ask: Asks authors' own timetables for more runs; None: they are not asked.
        metrics: Receives the figures; None: they are dropped.
        database: The database as the services see it; a test may wrap it.
        when_started: Called when the services run.
        act: A coroutine function that runs beside them, given the channels, and acts as users do.
        goes_on: Asked N_LOOKS times within a span, which ends once it says no; None: it is not asked.
    """

    def __init__(self, settings: Settings, reports: Iterable[ParseReport], script: Script, start: datetime) -> None:
        lease = LeaseSettings(duration=LEASE.total_seconds(), renew_interval=LEASE.total_seconds() / 2)
        self.settings = msgspec.structs.replace(settings, lease=lease)
        self.reports = tuple(reports)
        self.script = script
        self.clock = VirtualClock(start)
        self.inline = open_inline(default_pool_slots=settings.default_pool_slots)
        self.database: Database = self.inline
        self.ask: Ask | None = None
        self.gathers_starts = False
        self.metrics: Metrics | None = None
        self.executor: ScriptedExecutor | None = None
        self.when_started: Callable[[], None] = lambda: None
        self.act: Callable[[Channels], Coroutine[Any, Any, None]] | None = None
        self.goes_on: Callable[[], bool] | None = None

    def run_for(self, span: timedelta) -> None:
        """Serve for a span of virtual time."""
        run_virtual(lambda: self._serve(span), self.clock)

    async def prepare(self) -> None:
        """Store the DAGs, before the scheduler starts."""
        now, defaults = self.clock.now(), self._defaults
        for report in self.reports:
            await self.database.write(store_report, report, NO_STAMP, now=now, defaults=defaults)

    async def _serve(self, span: timedelta) -> None:
        prepare_home(self.settings.home_path)
        await self.prepare()
        now = self.clock.now()
        epoch = await self.database.write(
            register_scheduler, scheduler_id=NAME, hostname=NAME, pid=1, home="", version="0", now=now,
            lease_until=now + LEASE, takeover_seconds=LEASE.total_seconds(),
        )  # fmt: skip
        base = Foundation(
            settings=self.settings,
            channels=Channels(),
            clock=self.clock,
            database=self.database,
            database_url=None,
            lease=Lease(NAME, epoch, self.settings.lease),
            metrics=self.metrics or NoMetrics(),
            in_threads=False,
        )
        run_waiters = RunWaiters(channels=base.channels, clock=self.clock)
        services = assemble(
            base, make_executor=self._make_executor, run_waiters=run_waiters, on_lease_lost=lambda: None
        )
        await self._live(services, base.channels, span)

    async def _live(self, services: Services, channels: Channels, span: timedelta) -> None:
        """Run the services for a span of time, then store what they have decided."""
        await services.evaluator.recover(await services.executor.start(1), self.clock.now())
        async with anyio.create_task_group() as group:
            # No service watches files or other processes: nothing outside changes.
            for service in (*services.consumers, services.creator):
                await group.start(service.run)
            if self.ask is not None:
                await group.start(Planner(channels, self.database, self.clock, self.ask, self._defaults).run)
            self.when_started()
            if self.act is not None:
                group.start_soon(self.act, channels)
            await self._sleep(span)
            if self.executor is not None:
                self.executor.tell_starts()
            services.evaluator.stop_granting()
            await self.clock.sleep(MOMENT)
            group.cancel_scope.cancel()

    async def _sleep(self, span: timedelta) -> None:
        if self.goes_on is None:
            await self.clock.sleep(span)
            return
        end = self.clock.now() + span
        while self.goes_on() and self.clock.now() < end:
            await self.clock.sleep(min(span / N_LOOKS, end - self.clock.now()))

    @property
    def _defaults(self) -> DagDefaults:
        return DagDefaults(self.settings.max_active_runs_per_dag, self.settings.dags_are_paused_at_creation)

    def _make_executor(self, context: ExecutorContext) -> Executor:
        self.executor = ScriptedExecutor(context, self.script, gathers_starts=self.gathers_starts)
        return self.executor
