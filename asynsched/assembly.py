"""Makes the services of a scheduler and connects them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.heartbeat import ExecutorHeartbeat
from asynsched.executors.requests import RequestAnswerer
from asynsched.executors.tokens import boot_mark, new_try_token
from asynsched.health import Vitals
from asynsched.home import SOURCES
from asynsched.housekeeping.bell_listener import BellListener
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.lease.peers import PeerWatch
from asynsched.lease.promise import NO_PROMISE, Outlasting, Promise
from asynsched.lease.renewal import LeaseKeeper, LoopBeat, LoopLease
from asynsched.metrics.base import Metrics, NoMetrics, Sample
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.jobs import ParseClaims
from asynsched.parsing.looks import runtime_of
from asynsched.parsing.processes.informed_parser import InformedParser, manual_interval
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.watching.watcher import Watcher
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.creation.triggering import OPERATION, ManualRuns, RunsByTasks
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.loading import VersionCache
from asynsched.scheduling.places import Places
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.slices import AT_ONCE
from asynsched.scheduling.triggerer.triggerer import Triggerer
from asynsched.service import Availability, Service
from asynsched.settings import Settings
from asynsched.states import TaskInstanceState
from asynsched.store.database import Database
from asynsched.store.engines.sqlite_connection import InlineDatabase
from asynsched.store.engines.sqlite_database import SqliteDatabase
from asynsched.store.engines.urls import DatabaseUrl, parse_url

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """A scheduler as it is before it has any service.

    Attributes:
        database_url: For connections beside `database`; None where a program has given it open.
        scheduler_id: Its name, also in the database.
        lease_epoch: Of the runs that are this scheduler's.
        entry: How long nobody else takes those, as it said when it registered; whoever renews no lease says nothing.
        metrics: What takes the figures.
        in_threads: Whether long computations leave the loop; in a simulation no thread may decide an order.
    """

    settings: Settings
    channels: Channels
    clock: Clock
    database: Database
    database_url: str | None
    scheduler_id: str
    lease_epoch: int
    entry: Promise = NO_PROMISE
    metrics: Metrics = field(default_factory=NoMetrics)
    in_threads: bool = True

    @property
    def postgresql_url(self) -> DatabaseUrl | None:
        """Where PostgreSQL is; None for SQLite, and for a database that was given open."""
        url = None if self.database_url is None else parse_url(self.database_url)
        return url if url is not None and url.backend == "postgresql" else None


@dataclass(frozen=True, slots=True)
class Claim:
    """What holds the claim.

    Attributes:
        lease: Renews the lease from a thread; None where `beat` renews it on the loop.
        peers: None where there can be no other scheduler.
    """

    lease: LeaseKeeper | None
    beat: Service
    peers: PeerWatch | None

    @property
    def services(self) -> tuple[Service, ...]:
        """Its tasks on the event loop."""
        return (self.beat,) if self.peers is None else (self.beat, self.peers)

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Within, the lease is renewed though no service runs yet."""
        # No task group: that would wrap what is raised within, why a start has failed.
        renewing = asyncio.create_task(self.beat.run(), name=self.beat.name)
        renewing.add_done_callback(_log_failure)
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        if not renewing.cancelled():
            renewing.result()

    def has_peers(self) -> bool:
        """Return whether there are other schedulers, as far as is known."""
        return self.peers is not None and self.peers.n_peers > 0


