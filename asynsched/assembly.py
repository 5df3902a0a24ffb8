"""Makes the services of a scheduler and connects them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.heartbeat import ExecutorHeartbeat
from asynsched.executors.requests import RequestAnswerer
from asynsched.health import Vitals
from asynsched.home import SOURCES
from asynsched.housekeeping.bell_listener import BellListener
from asynsched.housekeeping.lease import LeaseKeeper
from asynsched.housekeeping.loop_beat import LoopBeat
from asynsched.housekeeping.loop_lease import LoopLease
from asynsched.housekeeping.peer_watch import PeerWatch
from asynsched.housekeeping.retention import RetentionSweeper
from asynsched.metrics.base import Metrics, NoMetrics
from asynsched.parsing.dispatcher import ParseDispatcher
from asynsched.parsing.freshness import runtime_of
from asynsched.parsing.parse_claims import ParseClaims
from asynsched.parsing.processes.informed_parser import InformedParser
from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.parsing.processes.timetable_asker import TimetableAsker
from asynsched.parsing.watching.watcher import Watcher
from asynsched.scheduling.callback_runner import CallbackRunner
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.scheduling.creation.runs_by_tasks import OPERATION, RunsByTasks
from asynsched.scheduling.creation.triggering import ManualRuns
from asynsched.scheduling.deadline_watcher import DeadlineWatcher
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.triggerer.triggerer import Triggerer
from asynsched.scheduling.versions import VersionCache
from asynsched.service import Availability, Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.direct_database import InlineDatabase
from asynsched.store.engines.sqlite_database import SqliteDatabase
from asynsched.store.engines.urls import parse_url


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a scheduler. `producers` make work and stop first; `consumers` finish it and stop last."""

    executor: Executor
    evaluator: DependencyEvaluator
    creator: DagRunCreator
    dispatcher: ParseDispatcher
    parser: SandboxParser
    callbacks: CallbackRunner
    deadlines: DeadlineWatcher
    triggerer: Triggerer
    heartbeat: ExecutorHeartbeat
    manual_runs: ManualRuns
    lease: LeaseKeeper | None
    vitals: Vitals
    producers: tuple[Service, ...]
    consumers: tuple[Service, ...]

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


