"""The scheduler: assembles everything, serves, stops. What the parts do is in their own modules."""

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from difflib import get_close_matches
from inspect import signature
from typing import Never

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus
from msgspec.structs import replace

from asynsched._version import __version__
from asynsched.assembly.assemble import assemble
from asynsched.assembly.foundation import Foundation
from asynsched.assembly.services import Services
from asynsched.channels import Channels
from asynsched.clock import Clock, SystemClock, new_token
from asynsched.embedding import Embedding
from asynsched.errors import LeaseLost, StoreUnavailable
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.registry import executor_factory
from asynsched.fernet_keys import keys_of, load_library
from asynsched.gauges import name_gauges
from asynsched.home import hold_home, prepare_home, remember_dags_folder
from asynsched.housekeeping.monitor_server import MonitorServer
from asynsched.housekeeping.outlasting import Promise, takeover_seconds
from asynsched.housekeeping.peer_watch import enter, leave
from asynsched.metrics.base import Metrics
from asynsched.metrics.making import make_metrics
from asynsched.parsing.watching.watcher import check_folder
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.serving_state import ServingState
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.async_database import open_database
from asynsched.store.schedulers.schedulers import set_room
from asynsched.store.secrets.encryption import check_key

log = structlog.get_logger(__name__)

CLEANUP_SECONDS = 10.0
"""Longest that each step of leaving may take, beside the time that tries have to end themselves."""
LEAVE_PAUSE = timedelta(seconds=1)
SETTLE_SECONDS = 5.0
"""Longest that a stopping scheduler takes to store what the drained tries reported."""
HURRIED_SETTLE_SECONDS = 2.0
"""The same for one that was told to hurry."""


