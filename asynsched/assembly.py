"""The services of a scheduler: how they are made and connected, the order in which they start and stop, their state."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import anyio
from msgspec import Struct

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.executors.base import Adopt, Executor, ExecutorContext, adopt_none
from asynsched.executors.client import ExecutorClient
from asynsched.executors.log_archive import LogArchive
from asynsched.executors.names import executor_called
from asynsched.executors.requests import RequestAnswerer
from asynsched.executors.tokens import boot_mark, new_try_token
from asynsched.executors.warm_workers import WarmWorkers
from asynsched.health import Vitals
from asynsched.home import SOURCES
from asynsched.housekeeping.bell_listener import BellListener
from asynsched.housekeeping.log_archiver import LogArchiver
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.lease.expiry import Lease
from asynsched.lease.held_lease import HeldLease, make_held_lease
from asynsched.metrics.base import Metrics, NoMetrics, Sample
from asynsched.parsing.dispatcher import ParseClaims, ParseDispatcher
from asynsched.parsing.looks import runtime_of
from asynsched.parsing.processes.informed_parser import InformedParser, ask_of_run
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.readable_secrets import ReadableSecrets
from asynsched.parsing.watching.watcher import Watcher
from asynsched.scheduling.asset_watchers import AssetWatchers
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.creation.triggering import OPERATION, ManualRuns, RunsByTasks
from asynsched.scheduling.deadline_watcher import DeadlineWatcher, PlacedDeadlines
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.loading import VersionCache
from asynsched.scheduling.places import Places
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.triggerer import Triggerer
from asynsched.service import Availability, Service, Steps
from asynsched.settings import Settings
from asynsched.slices import AT_ONCE
from asynsched.states import TaskInstanceState
from asynsched.store.database import Database
from asynsched.store.engines.urls import parse_url
from asynsched.store.runs.deadlines import PLACE_EVENT
from asynsched.store.schedulers import set_room

STORE_SECONDS = 5.0
"""How long a stopping scheduler takes at most to store the reports of the drained tries, in each of two attempts."""
HURRIED_STORE_SECONDS = 2.0
"""The same limit for a scheduler that was told to hurry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a scheduler.

    The consumers start first. When the scheduler stops, the producers stop, then the executor drains, then the
    consumers stop: the reports of the last tries are still stored.
    """

    parser: SandboxParser
    executor: Executor
    manual_runs: ManualRuns
    vitals: Vitals
    steps: Steps

    file_watcher: Watcher
    dispatcher: ParseDispatcher
    creator: DagRunCreator
    sweeper: RetentionSweeper
    archiver: LogArchiver | None
    listeners: tuple[Service, ...]

    executor_client: ExecutorClient
    warm: WarmWorkers
    evaluator: DependencyEvaluator
    callbacks: CallbackRunner
    deadline_watcher: DeadlineWatcher
    asset_watchers: AssetWatchers
    triggerer: Triggerer
    run_waiters: RunWaiters
    held_lease: HeldLease
    feed: Service | None

    @property
    def producers(self) -> tuple[Service, ...]:
        """The services that make work."""
        archiver = () if self.archiver is None else (self.archiver,)
        return (self.file_watcher, self.dispatcher, self.creator, self.sweeper, *archiver, *self.listeners)

    @property
    def consumers(self) -> tuple[Service, ...]:
        """The services that finish work, and those that hold the lease."""
        return (
            self.executor_client,
            self.evaluator,
            self.callbacks,
            self.deadline_watcher,
            self.asset_watchers,
            self.triggerer,
            self.run_waiters,
            *(() if self.feed is None else (self.feed,)),
            *self.held_lease.services,
        )

    # State of all together

    @property
    def are_idle(self) -> bool:
        """Whether nothing is left to parse, to create, to run or to call back."""
        return self._others_are_idle and self.evaluator.is_idle

    @property
    def are_at_a_standstill(self) -> bool:
        """Whether all services wait for active runs that cannot progress."""
        return self._others_are_idle and self.evaluator.is_at_a_standstill

    @property
    def _others_are_idle(self) -> bool:
        others = (
            self.dispatcher, self.creator, self.deadline_watcher, self.callbacks, self.asset_watchers,
            self.executor_client,
        )  # fmt: skip
        return all(part.is_at_rest for part in (*others, self.evaluator)) and all(part.is_idle for part in others)

    @property
    def are_reports_stored(self) -> bool:
        """Whether all that the executor has reported is stored, and the executor knows that."""
        return (
            self.executor_client.is_idle
            and self.executor_client.is_at_rest
            and self.evaluator.are_reports_stored
            and self.callbacks.are_reports_stored
            and self.asset_watchers.are_reports_stored
            and self.triggerer.are_reports_handled
        )

    @property
    def have_stored_ends(self) -> bool:
        """Whether another scheduler would repeat no try: the end of each is stored, or it is left to be adopted."""
        awaited = self.evaluator.evaluation.tries.awaited.keys()
        return self.are_reports_stored and awaited <= frozenset(self.executor.kept)

    # How they begin and end

    async def recover(self, database: Database, lease_epoch: int) -> None:
        """Start the executor, and take up the runs, callbacks and triggers of earlier schedulers."""
        executor, now = self.executor, self.evaluator.clock.now()
        held = await executor.start(lease_epoch)
        await self.evaluator.recover(held, now)
        await self.callbacks.recover(held)
        await self.asset_watchers.recover()
        self.triggerer.recover(held, now)
        # Last, because a scheduler has room only while it serves: that tells a starting one from a stopping one.
        await database.write(set_room, self.held_lease.scheduler_id, executor.parallelism, executor.capacities)

    def stop_beginning(self) -> None:
        """Begin no task, callback or trigger from now on."""
        self.evaluator.stop_granting()
        self.callbacks.stop_beginning()
        self.triggerer.stop()
        self.warm.close()

    async def drain(self, grace: timedelta, hurried: anyio.Event) -> None:
        """Wait a grace time for running tasks to end, interrupt the rest, and wait until all ends are stored.

        Once `hurried` is set, nothing waits for tasks any more.
        """
        clock = self.evaluator.clock
        await cancelled_by(hurried, lambda: self.executor.drain(clock.now() + grace))
        if hurried.is_set():
            await self.executor.drain(clock.now())
        await self._store_reports(hurried)
        if (archiver := self.archiver) is not None:
            await cancelled_by(hurried, archiver.finish)

    async def store_ends(self, hurried: anyio.Event) -> None:
        """Store the ends of drained tries after the services were cancelled, e.g. in a pause of an outage.

        Raises:
            ExceptionGroup: A service fails by a bug.
        """
        if self.are_reports_stored:
            return
        self.stop_beginning()
        async with anyio.create_task_group() as group:
            for service in (self.executor_client, self.evaluator, self.callbacks, self.asset_watchers, self.triggerer):
                group.start_soon(service.run)
            await self._store_reports(hurried)
            group.cancel_scope.cancel()

    async def _store_reports(self, hurried: anyio.Event) -> None:
        with anyio.move_on_after(HURRIED_STORE_SECONDS if hurried.is_set() else STORE_SECONDS):
            await self.steps.until(lambda: self.are_reports_stored)


async def cancelled_by(event: anyio.Event, work: Callable[[], Awaitable[object]]) -> bool:
    """Do some work, and cancel it once an event is set. Returns whether it was done. Raises its error, in no group."""
    if event.is_set():
        return False
    failure: Exception | None = None
    is_done = False
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await event.wait()
            group.cancel_scope.cancel()

        group.start_soon(cancel)
        try:
            await work()
            is_done = True
        except Exception as exc:  # noqa: BLE001 - it is raised below, where no group wraps it
            failure = exc
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return is_done


class Foundation(Struct, frozen=True, kw_only=True):
    """A scheduler before it has services.

    Attributes:
        database_url: For connections beside `database`; None where a program has passed an open database.
        lease: This scheduler's name, and the epoch of its runs.
        archive: Keeps the logs of ended tries; None: they stay in the home.
        in_threads: Whether long computations leave the loop; in a simulation no thread may decide an order.
        installation: Digest of the code beside the DAG folder, which is read outside of the loop.
    """

    settings: Settings
    channels: Channels
    clock: Clock
    database: Database
    database_url: str | None
    lease: Lease
    metrics: Metrics = NoMetrics()
    archive: LogArchive | None = None
    in_threads: bool = True
    installation: str = ""


MakeExecutor = Callable[[ExecutorContext], Executor]


def assemble(
    base: Foundation,
    *,
    make_executor: MakeExecutor,
    run_waiters: RunWaiters,
    on_lease_lost: Callable[[], None],
    feed: Service | None = None,
) -> Services:
    """Return the services, connected and not yet running.

    Args:
        run_waiters: Wakes callers that may wait for runs already.
        on_lease_lost: Called on the loop, once, when another scheduler may take the runs.
        feed: Gives events to their readers.
    """
    settings, channels, database, clock = base.settings, base.channels, base.database, base.clock
    availability, scheduler_id = Availability(clock), base.lease.scheduler_id
    parser = SandboxParser(settings, ReadableSecrets(settings.parse, database.read))
    manual_runs = ManualRuns(database, clock, partial(ask_of_run, parser, database))
    warm = WarmWorkers(clock, settings.kubernetes.keep_warm, settings.kubernetes.warm_pods)
    executor_client, executor = _execution(base, manual_runs, make_executor, warm)
    held_lease = make_held_lease(
        base.lease, database=database, database_url=base.database_url, channels=channels, clock=clock,
        tell_executor=executor.renew_lease, availability=availability, on_lost=on_lease_lost,
    )  # fmt: skip
    versions = VersionCache(database, settings.home_path / SOURCES, settings.dags_path, in_thread=base.in_threads)
    evaluator = make_evaluator(
        base, versions, executor.parallelism, executor.capacities, held_lease.has_peers, executor.adopt
    )
    vitals = Vitals(clock, scheduler_id, settings.monitor.longest_step)
    shared = (settings, channels, database, clock)
    services = Services(
        parser=parser,
        executor=executor,
        manual_runs=manual_runs,
        vitals=vitals,
        steps=Steps(),
        file_watcher=Watcher(settings, channels, clock),
        dispatcher=ParseDispatcher(
            *shared, InformedParser(parser, database, clock), _parse_claims(base, held_lease), base.installation
        ),
        creator=DagRunCreator(*shared, tell_as=lambda: scheduler_id if held_lease.has_peers() else None),
        sweeper=RetentionSweeper(
            settings=settings.retention, database=database, clock=clock, home=settings.home_path, archive=base.archive
        ),
        archiver=_archiver(base),
        listeners=_listeners(base, vitals),
        executor_client=executor_client,
        warm=warm,
        evaluator=evaluator,
        callbacks=CallbackRunner(*shared, versions=versions, scheduler_id=scheduler_id, adopt=executor.adopt),
        deadline_watcher=DeadlineWatcher(
            *shared, lease_epoch=base.lease.epoch, reports_stored=evaluator.reports_stored
        ),
        asset_watchers=AssetWatchers(*shared, versions=versions, lease=base.lease),
        triggerer=Triggerer(channels=channels, clock=clock, block_timeout=settings.trigger_block_timeout),
        run_waiters=run_waiters,
        held_lease=held_lease,
        feed=feed,
    )
    _connect(services, base, availability)
    return services


def _execution(
    base: Foundation, manual_runs: ManualRuns, make_executor: MakeExecutor, warm: WarmWorkers
) -> tuple[ExecutorClient, Executor]:
    """Return the executor, and the client that drives it."""
    runs_by_tasks = RunsByTasks(base.database, base.channels, base.clock, manual_runs)
    placed = PlacedDeadlines(base.database, base.channels, base.clock)
    answerer = RequestAnswerer(
        base.database,
        base.clock,
        {OPERATION: runs_by_tasks.answer, PLACE_EVENT: placed.answer},
        name_changed=base.channels.file_changes.put,
    )
    client = ExecutorClient(channels=base.channels, clock=base.clock, answerer=answerer)
    executor = make_executor(
        ExecutorContext(
            home=base.settings.home_path,
            settings=base.settings,
            clock=base.clock,
            scheduler_id=base.lease.scheduler_id,
            report=client.report,
            answer=client.answer,
            shares_database=base.database.is_shared,
            fail=client.fail,
            database=base.database,
            warm=warm,
        )
    )
    _check_of_callbacks(base.settings, executor)
    client.executor = executor
    return client, executor


def _check_of_callbacks(settings: Settings, executor: Executor) -> None:
    """Raise SettingsError unless there is the executor that is to run callbacks."""
    # A single executor has no name of its own, but the setting may give it one: name=package.module:Class.
    name, known = settings.callbacks.executor, [*executor.capacities] or [settings.executor.partition("=")[0]]
    if name and executor_called(name, known) not in known:
        raise SettingsError(
            f"callbacks.executor: there is no executor {name!r}; the setting executor names {', '.join(known)}"
        )


def _archiver(base: Foundation) -> LogArchiver | None:
    if base.archive is None:
        return None
    return LogArchiver(
        archive=base.archive, keep=timedelta(seconds=base.settings.log.keep_local), database=base.database,
        clock=base.clock, home=base.settings.home_path, scheduler_id=base.lease.scheduler_id,
    )  # fmt: skip


def _parse_claims(base: Foundation, held_lease: HeldLease) -> ParseClaims | None:
    """Return the claims that divide the parses among several schedulers; None if there is only one."""
    if held_lease.peers is None:
        return None
    runtime = runtime_of(base.settings, base.installation)
    return ParseClaims(base.database, base.clock, base.lease.scheduler_id, runtime, held_lease.peers.silent)


def _listeners(base: Foundation, vitals: Vitals) -> tuple[Service, ...]:
    """Return the services that hear other processes: commands on this machine, and on PostgreSQL all machines."""
    home, channels, clock = base.settings.home_path, base.channels, base.clock
    bell = BellListener(home=home, channels=channels, clock=clock, health=vitals.health)
    url = base.database.url if base.database_url is None else parse_url(base.database_url)
    if url is None or url.backend != "postgresql":
        return (bell,)
    # Its driver is loaded only where it is used.
    from asynsched.housekeeping.notification_listener import NotificationListener

    return (bell, NotificationListener(url=url, channels=channels, clock=clock, scheduler_id=base.lease.scheduler_id))


def _connect(services: Services, base: Foundation, availability: Availability) -> None:
    """Give all services the objects that they share, some services each other, and health the pulses of all."""
    vitals, thread = services.vitals, services.held_lease.thread
    services.executor_client.answer_host = services.triggerer.answer
    if base.database.is_shared:
        services.run_waiters.look_into(base.database)
    for service in (*services.producers, *services.consumers):
        service.availability, service.metrics, service.steps = availability, base.metrics, services.steps
        vitals.watch(service.name, service.pulse, partial(getattr, service, "interval"))
    if thread is not None:
        vitals.watch("lease", thread.pulse, lambda: thread.interval)
    vitals.watch_parses(services.dispatcher.under_way.long_ones)
    if (archiver := services.archiver) is not None:
        vitals.watch_logs(lambda: archiver.waiting)


def make_evaluator(
    base: Foundation,
    versions: VersionCache,
    parallelism: int,
    executors: Mapping[str, int],
    has_peers: Callable[[], bool],
    adopt: Adopt = adopt_none,
) -> DependencyEvaluator:
    """Return an evaluator without runs.

    Args:
        parallelism: How many tasks may run at once.
        executors: How many of them each of several executors runs, by the names that tasks give.
        adopt: Takes over the tries of runs that another scheduler has left: see `Executor.adopt`.
    """
    settings = base.settings
    evaluation = Evaluation(
        ready=ReadyQueues(parallelism, settings.max_active_tasks_per_dag, executors, settings.keep_slots),
        pending=PendingBatch(base.lease.scheduler_id, base.lease.epoch),
        max_machine_kills=settings.max_machine_kills,
        new_token=partial(new_try_token, boot_mark(base.clock.boot())),
        at_once=AT_ONCE,
    )
    intake = RunIntake(
        database=base.database,
        versions=versions,
        evaluation=evaluation,
        channels=base.channels,
        places=Places(settings.max_dagruns_per_loop_to_schedule),
        owner=(base.lease.scheduler_id, base.lease.epoch),
        has_peers=has_peers,
    )
    return DependencyEvaluator(settings, base.clock, intake, adopt)


def name_gauges(metrics: Metrics, services: Services) -> None:
    """Name the function that reads each gauge."""
    evaluation, dispatcher = services.evaluator.evaluation, services.dispatcher
    limit, pools = evaluation.ready.parallelism, evaluation.ready.pools

    def of_files(field: str) -> Iterable[Sample]:
        yield (), sum(getattr(row, field) for row in dispatcher.known)

    def in_state(state: TaskInstanceState) -> Iterable[Sample]:
        yield (), sum(task.state == state for task in list(evaluation.tries.awaited.values()))

    def open_slots() -> Iterable[Sample]:
        return [
            ((name,), pool.capacity - pool.taken) for name, pool in list(pools.items()) if pool.capacity is not None
        ]

    def of_pools(state: TaskInstanceState) -> Iterable[Sample]:
        taken: Counter[str] = Counter()
        for task in list(evaluation.tries.awaited.values()):
            taken[task.route.pool] += task.route.pool_slots if task.state == state else 0
        return [((name,), taken[name]) for name in list(pools)]

    def of_loops(field: str) -> Iterable[Sample]:
        return [((loop.name,), getattr(loop, field) or 0.0) for loop in services.vitals.health().loops]

    metrics.gauge("dagbag_size", lambda: of_files("n_dags"))
    metrics.gauge("dag_processing.import_errors", lambda: of_files("n_errors"))
    metrics.gauge("dag_processing.file_path_queue_size", lambda: [((), dispatcher.jobs.n_waiting)])
    metrics.gauge("executor.open_slots", lambda: [((), (limit.capacity or 0) - limit.used)])
    metrics.gauge("executor.queued_tasks", lambda: in_state(TaskInstanceState.QUEUED))
    metrics.gauge("executor.running_tasks", lambda: in_state(TaskInstanceState.RUNNING))
    metrics.gauge("pool.open_slots", open_slots)
    metrics.gauge("pool.queued_slots", lambda: of_pools(TaskInstanceState.QUEUED))
    metrics.gauge("pool.running_slots", lambda: of_pools(TaskInstanceState.RUNNING))
    metrics.gauge("pool.deferred_slots", lambda: [((name,), pool.deferred) for name, pool in list(pools.items())])
    metrics.gauge("scheduler.dagruns.running", lambda: [((), len(evaluation.runs))])
    metrics.gauge("triggers.running", lambda: [((), services.triggerer.n_triggers)])
    metrics.gauge("scheduler.logs_waiting", lambda: [((), services.vitals.health().logs.n_logs)])
    metrics.gauge("scheduler.loop_age_seconds", lambda: of_loops("age_seconds"))
    metrics.gauge("scheduler.loop_step_seconds", lambda: of_loops("step_seconds"))
    metrics.gauge("scheduler.stale_messages", lambda: [((), evaluation.pending.n_stale)])