def assemble(
    *,
    settings: Settings,
    channels: Channels,
    database: Database,
    database_url: str | None,
    clock: Clock,
    make_executor: Callable[[ExecutorContext], Executor],
    scheduler_id: str,
    lease_epoch: int,
    waiters: RunWaiters,
    on_lease_lost: Callable[[], None],
    in_threads: bool = True,
    metrics: Metrics | None = None,
) -> Services:
    """Return the services, connected and not yet running.

    Args:
        database_url: For the lease's own connection; None renews the lease on the loop, through `database`.
        on_lease_lost: Called on the loop, once, when another scheduler may take the runs.
        metrics: What takes the figures; None: nobody does.
        in_threads: Whether long computations leave the loop; in a simulation no thread may decide an order.
    """
    home = settings.home_path
    parser = SandboxParser(settings)
    manual_runs = ManualRuns(database, clock, TimetableAsker(parser, database).manual_interval)
    runs_by_tasks = RunsByTasks(database, channels, clock, manual_runs)
    answerer = RequestAnswerer(database, clock, {OPERATION: runs_by_tasks.answer})
    heartbeat = ExecutorHeartbeat(channels=channels, clock=clock, answerer=answerer)
    executor = make_executor(
        ExecutorContext(
            home=home,
            settings=settings,
            clock=clock,
            scheduler_id=scheduler_id,
            report=heartbeat.report,
            answer=heartbeat.answer,
        )
    )
    heartbeat.drive(executor)
    versions = VersionCache(database, home / SOURCES, settings.dags_path, in_thread=in_threads)
    peers, lease = None, None
    if database.is_shared:
        peers = PeerWatch(
            renew_interval=settings.lease.renew_interval,
            channels=channels,
            database=database,
            clock=clock,
            scheduler_id=scheduler_id,
            on_change=lambda: lease.renew_soon() if lease is not None else None,
        )

    def has_peers() -> bool:
        return peers is not None and peers.n_peers > 0

    evaluator = DependencyEvaluator(
        settings=settings,
        channels=channels,
        database=database,
        clock=clock,
        versions=versions,
        parallelism=executor.parallelism,
        executors=executor.capacities,
        scheduler_id=scheduler_id,
        lease_epoch=lease_epoch,
        has_peers=has_peers,
    )
    callbacks = CallbackRunner(
        settings=settings,
        channels=channels,
        database=database,
        clock=clock,
        versions=versions,
        scheduler_id=scheduler_id,
    )
    deadlines = DeadlineWatcher(
        settings=settings,
        channels=channels,
        database=database,
        clock=clock,
        lease_epoch=lease_epoch,
        stored_until=evaluator.stored_until,
    )
    triggerer = Triggerer(channels=channels, clock=clock, block_timeout=settings.trigger_block_timeout)
    heartbeat.serve_hosts(triggerer.answer)
    creator = DagRunCreator(
        settings=settings,
        channels=channels,
        database=database,
        clock=clock,
        tell_as=lambda: scheduler_id if has_peers() else None,
    )
    claims = ParseClaims(database, clock, scheduler_id, runtime_of(settings)) if database.is_shared else None
    dispatcher = ParseDispatcher(settings, channels, database, clock, InformedParser(parser, database, clock), claims)
    availability = Availability(clock)
    if database_url is not None:
        lease = LeaseKeeper(
            settings=settings.lease,
            database_url=database_url,
            home_is_claim=parse_url(database_url).backend != "postgresql",
            clock=clock,
            scheduler_id=scheduler_id,
            lease_epoch=lease_epoch,
            executor=executor,
            availability=availability,
            on_lost=on_lease_lost,
        )
        beat: Service = LoopBeat(clock=clock, lease=lease)
    else:
        beat = LoopLease(
            settings=settings.lease,
            database=database,
            home_is_claim=isinstance(database, SqliteDatabase | InlineDatabase),
            clock=clock,
            scheduler_id=scheduler_id,
            lease_epoch=lease_epoch,
            executor=executor,
            on_lost=on_lease_lost,
        )
    vitals = Vitals(clock, scheduler_id, settings.monitor.longest_step)
    listeners: tuple[Service, ...] = (BellListener(home=home, channels=channels, clock=clock, health=vitals.health),)
    if database_url is not None and (url := parse_url(database_url)).backend == "postgresql":
        from asynsched.housekeeping.notification_listener import (
            NotificationListener,
        )  # its driver, only where it is used

        listeners += (NotificationListener(url=url, channels=channels, clock=clock, scheduler_id=scheduler_id),)
    if database.is_shared:
        waiters.look_into(database)
    sweeper = RetentionSweeper(settings=settings.retention, database=database, clock=clock, home=home)
    producers = (Watcher(settings, channels, clock), dispatcher, creator, sweeper, *listeners)
    consumers = (heartbeat, evaluator, callbacks, deadlines, triggerer, waiters, beat, *filter(None, [peers]))
    vitals.watch((*producers, *consumers))
    if lease is not None:
        vitals.watch_pulse("lease", lease.pulse, timedelta(seconds=settings.lease.renew_interval))
    services = Services(
        executor=executor,
        evaluator=evaluator,
        creator=creator,
        dispatcher=dispatcher,
        parser=parser,
        callbacks=callbacks,
        deadlines=deadlines,
        triggerer=triggerer,
        heartbeat=heartbeat,
        manual_runs=manual_runs,
        lease=lease,
        vitals=vitals,
        producers=producers,
        consumers=consumers,
    )
    for service in (*services.producers, *services.consumers):
        service.availability = availability
        service.metrics = metrics or NoMetrics()
    return services