class Scheduler(Embedding):
    """A scheduler of DAG runs, in the event loop that it is served from.

    Args:
        dags: Folder of DAG files; by default that of the settings.
        database: URL, or an open Database; by default SQLite in the home.
        executor: `local`, `sequential`, `package.module:Class`, or a function that makes one of an ExecutorContext.
        home: Folder of the scheduler's own state; by default that of the settings.
        parallelism: Tasks that may run at once; by default that of the settings.
        parse_processes: Parses that may run at once; by default that of the settings.
        settings: Everything else. The arguments above override what they have.
        clock: Where time comes from.
        metrics: What takes its figures, e.g. `PrometheusMetrics(registry)`; by default what the settings say.

    Raises:
        SettingsError: A value is wrong. The message names the setting.
        TypeError: There is no such argument. The message names the nearest one, or how to pass a setting.

    Usage:
        async with anyio.create_task_group() as tasks:
            scheduler = Scheduler(dags="dags")
            await tasks.start(scheduler.serve)
            run = await scheduler.run("my_dag")
            scheduler.request_stop()
    """

    def __init__(
        self,
        *,
        dags: str | os.PathLike[str] | None = None,
        database: str | Database | None = None,
        executor: str | Callable[[ExecutorContext], Executor] | None = None,
        home: str | os.PathLike[str] | None = None,
        parallelism: int | None = None,
        parse_processes: int | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise TypeError(_no_such_argument(next(iter(unknown))))
        if not isinstance(settings, Settings | None):
            raise TypeError(
                f"settings must be a Settings, as in settings=Settings(parallelism=8), not {settings!r:.100}"
            )
        settings = settings or Settings()
        changes = {
            "dags_folder": None if dags is None else os.fspath(dags),
            "database": database if isinstance(database, str) else None,
            "executor": executor if isinstance(executor, str) else None,
            "home": None if home is None else os.fspath(home),
            "parallelism": parallelism,
            "parse": None if parse_processes is None else replace(settings.parse, processes=parse_processes),
        }
        self.settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})
        self.clock = clock or SystemClock()
        self.channels = Channels()
        self.scheduler_id = f"{socket.gethostname()}:{os.getpid()}:{new_token()[:8]}"[-64:]
        self._given_database = database if isinstance(database, Database) else None
        self._given_executor = executor if callable(executor) else None
        self._given_metrics = metrics
        self._services: Services | None = None
        self.stopping = anyio.Event()
        self._is_hurried = anyio.Event()
        self._state = ServingState()
        self.started = self._state.started
        self._have_tries_ended = False
        self._waiters = RunWaiters(channels=self.channels, clock=self.clock)

    # Serving

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `request_stop` is called, or this is cancelled. Ready once `task_status.started` was called.

        A requested stop lets running tasks go on for `shutdown_grace`, then hands them back as interrupted; a
        cancellation ends them at once. Neither leaves a process behind.

        Raises:
            SettingsError: A setting is wrong, e.g. the DAG folder does not exist.
            HomeInUse: Another scheduler serves the home.
            StoreError: The database cannot be used.
            LeaseLost: Another scheduler may have taken the runs.
            ExceptionGroup: A service failed by a bug.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._state.end)
            lease = anyio.CancelScope()
            services = await self._open(stack, lease)
            async with anyio.create_task_group() as consumers:
                for service in services.consumers:
                    await consumers.start(service.run, name=service.name)
                async with anyio.create_task_group() as producers:
                    for service in services.producers:
                        await producers.start(service.run, name=service.name)
                    self.started.set()
                    task_status.started()
                    log.info("scheduler.started", scheduler_id=self.scheduler_id)
                    await self.stopping.wait()
                    services.evaluator.stop_granting()
                    services.callbacks.stop_beginning()
                    services.triggerer.stop()
                    producers.cancel_scope.cancel()
                with lease:
                    await self._drain(services)
                consumers.cancel_scope.cancel()
            if lease.cancel_called:
                raise LeaseLost(self.scheduler_id)
            log.info("scheduler.stopped", scheduler_id=self.scheduler_id)

    def request_stop(self) -> None:
        """Ask a serving scheduler to stop gently. Returns at once."""
        self.stopping.set()

    def hurry(self) -> None:
        """Kill at once the tries that a stop or a cancellation ends. Returns at once.

        A stop that is under way waits for them no more: they are handed back as interrupted, if the database takes that
        within two seconds.
        """
        self._is_hurried.set()
        if self._services is not None:
            self._services.executor.hurry()

    async def _open(self, stack: AsyncExitStack, lease: anyio.CancelScope) -> Services:
        """Return the services, which know what was going on. Once the lease is lost, `lease` is cancelled."""

        def lose_lease() -> None:
            lease.cancel()
            self.stopping.set()

        await self._take_home(stack)
        database = await self._open_database(stack)
        stack.callback(self._state.end)
        now = self.clock.now()
        epoch, entry = await self._enter(database, now)
        stack.push_async_callback(self._leave, database)
        base = self._foundation(database, epoch, entry)
        make_executor = self._given_executor or executor_factory(self.settings.executor)
        services = assemble(base, make_executor=make_executor, waiters=self._waiters, on_lease_lost=lose_lease)
        await self._be_watched(stack, services, base.metrics)
        await stack.enter_async_context(services.parser)
        if services.claim.lease is not None:
            stack.push_async_callback(services.claim.lease.stop)
            services.claim.lease.start()
        stack.push_async_callback(self._end_tries, services)
        async with services.claim.renewed():
            await self._recover(services, base, now)
        self._services = services
        self._state.serve_from(database)
        return services

    async def _take_home(self, stack: AsyncExitStack) -> None:
        home = self.settings.home_path
        await anyio.to_thread.run_sync(check_folder, self.settings.dags_path, home)
        prepare_home(home)
        stack.enter_context(hold_home(home))
        remember_dags_folder(home, self.settings.dags_path)

    async def _enter(self, database: Database, now: datetime) -> tuple[int, Promise]:
        """Register in the database. Returns the lease epoch, and how long nobody else takes what this scheduler has."""
        lease, boottime = self.settings.lease, self.clock.boottime()
        epoch, seconds = await database.write(
            enter,
            scheduler_id=self.scheduler_id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            home=str(self.settings.home_path),
            version=__version__,
            now=now,
            lease_until=now + timedelta(seconds=lease.duration),
            takeover_seconds=takeover_seconds(lease, is_alone=False),
            is_alone=not database.is_shared,
        )
        return epoch, Promise(boottime, seconds)

    def _foundation(self, database: Database, epoch: int, entry: Promise) -> Foundation:
        return Foundation(
            settings=self.settings,
            channels=self.channels,
            clock=self.clock,
            database=database,
            database_url=None if self._given_database else self.settings.database_url,
            scheduler_id=self.scheduler_id,
            lease_epoch=epoch,
            entry=entry,
            metrics=self._given_metrics or make_metrics(self.settings.monitor),
        )

    async def _recover(self, services: Services, base: Foundation, now: datetime) -> None:
        """Start the executor, and take up what earlier schedulers have left of runs, callbacks and triggers."""
        executor = services.executor
        held = await executor.start(base.lease_epoch)
        await services.evaluator.recover(held, now)
        await services.callbacks.recover(held)
        services.triggerer.recover(held, now)
        # Last, for it has room only when it serves: by that, one that starts is told from one that stops.
        await base.database.write(set_room, self.scheduler_id, executor.parallelism, executor.capacities)

    async def _be_watched(self, stack: AsyncExitStack, services: Services, metrics: Metrics) -> None:
        """Serve health and figures to those outside, if the settings say where."""
        name_gauges(metrics, services)
        listen = self.settings.monitor.listen
        if listen is not None:
            health = services.vitals.health
            server = await anyio.to_thread.run_sync(MonitorServer, listen, health, metrics)
            stack.push_async_callback(anyio.to_thread.run_sync, server.close)
            log.info("monitor.listening", address=server.address)

    async def _open_database(self, stack: AsyncExitStack) -> Database:
        if self._given_database is not None:
            return self._given_database
        database = await open_database(
            self.settings.database_url,
            synchronous=self.settings.sqlite_synchronous,
            default_pool_slots=self.settings.default_pool_slots,
            keys=keys_of(self.settings),
        )
        stack.push_async_callback(database.close)
        if await database.read(check_key) is not None:
            await anyio.to_thread.run_sync(load_library)
        return database

    async def _drain(self, services: Services) -> None:
        """Let running tasks end, for a while; store how the rest was interrupted, and have the executor forget it."""
        grace = timedelta(seconds=self.settings.shutdown_grace)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._cut_short, waiting.cancel_scope)
            await services.executor.drain(self.clock.now() + grace)
            waiting.cancel_scope.cancel()
        settle_seconds = SETTLE_SECONDS
        if self._is_hurried.is_set():
            await services.executor.drain(self.clock.now())
            settle_seconds = HURRIED_SETTLE_SECONDS
        deadline = self.clock.now() + timedelta(seconds=settle_seconds)
        while not services.are_settled and self.clock.now() < deadline:
            await self.clock.sleep(timedelta(milliseconds=10))

    async def _cut_short(self, waiting: anyio.CancelScope) -> None:
        await self._is_hurried.wait()
        waiting.cancel()

    async def _end_tries(self, services: Services) -> None:
        executor = services.executor
        # First to drain, then to close: an executor may give its tries their time in each.
        with anyio.move_on_after(2 * (CLEANUP_SECONDS + self.settings.lease.kill_time), shield=True):
            # The services that say that the loop is alive, or renew the lease on it, have ended.
            async with services.claim.renewed():
                if self._services is not None:
                    # Not after a start that failed: tries that have outlived a crash wait for the next start.
                    await executor.drain(self.clock.now())
                await executor.close()
            self._have_tries_ended = self._services is not None and not executor.has_left_tries

    async def _leave(self, database: Database) -> None:
        """Give up the lease, unless tries may still run, which nobody else may start then.

        Where the database is away for long, the lease lapses by itself.
        """
        if not self._have_tries_ended:
            if self._services is not None:
                log.warning("lease.kept", reason="tries may be left that could not be ended")
            return None
        with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
            while True:
                try:
                    return await database.write(leave, self.scheduler_id, self.clock.now())
                except StoreUnavailable as exc:
                    log.warning("lease.not_given_up", error=str(exc))
                    await self.clock.sleep(LEAVE_PAUSE)


def _no_such_argument(name: str) -> str:
    """Say how an argument that Scheduler does not have is given."""
    arguments = [argument for argument in signature(Scheduler).parameters if argument != "unknown"]
    settings = [setting for setting in Settings.__struct_fields__ if setting not in arguments]
    problem = f"Scheduler has no argument {name!r}."
    for near in get_close_matches(name, [*arguments, *settings], n=1):
        if near in settings:
            return f"{problem} Give the setting as `settings=Settings({near}=…)`."
        return f"{problem} Did you mean {near!r}?"
    return f"{problem} It has {', '.join(arguments)}; everything else is in `settings=Settings(…)`."
