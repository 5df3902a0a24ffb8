"""The scheduler: assembles everything, serves, stops. What the parts do is in their own modules."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Never

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus
from msgspec.structs import replace

from asynsched._version import __version__
from asynsched.assembly import Foundation, Services, assemble, name_gauges
from asynsched.channels import AssetsUpdated, Channels, RunCancelled, RunCreated, RunEdited
from asynsched.clock import Clock, SystemClock, new_token
from asynsched.errors import AsynschedError, LeaseLost, NotFound, NotServing, Standstill, StoreError, StoreUnavailable
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.registry import executor_factory
from asynsched.explaining.runs import explain_standstill
from asynsched.fernet_keys import keys_of, load_library
from asynsched.health import Health
from asynsched.home import hold_home, prepare_home, remember_dags_folder
from asynsched.housekeeping.monitor_server import MonitorServer
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.lease.peers import enter, leave
from asynsched.lease.promise import Promise, takeover_seconds
from asynsched.metrics.base import Metrics, make_metrics
from asynsched.parsing.watching.watcher import check_folder
from asynsched.results import FinishedRun, Running, RunningTry, read_finished_run
from asynsched.scheduling.creation.asset_updates import update_by_program
from asynsched.scheduling.requests.run_requests import submit_by_program
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.requests import (
    CancelRun,
    ClearTasks,
    MarkedRunState,
    MarkedTaskState,
    MarkRun,
    MarkTasks,
    RunRequest,
)
from asynsched.store.schedulers import list_schedulers, set_room
from asynsched.store.secrets.encryption import check_key

if TYPE_CHECKING:
    from asynsched.authoring.assets import Asset


NOT_YET = "The scheduler is not serving: start `serve()` first, and wait until it is ready."
NO_MORE = "The scheduler has stopped: make a new one, and serve that."


class ServingState:
    """What those in this program who use a scheduler ask, and wait for.

    Attributes:
        started: Set once it is ready.
        stopped: Set once it serves no more, also when it could not start.
    """

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.stopped = anyio.Event()
        self._database: Database | None = None

    def serve_from(self, database: Database) -> None:
        """Let the database be used."""
        self._database = database

    def end(self) -> None:
        """Serve no more: whoever waits is told."""
        self._database = None
        self.stopped.set()

    @property
    def database(self) -> Database:
        """The open database. Raises NotServing."""
        if self._database is None:
            raise NotServing(NO_MORE if self.stopped.is_set() else NOT_YET)
        return self._database

    async def unless_stopped(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait for something that only a serving scheduler does.

        Raises:
            NotServing: The scheduler has stopped before.
            Exception: What `wait` raises.
        """
        if self.stopped.is_set():
            raise NotServing(NO_MORE)
        failure: Exception | None = NotServing(NO_MORE)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._cancel_once_stopped, waiting.cancel_scope)
            try:
                await wait()
                failure = None
            except Exception as exc:  # noqa: BLE001 - it is raised below, where no group wraps it
                failure = exc
            waiting.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_once_stopped(self, scope: anyio.CancelScope) -> None:
        await self.stopped.wait()
        scope.cancel()


STORE_SECONDS = 5.0
"""Longest that a cancelled caller of `run` waits until the cancellation of its run is stored."""


