"""The scheduler: composes all parts, serves, stops, and answers the program that embeds it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from msgspec.structs import replace

from asynsched.airflow.installation import digest_of, entry_points_of_packages
from asynsched.assembly import Foundation, Services, assemble, cancelled_by, name_gauges
from asynsched.block import Block
from asynsched.channels import AssetsUpdated, Channels, RunCancelled, RunCreated, RunEdited, TriesReported
from asynsched.clock import Clock, new_token
from asynsched.errors import AsynschedError, HomeGone, LeaseLost, NotFound, NotServing, Standstill, StoreError
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.log_archive import archive_of
from asynsched.executors.log_stores import FolderLogs
from asynsched.executors.registry import executor_factory
from asynsched.explaining.explain import explain_standstill
from asynsched.fernet_keys import check_given_keys
from asynsched.foreground.backends import check_backends
from asynsched.foreground.plugin_process import PluginProcess
from asynsched.health import Health
from asynsched.home import LOGS, hold_home, prepare_home, remember_dags_folder
from asynsched.housekeeping.monitor_server import MonitorServer
from asynsched.keys import AnyRun, DagRunKey, TaskInstanceKey, run_key
from asynsched.lease.held_lease import acquire, release
from asynsched.loggers import get_logger
from asynsched.metrics.base import Metrics, make_metrics
from asynsched.parsing.watching.watcher import check_folder
from asynsched.queries.context import QueryContext
from asynsched.queries.events import EventFeed, EventReader
from asynsched.queries.recent import Recent
from asynsched.results import FinishedRun, Running, RunningTry, read_finished_run
from asynsched.scheduling.creation.triggering import update_by_program
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_by_program
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.settings import Settings, as_argument, nearest_options, option_names
from asynsched.states import DagRunType
from asynsched.store.database import AnnouncingDatabase, Database
from asynsched.store.engines.opening import open_as_set
from asynsched.store.engines.urls import anchored
from asynsched.store.runs.dag_runs import run_id_of
from asynsched.store.runs.requests import (
    CancelRun,
    ClearTasks,
    MarkedRunState,
    MarkedTaskState,
    MarkRun,
    MarkTasks,
    RunRequest,
)
from asynsched.store.schedulers import list_schedulers
from asynsched.timetables.zones import zone_named

if TYPE_CHECKING:
    from asynsched.authoring.assets import Asset
    from asynsched.client.client import LocalClient
    from asynsched.web.access import Access
    from asynsched.web.hosting import WebApp
    from asynsched.web.workers import WorkerDesk

log = get_logger(__name__)

CLEANUP_SECONDS = 10.0
"""Longest that the executor may take to drain and to close, beside the time that tries have to end themselves."""
CANCELLATION_SECONDS = 5.0
"""Longest that a cancelled caller of `run` waits until the cancellation of its run is stored."""
NOT_YET = "The scheduler is not serving: start `serve()` first, and wait until it is ready."
NO_MORE = "The scheduler has stopped: create a new one, and serve that."


class Scheduler:
    """A scheduler of DAG runs, in the event loop that it is served from.

    Args:
        dags: Folder of DAG files; by default that of the settings.
        database: URL, or an open Database; by default SQLite in the home.
        executor: `local`, `sequential`, `package.module:Class`, or a function that makes one of an ExecutorContext.
        home: Folder of the scheduler's own state; by default that of the settings.
        parallelism: Tasks that may run at once; by default that of the settings.
        parse_processes: Parses that may run at once; by default that of the settings.
        settings: Everything else. The arguments above override them.
        clock: Where time comes from.
        metrics: The destination of its figures, e.g. `PrometheusMetrics(registry)`; by default as the settings say.

    Attributes:
        started: Set once it serves.
        stopping: Set once it is asked to stop.

    Raises:
        SettingsError: A value is wrong. The message names the setting.
        TypeError: There is no such argument. The message names the nearest one, or how to pass a setting.

    Usage:
        async with Scheduler(dags="dags") as scheduler:
            run = await scheduler.run("my_dag")
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
        _check_arguments(dags, database, executor, settings, clock)
        settings = settings or Settings()
        changes = {
            "dags_folder": None if dags is None else os.fspath(dags),
            "database": database if isinstance(database, str) else None,
            "executor": executor if isinstance(executor, str) else None,
            "home": None if home is None else os.fspath(home),
            "parallelism": parallelism,
            "parse": None if parse_processes is None else replace(settings.parse, processes=parse_processes),
        }
        settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})
        # The program may change its working folder.
        self.settings = replace(
            settings, home=str(settings.home_path), dags_folder=str(settings.dags_path),
            database=settings.database and anchored(settings.database),
        )  # fmt: skip
        self.clock = clock or Clock()
        self.channels = Channels()
        self.scheduler_id = f"{socket.gethostname()}:{os.getpid()}:{new_token()[:8]}"[-64:]
        self._given_database = database if isinstance(database, Database) else None
        self._given_executor = executor if callable(executor) else None
        self._given_metrics = metrics
        self.started = anyio.Event()
        self.stopping = anyio.Event()
        self._stopped = anyio.Event()
        self._is_hurried = anyio.Event()
        self._has_begun = False
        self._has_home: Callable[[], bool]
        self._is_home_gone = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop in which it serves."""
        self._services: Services | None = None
        self._open: Database | None = None
        self._block: Block
        self._feed: EventFeed | None = None
        self._recent = Recent()
        self._have_tries_ended = False
        self._run_waiters = RunWaiters(channels=self.channels, clock=self.clock)
        self._web_apps: list[WebApp] = []
        self._left: set[asyncio.Future[DagRunKey]] = set()
        """Creations of runs whose callers were cancelled while they waited for them."""

    # Serving

    async def __aenter__(self) -> Self:
        """Serve until the block ends: gently if it is left, at once if an error or a cancellation ends it.

        Raises the errors of `serve`; an error while it serves cancels the block and is raised at its end.
        """
        self._refuse_another_time()
        _loop_of_asyncio()
        block = Block(self)
        await block.begin()
        self._block = block
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._block.end(error)

    def _refuse_another_time(self) -> None:
        if self._has_begun:
            raise NotServing("A scheduler serves once, and this one has begun before: make another one.")

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `request_stop` is called, or this is cancelled. Ready once `task_status.started` was called.

        A requested stop lets running tasks go on for `shutdown_grace`, then hands them back as interrupted; a
        cancellation ends them at once, and another one kills them. None of these leaves a process behind.

        Raises:
            SettingsError: A setting is wrong, e.g. the DAG folder does not exist.
            HomeInUse: Another scheduler serves the home.
            StoreError: The database cannot be used.
            HomeGone: The home was removed or replaced while it served.
            LeaseLost: Another scheduler may have taken the runs.
            NotServing: This scheduler serves already, or has served: it serves once.
            ExceptionGroup: A service failed by a bug.
        """
        self._refuse_another_time()
        self._loop = _loop_of_asyncio()
        self._has_begun = True
        async with _closed_though_cancelled(self.hurry) as stack:
            stack.callback(self._end)  # also if the start fails
            lease_scope = anyio.CancelScope()
            services = await self._start(stack, lease_scope)
            plugins = PluginProcess(self.settings, self.scheduler_id, self.clock.now())
            async with anyio.create_task_group() as consumers:
                for service in services.consumers:
                    await consumers.start(service.run, name=service.name)
                consumers.start_soon(plugins.run, self.stopping, self._is_hurried)
                consumers.start_soon(self._end_once_home_is_gone, lease_scope)
                async with anyio.create_task_group() as producers:
                    for service in services.producers:
                        await producers.start(service.run, name=service.name)
                    self.started.set()
                    task_status.started()
                    log.info("scheduler.started", scheduler_id=self.scheduler_id)
                    await self.stopping.wait()
                    services.stop_beginning()
                    producers.cancel_scope.cancel()
                with lease_scope:
                    await services.drain(timedelta(seconds=self.settings.shutdown_grace), self._is_hurried)
                    await plugins.ended.wait()
                consumers.cancel_scope.cancel()
            if lease_scope.cancel_called:
                raise HomeGone(self.settings.home) if self._is_home_gone else LeaseLost(self.scheduler_id)
            log.info("scheduler.stopped", scheduler_id=self.scheduler_id)

    def request_stop(self) -> None:
        """Ask a serving scheduler to stop gently. Returns immediately."""
        self.stopping.set()

    def hurry(self) -> None:
        """Kill immediately the tries that a stop or a cancellation ends. Returns immediately.

        A stop that is under way no longer waits for them: they are handed back as interrupted, if the database takes
        that within a few seconds.
        """
        self._is_hurried.set()
        if self._services is not None:
            self._services.executor.hurry()

    async def _start(self, stack: AsyncExitStack, lease_scope: anyio.CancelScope) -> Services:
        """Open everything, and return the services, with the state of the runs in progress.

        `stack` closes everything that was opened; `lease_scope` is cancelled once the lease is lost.
        """

        def lose_lease() -> None:
            lease_scope.cancel()
            self.stopping.set()

        archive = await anyio.to_thread.run_sync(archive_of, self.settings.log)  # raises for a wrong setting
        await anyio.to_thread.run_sync(check_given_keys, self.settings)
        await self._take_home(stack)
        await anyio.to_thread.run_sync(check_backends, self.settings)
        database = await self._open_database(stack)
        stack.push_async_callback(self._close_web_apps)
        stack.callback(self._end)  # before the database is closed, which callers and workers use
        lease = await acquire(database, self.settings, self.clock, self.scheduler_id)
        stack.push_async_callback(self._release_lease, database)
        feed = EventFeed(
            database, self.channels, self.clock, name=self.scheduler_id, has_others=lambda: self._has_peers,
            sweep_interval=timedelta(seconds=self.settings.sweep_interval),
        )  # fmt: skip
        base = Foundation(
            settings=self.settings,
            channels=self.channels,
            clock=self.clock,
            database=AnnouncingDatabase(database, feed.note_write),
            database_url=None if self._given_database else self.settings.database_url,
            lease=lease,
            metrics=self._given_metrics or make_metrics(self.settings.monitor),
            archive=archive,
            installation=await anyio.to_thread.run_sync(digest_of, self.settings.installation_folders),
        )
        await anyio.to_thread.run_sync(entry_points_of_packages)  # the parser needs them
        make_executor = self._given_executor or executor_factory(self.settings.executor)
        services = assemble(
            base, make_executor=make_executor, run_waiters=self._run_waiters, on_lease_lost=lose_lease, feed=feed
        )
        name_gauges(base.metrics, services)
        await self._serve_monitor(stack, services, base.metrics)
        await stack.enter_async_context(services.parser)
        await stack.enter_async_context(services.held_lease.thread_running())
        stack.push_async_callback(self._end_tries, services)
        async with services.held_lease.renewed():
            await services.recover(database, lease.epoch)
        self._services, self._open, self._feed = services, base.database, feed
        return services

    async def _take_home(self, stack: AsyncExitStack) -> None:
        home = self.settings.home_path
        await anyio.to_thread.run_sync(check_folder, self.settings.dags_path, home)
        prepare_home(home)
        self._has_home = stack.enter_context(hold_home(home))
        remember_dags_folder(home, self.settings.dags_path)

    async def _end_once_home_is_gone(self, scope: anyio.CancelScope) -> None:
        """End as without the lease: another scheduler may serve what is at the home's path, and finds none of ours."""
        while await anyio.to_thread.run_sync(self._has_home, abandon_on_cancel=True):
            await self.clock.sleep(timedelta(seconds=self.settings.lease.renew_interval))
        self._is_home_gone = True
        scope.cancel()
        self.stopping.set()

    async def _open_database(self, stack: AsyncExitStack) -> Database:
        if self._given_database is not None:
            return self._given_database
        database = await open_as_set(self.settings)
        stack.push_async_callback(database.close)
        return database

    async def _serve_monitor(self, stack: AsyncExitStack, services: Services, metrics: Metrics) -> None:
        """Serve health and metrics over HTTP, if the settings name an address."""
        if (listen := self.settings.monitor.listen) is not None:
            server = MonitorServer(listen, services.vitals.health, metrics)
            stack.push_async_callback(_in_thread_though_cancelled, server.close)
            await anyio.to_thread.run_sync(server.start)
            log.info("monitor.listening", address=server.address)

    def web(self, access: "Access | None" = None, *, checks_host: bool = False) -> "WebApp":
        """Return the page and the REST APIs as an ASGI application, for a program that serves or mounts them.

        It answers 503 while the scheduler does not serve, and may be mounted below any path:
        `app.mount("/asynsched", scheduler.web())`.

        Args:
            access: Tells who asks; by default the users, sessions and tokens of the database.
            checks_host: Whether it refuses requests that address it by a name that the settings do not know, which is
                otherwise left to the program.
        """
        from asynsched.web.hosting import WebApp  # programs without the page need not load it

        app = WebApp(
            self.settings, self.clock, is_ready=lambda: self._open is not None, database=self._given_database,
            access=access, checks_host=checks_host, find_feed=self._find_feed, find_desk=self._find_desk,
        )  # fmt: skip
        self._web_apps.append(app)
        return app

    async def _find_feed(self, _: Database) -> EventFeed:
        self._serving_now()
        assert self._feed is not None
        return self._feed

    def _find_desk(self) -> "WorkerDesk":
        from asynsched.web.workers import WorkerDesk

        services = self._serving_now()
        logs = FolderLogs(self.settings.home_path / LOGS)
        return WorkerDesk(
            self.scheduler_id, services.executor_client.answerer, logs,
            tell=lambda events: self.channels.ready.put_nowait(TriesReported(events)),
            launch_of=services.executor_client.launch_of, database=self._database, warm=services.warm,
        )  # fmt: skip

    async def _close_web_apps(self) -> None:
        for app in self._web_apps:
            await app.aclose()

    async def _end_tries(self, services: Services) -> None:
        executor, has_started = services.executor, self._services is not None
        # First to drain, then to close: an executor may give its tries their time in each.
        with anyio.move_on_after(2 * (CLEANUP_SECONDS + self.settings.lease.kill_time), shield=True):
            # The services that renew the lease, or say that the loop is alive, have ended.
            async with services.held_lease.renewed():
                if has_started:
                    # Not after a start that failed: tries that have outlived a crash wait for the next start.
                    await executor.drain(self.clock.now())
                    try:
                        await services.store_ends(self._is_hurried)
                    except Exception:
                        # By a bug of a service, which has probably ended the scheduler. The rest is still to be done.
                        log.exception("scheduler.ends_not_stored")
                await executor.close()
            self._have_tries_ended = has_started and not executor.has_left_tries

    async def _release_lease(self, database: Database) -> None:
        """Release the lease, unless another scheduler would then repeat tries that still run, or that have ended."""
        if self._services is None:
            return
        if not self._have_tries_ended:
            log.warning("lease.kept", reason="tries may be left that could not be ended")
        elif not self._services.have_stored_ends:
            log.warning("lease.kept", reason="ends of tries are not stored: the next start on this home stores them")
        else:
            await release(database, self.clock, self.scheduler_id)

    def _end(self) -> None:
        """Wake all waiters: the scheduler no longer serves."""
        self._open = None
        self._stopped.set()

    # For the program that embeds it: runs

    async def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        has_logical_date: bool = True,
        partition_key: str | None = None,
        run_after: datetime | None = None,
    ) -> DagRunKey:
        """Create a run of a DAG, and return its key. The run starts immediately, or at `run_after`.

        While the DAG folder is read for the first time, this waits for a DAG that is not known yet. The logical date is
        by default the present instant; with `has_logical_date=False` the run has none. Dates without a zone are in that
        of the setting `default_timezone`. `partition_key` is for a DAG that is scheduled by partitions.

        Raises:
            NotFound: There is no such DAG.
            DagError: The conf does not fit the DAG's params, or the partition key its schedule.
            AlreadyExists: There is a run with this run_id or logical date.
            NotServing: The scheduler does not serve yet, or not any more.
        """
        await self._wait_for_dag(dag_id)
        wanted = Trigger(
            run_id=run_id, logical_date=self._aware(logical_date), has_logical_date=has_logical_date, conf=conf or {},
            partition_key=partition_key, run_after=self._aware(run_after),
        )  # fmt: skip
        key = await self._serving_now().manual_runs.create(dag_id, wanted, actor="program")
        await self.channels.runs.put(RunCreated(key))
        return key

    async def run(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        has_logical_date: bool = True,
        partition_key: str | None = None,
    ) -> FinishedRun:
        """Create a run of a DAG, wait until it has ended, and return it. Cancelling this cancels the run.

        The cancellation of the run is stored before this ends, so that a crash does not undo it. While the database is
        away, the scheduler stores it later.

        The arguments are those of `trigger`. Raises its errors, and NotServing when the scheduler stops before the run
        has ended.
        """
        await self._wait_for_dag(dag_id)
        logical_date = self._aware(logical_date)
        key = DagRunKey(dag_id, run_id_of(DagRunType.MANUAL, self.clock.now()) if run_id is None else run_id)
        with self._run_waiters.waiting_for(key) as ended:
            # A cancellation waits until it is known whether the run was created.
            creation = self.trigger(
                dag_id, conf, run_id=key.run_id, logical_date=logical_date, has_logical_date=has_logical_date,
                partition_key=partition_key,
            )  # fmt: skip
            created = asyncio.ensure_future(creation)
            try:
                await asyncio.shield(created)
                await self._while_serving(ended.wait)
            except anyio.get_cancelled_exc_class():
                try:
                    with anyio.CancelScope(shield=True):
                        await asyncio.wait([created])
                        if not created.cancelled() and created.exception() is None:
                            await self._cancel_for_caller(key)
                except asyncio.CancelledError:  # once more, which no scope holds off
                    self._left.add(created)
                    created.add_done_callback(self._cancel_created)
                    raise
                raise
        return await read_finished_run(self._database, key)

    def _cancel_created(self, created: "asyncio.Future[DagRunKey]") -> None:
        """End a run whose caller did not wait for its creation, if it was created."""
        self._left.discard(created)
        if not created.cancelled() and created.exception() is None:
            self.channels.runs.offer(RunCancelled(created.result()))

    def _aware(self, date: datetime | None) -> datetime | None:
        if date is None or date.utcoffset() is not None:
            return date
        return date.replace(tzinfo=zone_named(self.settings.default_timezone))

    async def _cancel_for_caller(self, run: DagRunKey) -> None:
        """End a run that no caller waits for any more. If that cannot be stored soon, the evaluator keeps trying."""
        is_done = False
        try:
            with anyio.move_on_after(CANCELLATION_SECONDS):
                await self.cancel_run(run)
                is_done = True
        except StoreError as exc:  # the database is unavailable, or the run was changed at the same moment
            is_done = isinstance(exc, NotFound)
        except AsynschedError as exc:  # it has ended meanwhile, or the scheduler has stopped
            log.info("run.not_cancelled", dag_id=run.dag_id, run_id=run.run_id, reason=str(exc))
            is_done = True
        finally:
            if not is_done:
                self.channels.runs.offer(RunCancelled(run))

    async def asset_changed(
        self, asset: "str | Asset", extra: Mapping[str, Any] | None = None, *, partition_key: str | None = None
    ) -> None:
        """Record an update of an asset: DAGs that wait for it may run.

        This waits until the DAG folder was read once.

        Args:
            asset: The asset, or its name or URI if a DAG names it.
            extra: JSON values that describe the update; tasks find them in the event.
            partition_key: The partition that was updated.

        Raises:
            NotFound: No DAG names such an asset.
            DagError: The extra is not JSON, or the partition key is blank or too long.
            NotServing: The scheduler does not serve yet, or not any more.
        """
        database = self._database
        await self._while_serving(self._serving_now().dispatcher.progress.until_read)
        now = self.clock.now()
        await database.write(update_by_program, asset, now=now, extra=extra, partition_key=partition_key)
        await self.channels.dag_changes.put(AssetsUpdated())

    async def cancel_run(self, run: AnyRun) -> None:
        """End a run that is queued or running: its tries are killed, waiting tasks are skipped, and the run fails.

        This returns once that is certain to happen, perhaps before it has happened.

        Raises:
            NotFound: There is no such run.
            AsynschedError: It has ended already.
            NotServing: The scheduler does not serve yet, or not any more.
        """
        await self._submit(run, CancelRun())

    async def clear_tasks(
        self,
        run: AnyRun,
        task_ids: Iterable[str] = (),
        *,
        upstream: bool = False,
        downstream: bool = False,
        only_failed: bool = False,
        latest: bool = False,
    ) -> list[TaskInstanceKey]:
        """Run tasks of a run again; running ones are killed first. Returns the cleared task instances.

        Args:
            run: A run in any state; an ended run starts again.
            task_ids: The tasks; all of them if empty.
            upstream: Also clear the tasks upstream of them.
            downstream: Also clear the tasks downstream of them.
            only_failed: Of all these, clear only those that have failed, or whose upstream has.
            latest: Move the run to the newest version of its DAG first.

        Raises:
            NotFound: There is no such run or task.
            AsynschedError: The run has no tasks yet.
            NotServing: The scheduler does not serve yet, or not any more.
        """
        request = ClearTasks(_ids(task_ids), upstream, downstream, only_failed, latest=latest)
        return await self._submit(run, request)

    async def mark_tasks(
        self, run: AnyRun, task_ids: Iterable[str], state: MarkedTaskState, *, downstream: bool = False
    ) -> list[TaskInstanceKey]:
        """Mark tasks of a run as `success`, `failed` or `skipped`; running ones are killed.

        Returns the marked task instances, and raises the errors of `clear_tasks`.
        """
        return await self._submit(run, MarkTasks(_ids(task_ids), state, downstream=downstream))

    async def mark_run(self, run: AnyRun, state: MarkedRunState) -> None:
        """Mark a run as `success` or `failed`, as `asynsched runs mark` does.

        Raises the errors of `clear_tasks`.
        """
        await self._submit(run, MarkRun(state))

    async def _submit(self, named: AnyRun, request: RunRequest) -> list[TaskInstanceKey]:
        run, now = run_key(named), self.clock.now()
        keys = await self._database.write(submit_by_program, run, request, now=now)
        await self.channels.runs.put(RunEdited(run))
        return keys

    # Questions and actions

    def client(self) -> "LocalClient":
        """Return a client with every question and action, for which this scheduler must serve.

        Its methods raise NotServing before and after. The audit names `program`.
        """
        from asynsched.client.client import LocalClient  # programs that only run DAGs need not load it
        from asynsched.queries.users import Issuer

        return LocalClient(self._context, "program", issuer=Issuer("program", None, "administer"))

    def _context(self) -> QueryContext:
        database = self._database
        return QueryContext(
            database, self.settings.home_path, self.settings, self.clock, self._feed, self._wait_for_dag, self._recent
        )  # fmt: skip

    # Current state

    async def wait_idle(self) -> None:
        """Wait until every known file is parsed, no run is active and none is due. May be called before `serve`.

        Raises:
            Standstill: Runs are active, and none of them goes on by itself: a task waits for the success of a task that
                has failed in the previous run, or for more slots than its pool has. A timeout of a run, or of a
                question to a person, is waited for if it is over within a minute.
            NotServing: The scheduler stopped before, or could not start.
        """
        await self._while_serving(self._become_idle)

    async def wait_runs(self, n: int) -> None:
        """Wait until `n` runs have ended since the start. Raises NotServing when the scheduler stops before."""
        await self._while_serving(partial(self._run_waiters.until_ended, n))

    def events(self, since: int | None = None, *, dag_id: str | None = None, run_id: str | None = None) -> EventReader:
        """Iterate over the changes of runs and task instances, of all schedulers of the database, once they are stored.

        Each is a `Change` with a number that only rises. The iteration begins at its first step, or with
        `async with scheduler.events() as events:`, and ends when the scheduler stops. To go on after a restart, give
        the number of the last change that was handled as `since`. Readers never slow the scheduler: one that is too
        slow, or gives a number whose successors are deleted (`retention.changes_days`), gets a `Missed`, and goes on
        after that one's number.

        Args:
            since: Begin after the change with this number; 0: with the oldest that is stored; None: with the present.
            dag_id: Only changes of this DAG.
            run_id: Only changes of runs with this run_id.

        Raises:
            ValueError: `since` is negative.
            NotServing: The scheduler does not serve yet, or not any more.
            StoreUnavailable: From a step: the database cannot be reached at the moment; the next step tries again.
        """
        self._serving_now()
        assert self._feed is not None
        return self._feed.read(since, dag_id=dag_id, run_id=run_id)

    def running(self) -> Running:
        """Return the tries and callbacks that run here, not on other machines. Reads memory only. Raises NotServing."""
        services = self._serving_now()
        elsewhere = services.executor.kept
        tries = [
            RunningTry(*task.key, task.try_number, task.started_at)
            for token, task in services.evaluator.evaluation.tries.awaited.items()
            if token not in elsewhere
        ]
        # Tries that have not begun come last.
        tries.sort(key=lambda one: (one.started_at is None, one.started_at or self.clock.now()))
        return Running(tuple(tries), sum(token not in elsewhere for token in services.callbacks.running))

    def health(self) -> Health:
        """Return the health of this scheduler: the age of every loop, and the oldest step that has not ended.

        Reads memory only. Other threads may call it, also while the event loop is stalled.

        Raises:
            NotServing: The scheduler does not serve yet, or not any more.
        """
        return self._serving_now().vitals.health()

    async def _become_idle(self) -> None:
        await self.started.wait()
        services = self._serving_now()
        while True:
            step = services.steps.next()
            if services.are_idle:
                return
            if services.are_at_a_standstill:
                reasons = await self._explain_standstill()
                if reasons and services.are_at_a_standstill:
                    raise Standstill(reasons)
            await step.wait()

    async def _explain_standstill(self) -> str:
        """Return why the active runs do not go on; empty if they may, also because of another scheduler."""
        database, now = self._database, self.clock.now()
        if any(row.id != self.scheduler_id for row in await database.read(list_schedulers, now)):
            return ""
        return await explain_standstill(database, self.settings, now)

    @property
    def _has_peers(self) -> bool:
        return self._services is not None and self._services.held_lease.has_peers()

    def _serving_now(self) -> Services:
        if self._services is None or self._open is None:
            raise NotServing(NO_MORE if self._stopped.is_set() else NOT_YET)
        return self._services

    def _check_loop(self) -> None:
        """Raise AsynschedError in another loop than that in which this serves: to wait here would break both."""
        here = None
        with suppress(RuntimeError):  # there is no loop here
            here = asyncio.get_running_loop()
        if None not in (here, self._loop) and here is not self._loop:
            raise AsynschedError(
                "This scheduler serves in another event loop, as of another thread: call it there, by"
                " asyncio.run_coroutine_threadsafe(scheduler.run(…), loop).result()"
            )

    @property
    def _database(self) -> Database:
        self._serving_now()
        self._check_loop()
        assert self._open is not None
        return self._open

    async def _wait_for_dag(self, dag_id: str) -> None:
        """Wait until a DAG is known, or the folder was read once."""
        database, progress = self._database, self._serving_now().dispatcher.progress
        if not progress.is_complete:
            await self._while_serving(partial(progress.until_known, database, dag_id))

    async def _while_serving(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait for a result that only a serving scheduler produces. Raises NotServing, and the errors of `wait`."""
        self._check_loop()
        if not await cancelled_by(self._stopped, wait):
            raise NotServing(NO_MORE)


def _loop_of_asyncio() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as exc:
        raise AsynschedError("A scheduler serves in an event loop of asyncio, and this one is another's.") from exc


@asynccontextmanager
async def _closed_though_cancelled(hurry: Callable[[], None]) -> AsyncIterator[AsyncExitStack]:
    """Yield a stack that is closed to its end, even if the task is cancelled again meanwhile.

    Args:
        hurry: Called for each cancellation that comes while the stack is closed, but not before: no scope can hold off
            those of asyncio.
    """
    stack, cancelled = AsyncExitStack(), None
    try:
        yield stack
    finally:
        closing = asyncio.create_task(stack.aclose(), name="scheduler's end")
        with anyio.CancelScope(shield=True):
            while not closing.done():
                try:
                    await asyncio.wait((closing,))
                except asyncio.CancelledError as exc:
                    cancelled = exc
                    hurry()
        closing.result()
        if cancelled is not None:
            raise cancelled


async def _in_thread_though_cancelled(function: Callable[[], None]) -> None:
    """Call a function that blocks in a thread, also in a scope that is cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(function)


def _ids(task_ids: Iterable[str]) -> tuple[str, ...]:
    if isinstance(task_ids, str):
        raise TypeError(f"task_ids must be several ids, such as [{task_ids!r}], and not a text")
    return tuple(task_ids)


def _check_arguments(dags: Any, database: Any, executor: Any, settings: Any, clock: Any) -> None:
    """Raise TypeError, with what is expected, for an argument of Scheduler that is of another kind."""
    if not isinstance(dags, str | os.PathLike | None):
        raise TypeError(f"dags must be the path of a folder with DAG files, not {dags!r:.100}")
    if clock is not None and not callable(getattr(clock, "now", None)):
        raise TypeError(f"clock must be a Clock, not {clock!r:.100}")
    if not isinstance(settings, Settings | None):
        raise TypeError(f"settings must be a Settings, as in settings=Settings(parallelism=8), not {settings!r:.100}")
    if not isinstance(database, str | Database | None):
        raise TypeError(f"database must be a URL, such as sqlite:///PATH, or an open Database, not {database!r:.100}")
    if not (executor is None or isinstance(executor, str) or callable(executor)):
        raise TypeError(f"executor must be a name, or a function that makes an Executor, not {executor!r:.100}")


def _no_such_argument(name: str) -> str:
    """Return the message for an argument that Scheduler does not have."""
    arguments = [argument for argument in signature(Scheduler).parameters if argument != "unknown"]
    settings = [option for option in option_names(Settings) if option not in arguments]
    problem = f"Scheduler has no argument {name!r}."
    for near in nearest_options(name, [*arguments, *settings]):
        if near in settings:
            return f"{problem} Give the setting as `settings=Settings({as_argument(near)})`."
        return f"{problem} Did you mean {near!r}?"
    return f"{problem} It has {', '.join(arguments)}; everything else is in `settings=Settings(…)`."