def _log_failure(renewing: asyncio.Task[None]) -> None:
    """Say at once why the lease is not renewed any more: it is raised later, unless something else is raised first."""
    if not renewing.cancelled() and (error := renewing.exception()) is not None:
        log.error("lease.not_renewed", exc_info=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a scheduler.

    The consumers start first. When the scheduler stops, the producers stop, then the executor drains, then the
    consumers stop: what the last tries report is still taken, and stored.
    """

    parser: SandboxParser
    executor: Executor
    manual_runs: ManualRuns
    vitals: Vitals

    watcher: Watcher
    dispatcher: ParseDispatcher
    creator: DagRunCreator
    sweeper: RetentionSweeper
    listeners: tuple[Service, ...]

    heartbeat: ExecutorHeartbeat
    evaluator: DependencyEvaluator
    callbacks: CallbackRunner
    deadlines: DeadlineWatcher
    triggerer: Triggerer
    waiters: RunWaiters
    claim: Claim

    @property
    def producers(self) -> tuple[Service, ...]:
        """Those that make work."""
        return (self.watcher, self.dispatcher, self.creator, self.sweeper, *self.listeners)

    @property
    def consumers(self) -> tuple[Service, ...]:
        """Those that finish work, and those that hold the claim to it."""
        return (
            self.heartbeat,
            self.evaluator,
            self.callbacks,
            self.deadlines,
            self.triggerer,
            self.waiters,
            *self.claim.services,
        )

    @property
    def are_idle(self) -> bool:
        """Whether nothing is left to parse, to create, to run or to call back."""
        return self.evaluator.is_idle and self._others_are_idle

    @property
    def are_at_a_standstill(self) -> bool:
        """Whether nothing is left to do but to wait for active runs that do not go on by themselves."""
        return self.evaluator.is_at_a_standstill and self._others_are_idle

    @property
    def _others_are_idle(self) -> bool:
        return (
            self.dispatcher.is_idle
            and self.creator.is_idle
            and self.deadlines.is_idle
            and self.callbacks.is_idle
            and self.heartbeat.is_idle
        )

    @property
    def are_settled(self) -> bool:
        """Whether all that the executor has reported is stored, and the executor knows that."""
        return (
            self.evaluator.is_settled
            and self.callbacks.is_settled
            and self.triggerer.is_settled
            and self.heartbeat.is_idle
        )


MakeExecutor = Callable[[ExecutorContext], Executor]


def assemble(
    base: Foundation, *, make_executor: MakeExecutor, waiters: RunWaiters, on_lease_lost: Callable[[], None]
) -> Services:
    """Return the services, connected and not yet running.

    Args:
        base: What they stand on.
        make_executor: Makes where tries run.
        waiters: Who may wait for runs already.
        on_lease_lost: Called on the loop, once, when another scheduler may take the runs.
    """
    settings, channels, database, clock = base.settings, base.channels, base.database, base.clock
    availability = Availability(clock)
    parser = SandboxParser(settings)
    manual_runs = ManualRuns(database, clock, partial(manual_interval, parser, database))
    heartbeat, executor = _execution(base, manual_runs, make_executor)
    claim = make_claim(base, executor, availability, on_lease_lost)
    versions = VersionCache(database, settings.home_path / SOURCES, settings.dags_path, in_thread=base.in_threads)
    evaluator = make_evaluator(base, versions, executor.parallelism, executor.capacities, claim.has_peers)
    vitals = Vitals(clock, base.scheduler_id, settings.monitor.longest_step)
    services = Services(
        parser=parser,
        executor=executor,
        manual_runs=manual_runs,
        vitals=vitals,
        watcher=Watcher(settings, channels, clock),
        dispatcher=_dispatcher(base, parser, claim.peers),
        creator=_creator(base, claim),
        sweeper=_sweeper(base),
        listeners=_listeners(base, vitals),
        heartbeat=heartbeat,
        evaluator=evaluator,
        callbacks=_callbacks(base, versions),
        deadlines=_deadlines(base, evaluator),
        triggerer=_triggerer(base, heartbeat),
        waiters=waiters,
        claim=claim,
    )
    if database.is_shared:
        waiters.look_into(database)
    _look_after(services, base, availability)
    return services


def _execution(
    base: Foundation, manual_runs: ManualRuns, make_executor: MakeExecutor
) -> tuple[ExecutorHeartbeat, Executor]:
    """Return the executor, and the heartbeat that drives it, and hears of it."""
    runs_by_tasks = RunsByTasks(base.database, base.channels, base.clock, manual_runs)
    answerer = RequestAnswerer(base.database, base.clock, {OPERATION: runs_by_tasks.answer})
    heartbeat = ExecutorHeartbeat(channels=base.channels, clock=base.clock, answerer=answerer)
    executor = make_executor(
        ExecutorContext(
            home=base.settings.home_path,
            settings=base.settings,
            clock=base.clock,
            scheduler_id=base.scheduler_id,
            report=heartbeat.report,
            answer=heartbeat.answer,
            shares_database=base.database.is_shared,
            fail=heartbeat.fail,
        )
    )
    heartbeat.drive(executor)
    return heartbeat, executor


def _callbacks(base: Foundation, versions: VersionCache) -> CallbackRunner:
    return CallbackRunner(
        settings=base.settings,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        versions=versions,
        scheduler_id=base.scheduler_id,
    )


def _deadlines(base: Foundation, evaluator: DependencyEvaluator) -> DeadlineWatcher:
    return DeadlineWatcher(
        settings=base.settings,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        lease_epoch=base.lease_epoch,
        stored_until=evaluator.stored_until,
    )


def _triggerer(base: Foundation, heartbeat: ExecutorHeartbeat) -> Triggerer:
    block_timeout = base.settings.trigger_block_timeout
    triggerer = Triggerer(channels=base.channels, clock=base.clock, block_timeout=block_timeout)
    heartbeat.serve_hosts(triggerer.answer)
    return triggerer


def _creator(base: Foundation, claim: Claim) -> DagRunCreator:
    return DagRunCreator(
        settings=base.settings,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        tell_as=lambda: base.scheduler_id if claim.has_peers() else None,
    )


def _dispatcher(base: Foundation, parser: SandboxParser, peers: PeerWatch | None) -> ParseDispatcher:
    claims = None
    if peers is not None:
        claims = ParseClaims(base.database, base.clock, base.scheduler_id, runtime_of(base.settings), peers.silent)
    informed = InformedParser(parser, base.database, base.clock)
    return ParseDispatcher(base.settings, base.channels, base.database, base.clock, informed, claims)


def _sweeper(base: Foundation) -> RetentionSweeper:
    settings = base.settings
    return RetentionSweeper(
        settings=settings.retention, database=base.database, clock=base.clock, home=settings.home_path
    )


def _listeners(base: Foundation, vitals: Vitals) -> tuple[Service, ...]:
    """Return what hears other processes: commands on this machine, and those and schedulers on all others."""
    home, channels, clock = base.settings.home_path, base.channels, base.clock
    bell = BellListener(home=home, channels=channels, clock=clock, health=vitals.health)
    url = base.postgresql_url
    if url is None:
        return (bell,)
    # Its driver is loaded only where it is used.
    from asynsched.housekeeping.notification_listener import NotificationListener

    return (bell, NotificationListener(url=url, channels=channels, clock=clock, scheduler_id=base.scheduler_id))


def _look_after(services: Services, base: Foundation, availability: Availability) -> None:
    """Have health, the database's absence and figures told of all services alike."""
    all_services = (*services.producers, *services.consumers)
    services.vitals.watch(all_services)
    services.vitals.watch_parses(services.dispatcher.under_way.long_ones)
    if services.claim.lease is not None:
        renew_interval = timedelta(seconds=base.settings.lease.renew_interval)
        services.vitals.watch_pulse("lease", services.claim.lease.pulse, renew_interval)
    for service in all_services:
        service.availability = availability
        service.metrics = base.metrics


def make_evaluator(
    base: Foundation,
    versions: VersionCache,
    parallelism: int,
    executors: Mapping[str, int],
    has_peers: Callable[[], bool],
) -> DependencyEvaluator:
    """Return an evaluator without runs.

    Args:
        base: What it stands on.
        versions: Of the DAGs whose runs it takes in.
        parallelism: How many tasks may run at once.
        executors: How many of them in each of several executors, by the names that tasks give.
        has_peers: Whether there are other schedulers now.
    """
    evaluation = Evaluation.by_settings(
        base.settings,
        PendingBatch(base.scheduler_id, base.lease_epoch),
        parallelism=parallelism,
        executors=executors,
        new_token=partial(new_try_token, boot_mark(base.clock.boot())),
        at_once=AT_ONCE,
    )
    intake = RunIntake(
        database=base.database,
        versions=versions,
        evaluation=evaluation,
        channels=base.channels,
        places=Places(base.settings.max_dagruns_per_loop_to_schedule),
        owner=(base.scheduler_id, base.lease_epoch),
        has_peers=has_peers,
    )
    return DependencyEvaluator(
        settings=base.settings,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        evaluation=evaluation,
        intake=intake,
        has_peers=has_peers,
    )


def make_claim(base: Foundation, executor: Executor, availability: Availability, on_lost: Callable[[], None]) -> Claim:
    """Return the claim, not yet renewed. The executor is told how long it holds, as it has yet to start.

    Args:
        base: A lease needs a connection of its own to be renewed from a thread, and that a URL.
        executor: Is told how long the lease holds.
        availability: Is told when the database is away.
        on_lost: Called on the loop, once, when another scheduler may take the runs.
    """
    outlasting = Outlasting(base.settings.lease, base.entry, home_is_claim=_is_home_the_claim(base))
    executor.renew_lease(outlasting.allowed(base.entry.since))
    if base.database_url is None:
        return Claim(None, _loop_lease(base, outlasting, executor, on_lost), _peers(base, on_change=lambda: None))
    lease = LeaseKeeper(
        settings=base.settings.lease,
        database_url=base.database_url,
        outlasting=outlasting,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        lease_epoch=base.lease_epoch,
        executor=executor,
        availability=availability,
        on_lost=on_lost,
    )
    return Claim(lease, LoopBeat(clock=base.clock, lease=lease), _peers(base, on_change=lease.renew_soon))


def _is_home_the_claim(base: Foundation) -> bool:
    if base.database_url is None:
        return isinstance(base.database, SqliteDatabase | InlineDatabase)
    return base.postgresql_url is None


def _loop_lease(base: Foundation, outlasting: Outlasting, executor: Executor, on_lost: Callable[[], None]) -> LoopLease:
    return LoopLease(
        settings=base.settings.lease,
        database=base.database,
        outlasting=outlasting,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        lease_epoch=base.lease_epoch,
        executor=executor,
        on_lost=on_lost,
    )


def _peers(base: Foundation, on_change: Callable[[], None]) -> PeerWatch | None:
    if not base.database.is_shared:
        return None
    return PeerWatch(
        renew_interval=base.settings.lease.renew_interval,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        on_change=on_change,
    )


def name_gauges(metrics: Metrics, services: Services) -> None:
    """Tell what reads each gauge."""
    evaluation, dispatcher = services.evaluator.evaluation, services.dispatcher
    limit = evaluation.ready.parallelism

    def of_files(field: str) -> Iterable[Sample]:
        yield (), sum(getattr(row, field) for row in dispatcher.known)

    def of_pools(place: int) -> Iterable[Sample]:
        for name, slots in _pool_slots(evaluation).items():
            n = slots[place]
            if n is not None:
                yield (name,), n

    def of_loops(field: str) -> Iterable[Sample]:
        return [((loop.name,), getattr(loop, field) or 0.0) for loop in services.vitals.health().loops]

    metrics.gauge("dagbag_size", lambda: of_files("n_dags"))
    metrics.gauge("dag_processing.import_errors", lambda: of_files("n_errors"))
    metrics.gauge("dag_processing.file_path_queue_size", lambda: [((), dispatcher.jobs.n_waiting)])
    metrics.gauge("executor.open_slots", lambda: [((), (limit.capacity or 0) - limit.used)])
    metrics.gauge("executor.queued_tasks", lambda: [((), _in_state(evaluation)[TaskInstanceState.QUEUED])])
    metrics.gauge("executor.running_tasks", lambda: [((), _in_state(evaluation)[TaskInstanceState.RUNNING])])
    metrics.gauge("pool.open_slots", lambda: of_pools(0))
    metrics.gauge("pool.queued_slots", lambda: of_pools(1))
    metrics.gauge("pool.running_slots", lambda: of_pools(2))
    metrics.gauge("pool.deferred_slots", lambda: of_pools(3))
    metrics.gauge("scheduler.dagruns.running", lambda: [((), len(evaluation.runs))])
    metrics.gauge("triggers.running", lambda: [((), services.triggerer.n_triggers)])
    metrics.gauge("scheduler.loop_age_seconds", lambda: of_loops("age_seconds"))
    metrics.gauge("scheduler.loop_step_seconds", lambda: of_loops("step_seconds"))
    metrics.gauge("scheduler.stale_messages", lambda: [((), evaluation.pending.n_stale)])


def _in_state(evaluation: Evaluation) -> Counter[TaskInstanceState | None]:
    return Counter(task.state for task in list(evaluation.tries.values()))


def _pool_slots(evaluation: Evaluation) -> dict[str, tuple[int | None, int, int, int]]:
    """Return the open, queued, running and deferred slots of each pool; none are open of one without a limit."""
    taken: Counter[tuple[str, TaskInstanceState | None]] = Counter()
    for task in list(evaluation.tries.values()):
        taken[task.task.pool, task.state] += task.task.pool_slots
    return {
        name: (
            None if pool.capacity is None else pool.capacity - pool.taken,
            taken[name, TaskInstanceState.QUEUED],
            taken[name, TaskInstanceState.RUNNING],
            pool.deferred,
        )
        for name, pool in list(evaluation.ready.pools.items())
    }