class Embedding:
    """The part of Scheduler that other code of its process calls while it serves.

    Attributes:
        started: Set once it serves.
        stopping: Set once it is asked to stop.
    """

    settings: Settings
    scheduler_id: str
    clock: Clock
    channels: Channels
    started: anyio.Event
    stopping: anyio.Event
    _services: Services | None
    _state: ServingState
    _waiters: RunWaiters

    async def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        has_logical_date: bool = True,
    ) -> DagRunKey:
        """Create a run of a DAG, to be started at once, and return what identifies it.

        While the DAG folder is read for the first time, this waits for a DAG that is not known yet. The logical date is
        the present moment, unless it is given or there is to be none.

        Raises:
            NotFound: There is no such DAG.
            DagError: The conf does not fit the DAG's params.
            AlreadyExists: There is a run with this run_id or logical date.
            NotServing: The scheduler does not serve yet, or no more.
        """
        await self._wait_for_dag(dag_id)
        assert self._services is not None
        key = await self._services.manual_runs.create(
            dag_id, actor="program", conf=conf, run_id=run_id, logical_date=logical_date,
            has_logical_date=has_logical_date,
        )  # fmt: skip
        await self.channels.active_runs.put(RunCreated(key))
        return key

    async def run(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None
    ) -> FinishedRun:
        """Create a run of a DAG, wait until it has ended, and return it. When this is cancelled, so is the run.

        The cancellation of the run is stored before this ends, so that a crash which follows does not undo it; while
        the database is away, the scheduler stores it later.

        Raises what `trigger` raises, and NotServing when the scheduler stops before the run has ended.
        """
        await self._wait_for_dag(dag_id)
        key = DagRunKey(dag_id, run_id or f"manual__{self.clock.now().isoformat()}")
        with self._waiters.waiting_for(key) as ended:
            # A run that was asked for is created, or not: a cancellation waits until it is known which.
            created = asyncio.ensure_future(self.trigger(dag_id, conf, run_id=key.run_id))
            try:
                await asyncio.shield(created)
                await self._state.unless_stopped(ended.wait)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([created])
                    if not created.cancelled() and created.exception() is None:
                        await self._cancel_for_caller(key)
                raise
        return await read_finished_run(self._state.database, key)

    async def _cancel_for_caller(self, run: DagRunKey) -> None:
        """End a run that nobody waits for any more. Where that cannot be stored soon, the evaluator goes on trying."""
        is_settled = False
        try:
            with anyio.move_on_after(STORE_SECONDS):
                await self.cancel_run(run)
                is_settled = True
        except StoreError as exc:  # the database is away, or somebody has changed the run at the same moment
            is_settled = isinstance(exc, NotFound)
        except AsynschedError as exc:  # it has ended meanwhile, or the scheduler has stopped
            log.info("run.not_cancelled", dag_id=run.dag_id, run_id=run.run_id, reason=str(exc))
            is_settled = True
        finally:
            if not is_settled:
                self.channels.active_runs.offer(RunCancelled(run))

    async def asset_changed(self, asset: "str | Asset", extra: Mapping[str, Any] | None = None) -> None:
        """Say that an asset was updated: the DAGs that wait for it may run.

        While the DAG folder is read for the first time, this waits for that.

        Args:
            asset: The asset, or its name or URI if a DAG names it.
            extra: JSON values that describe the update; tasks find them in the event.

        Raises:
            NotFound: No DAG names such an asset.
            DagError: The extra is no JSON.
            NotServing: The scheduler does not serve yet, or no more.
        """
        database = self._state.database
        if self._services is not None:
            await self._state.unless_stopped(self._services.dispatcher.progress.until_read)
        await database.write(update_by_program, asset, extra, now=self.clock.now())
        await self.channels.dag_changes.put(AssetsUpdated())

    async def cancel_run(self, run: DagRunKey) -> None:
        """End a run that is queued or running: its tries are killed, tasks that wait are skipped, the run fails.

        This returns when that is certain to happen, which may be before it has.

        Raises:
            NotFound: There is no such run.
            AsynschedError: It has ended already.
            NotServing: The scheduler does not serve yet, or no more.
        """
        await self._submit(run, CancelRun(), "run.cancel")

    async def clear_tasks(
        self,
        run: DagRunKey,
        task_ids: Iterable[str] = (),
        *,
        upstream: bool = False,
        downstream: bool = False,
        only_failed: bool = False,
        latest: bool = False,
    ) -> list[TaskInstanceKey]:
        """Let tasks of a run run again, or all of them; what runs is killed first. Returns what that concerns.

        Args:
            run: A run in any state; one that has ended starts again.
            task_ids: Which tasks; none are all.
            upstream: Also those upstream of them.
            downstream: Also those downstream of them.
            only_failed: Of all these, only those that have failed, or whose upstream has.
            latest: Move the run to the newest version of its DAG first.

        Raises:
            NotFound: There is no such run or task.
            AsynschedError: The run has no tasks yet.
            NotServing: The scheduler does not serve yet, or no more.
        """
        request = ClearTasks(tuple(task_ids), upstream, downstream, only_failed, latest=latest)
        return await self._submit(run, request, "task.clear")

    async def mark_tasks(
        self, run: DagRunKey, task_ids: Iterable[str], state: MarkedTaskState, *, downstream: bool = False
    ) -> list[TaskInstanceKey]:
        """Say that tasks of a run have ended as `success`, `failed` or `skipped`; what runs is killed.

        Returns what that concerns, and raises what `clear_tasks` raises.
        """
        return await self._submit(run, MarkTasks(tuple(task_ids), state, downstream=downstream), "task.mark")

    async def mark_run(self, run: DagRunKey, state: MarkedRunState) -> None:
        """Say that a run has ended as `success` or `failed`, as `asynsched runs mark` does.

        Raises what `clear_tasks` raises.
        """
        await self._submit(run, MarkRun(state), "run.mark")

    async def _submit(self, run: DagRunKey, request: RunRequest, action: str) -> list[TaskInstanceKey]:
        now = self.clock.now()
        taken = await self._state.database.write(submit_by_program, run, request, action=action, now=now)
        await self.channels.active_runs.put(RunEdited(run))
        return [TaskInstanceKey(*run, row.task_id, row.map_index) for row in taken.instances]

    def running(self) -> Running:
        """Return what was started here and has not ended. Reads memory only. Raises NotServing."""
        services = self._serving_now()
        tries = [
            RunningTry(*task.key, task.try_number, task.started_at)
            for task in services.evaluator.evaluation.tries.values()
        ]
        # What has not begun comes last.
        tries.sort(key=lambda one: (one.started_at is None, one.started_at or self.clock.now()))
        return Running(tuple(tries), services.callbacks.n_running)

    def health(self) -> Health:
        """Return how this scheduler is: the age of every loop, and the oldest step that has not ended.

        Reads memory only. Other threads may call it, also while the event loop stands still.

        Raises:
            NotServing: The scheduler does not serve yet, or no more.
        """
        return self._serving_now().vitals.health()

    def _serving_now(self) -> Services:
        services = self._services
        if services is None or self._state.stopped.is_set():
            raise NotServing(NO_MORE if self._state.stopped.is_set() else NOT_YET)
        return services

    async def _wait_for_dag(self, dag_id: str) -> None:
        database = self._state.database
        progress = self._services.dispatcher.progress if self._services is not None else None
        if progress is not None and not progress.is_complete:
            await self._state.unless_stopped(partial(progress.until_known, database, dag_id))

    async def wait_idle(self) -> None:
        """Wait until every known file is parsed, no run is active and none is due.

        Before `serve` is called, this waits for that, too.

        Raises:
            Standstill: Runs are active, and none of them goes on unless somebody does something: a task waits for the
                success of one that has failed in the run before, or for more slots than its pool has.
            NotServing: The scheduler stopped before, or could not start.
        """
        await self._state.unless_stopped(self._become_idle)

    async def wait_runs(self, n: int) -> None:
        """Wait until that many runs have ended since the start. Raises NotServing when the scheduler stops before."""
        await self._state.unless_stopped(partial(self._waiters.until_ended, n))

    async def _become_idle(self) -> None:
        await self.started.wait()
        while not (self._services is not None and self._services.are_idle):
            if self._services is not None and self._services.are_at_a_standstill:
                await self._settle_standstill()
            await self.clock.sleep(timedelta(milliseconds=50))

    async def _settle_standstill(self) -> None:
        """Raise Standstill, unless another scheduler of the database may let the runs go on."""
        database, now = self._state.database, self.clock.now()
        others = [found for found in await database.read(list_schedulers, now) if found.id != self.scheduler_id]
        reasons = "" if others else await explain_standstill(database, self.settings, now)
        if reasons and self._services is not None and self._services.are_at_a_standstill:
            raise Standstill(reasons)
        await self.clock.sleep(timedelta(seconds=1))


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
