"""Makes the services of a scheduler and connects them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

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
from asynsched.lease.claim import Claim, make_claim
from asynsched.lease.expiry import Lease
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
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.loading import VersionCache
from asynsched.scheduling.places import Places
from asynsched.scheduling.run_waiters import RunWaiters
from asynsched.scheduling.slices import AT_ONCE
from asynsched.scheduling.triggerer import Triggerer
from asynsched.service import Availability, Service, Steps
from asynsched.services import Services
from asynsched.settings import Settings
from asynsched.states import TaskInstanceState
from asynsched.store.database import Database
from asynsched.store.engines.urls import DatabaseUrl, parse_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """A scheduler before it has services.

    Attributes:
        settings: All settings.
        channels: Connect the services.
        clock: Times everything.
        database: Has the state.
        database_url: For connections beside `database`; None where a program has passed an open database.
        lease: This scheduler's name, and the epoch of its runs.
        metrics: Take the figures.
        in_threads: Whether long computations leave the loop; in a simulation no thread may decide an order.
    """

    settings: Settings
    channels: Channels
    clock: Clock
    database: Database
    database_url: str | None
    lease: Lease
    metrics: Metrics = field(default_factory=NoMetrics)
    in_threads: bool = True

    @property
    def postgresql_url(self) -> DatabaseUrl | None:
        """Where PostgreSQL is; None for SQLite, and for a database that was passed open."""
        url = None if self.database_url is None else parse_url(self.database_url)
        return url if url is not None and url.backend == "postgresql" else None


MakeExecutor = Callable[[ExecutorContext], Executor]


def assemble(
    base: Foundation, *, make_executor: MakeExecutor, waiters: RunWaiters, on_lease_lost: Callable[[], None]
) -> Services:
    """Return the services, connected and not yet running.

    Args:
        waiters: Wakes callers that may wait for runs already.
        on_lease_lost: Called on the loop, once, when another scheduler may take the runs.
    """
    settings, channels, database, clock = base.settings, base.channels, base.database, base.clock
    availability, scheduler_id = Availability(clock), base.lease.scheduler_id
    parser = SandboxParser(settings)
    manual_runs = ManualRuns(database, clock, partial(manual_interval, parser, database))
    heartbeat, executor = _execution(base, manual_runs, make_executor)
    claim = _claim(base, executor, availability, on_lease_lost)
    versions = VersionCache(database, settings.home_path / SOURCES, settings.dags_path, in_thread=base.in_threads)
    evaluator = make_evaluator(base, versions, executor.parallelism, executor.capacities, claim.has_peers)
    vitals = Vitals(clock, scheduler_id, settings.monitor.longest_step)
    shared = (settings, channels, database, clock)
    services = Services(
        parser=parser,
        executor=executor,
        manual_runs=manual_runs,
        vitals=vitals,
        steps=Steps(),
        watcher=Watcher(settings, channels, clock),
        dispatcher=ParseDispatcher(*shared, InformedParser(parser, database, clock), _parse_claims(base, claim)),
        creator=DagRunCreator(*shared, tell_as=lambda: scheduler_id if claim.has_peers() else None),
        sweeper=RetentionSweeper(settings=settings.retention, database=database, clock=clock, home=settings.home_path),
        listeners=_listeners(base, vitals),
        heartbeat=heartbeat,
        evaluator=evaluator,
        callbacks=CallbackRunner(*shared, versions=versions, scheduler_id=scheduler_id),
        deadlines=DeadlineWatcher(*shared, lease_epoch=base.lease.epoch, reports_stored=evaluator.reports_stored),
        triggerer=Triggerer(channels=channels, clock=clock, block_timeout=settings.trigger_block_timeout),
        waiters=waiters,
        claim=claim,
    )
    _connect(services, base, availability)
    return services


def _execution(
    base: Foundation, manual_runs: ManualRuns, make_executor: MakeExecutor
) -> tuple[ExecutorHeartbeat, Executor]:
    """Return the executor, and the heartbeat that drives it."""
    runs_by_tasks = RunsByTasks(base.database, base.channels, base.clock, manual_runs)
    answerer = RequestAnswerer(base.database, base.clock, {OPERATION: runs_by_tasks.answer})
    heartbeat = ExecutorHeartbeat(channels=base.channels, clock=base.clock, answerer=answerer)
    executor = make_executor(
        ExecutorContext(
            home=base.settings.home_path,
            settings=base.settings,
            clock=base.clock,
            scheduler_id=base.lease.scheduler_id,
            report=heartbeat.report,
            answer=heartbeat.answer,
            shares_database=base.database.is_shared,
            fail=heartbeat.fail,
        )
    )
    heartbeat.drive(executor)
    return heartbeat, executor


def _claim(
    base: Foundation, executor: Executor, availability: Availability, on_lease_lost: Callable[[], None]
) -> Claim:
    return make_claim(
        base.lease,
        database=base.database,
        database_url=base.database_url,
        channels=base.channels,
        clock=base.clock,
        tell_executor=executor.renew_lease,
        availability=availability,
        on_lost=on_lease_lost,
    )


def _parse_claims(base: Foundation, claim: Claim) -> ParseClaims | None:
    """Return what divides parses among several schedulers; None where there is one."""
    if claim.peers is None:
        return None
    runtime = runtime_of(base.settings)
    return ParseClaims(base.database, base.clock, base.lease.scheduler_id, runtime, claim.peers.silent)


def _listeners(base: Foundation, vitals: Vitals) -> tuple[Service, ...]:
    """Return the services that hear other processes: commands on this machine, and on PostgreSQL all machines."""
    home, channels, clock = base.settings.home_path, base.channels, base.clock
    bell = BellListener(home=home, channels=channels, clock=clock, health=vitals.health)
    url = base.postgresql_url
    if url is None:
        return (bell,)
    # Its driver is loaded only where it is used.
    from asynsched.housekeeping.notification_listener import NotificationListener

    return (bell, NotificationListener(url=url, channels=channels, clock=clock, scheduler_id=base.lease.scheduler_id))


def _connect(services: Services, base: Foundation, availability: Availability) -> None:
    """Give all services the objects that they share, some services each other, and health the pulses of all."""
    vitals, thread = services.vitals, services.claim.thread
    services.heartbeat.serve_hosts(services.triggerer.answer)
    if base.database.is_shared:
        services.waiters.look_into(base.database)
    for service in (*services.producers, *services.consumers):
        service.availability, service.metrics, service.steps = availability, base.metrics, services.steps
        vitals.watch(service.name, service.pulse, partial(getattr, service, "interval"))
    if thread is not None:
        vitals.watch("lease", thread.pulse, lambda: thread.interval)
    vitals.watch_parses(services.dispatcher.under_way.long_ones)


def make_evaluator(
    base: Foundation,
    versions: VersionCache,
    parallelism: int,
    executors: Mapping[str, int],
    has_peers: Callable[[], bool],
) -> DependencyEvaluator:
    """Return an evaluator without runs.

    Args:
        base: The settings, database and clock that it uses.
        versions: Those of the DAGs whose runs it takes in.
        parallelism: How many tasks may run at once.
        executors: How many of them each of several executors runs, by the names that tasks give.
        has_peers: Whether there are other schedulers now.
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
    return DependencyEvaluator(settings, base.clock, intake)


def name_gauges(metrics: Metrics, services: Services) -> None:
    """Name the function that reads each gauge."""
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
    return Counter(task.state for task in list(evaluation.tries.awaited.values()))


def _pool_slots(evaluation: Evaluation) -> dict[str, tuple[int | None, int, int, int]]:
    """Return the open, queued, running and deferred slots of each pool; open is None for a pool without a limit."""
    taken: Counter[tuple[str, TaskInstanceState | None]] = Counter()
    for task in list(evaluation.tries.awaited.values()):
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
