"""Makes the services of a scheduler and connects them."""

from collections.abc import Callable
from datetime import timedelta

from asynsched.assembly.claim import Claim, make_claim
from asynsched.assembly.evaluating import make_evaluator
from asynsched.assembly.foundation import Foundation
from asynsched.assembly.services import Services
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.heartbeat import ExecutorHeartbeat
from asynsched.executors.requests import RequestAnswerer
from asynsched.health import Vitals
from asynsched.home import SOURCES
from asynsched.housekeeping.bell_listener import BellListener
from asynsched.housekeeping.peer_watch import PeerWatch
from asynsched.housekeeping.retention import RetentionSweeper
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
    manual_runs = ManualRuns(database, clock, TimetableAsker(parser, database).manual_interval)
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
