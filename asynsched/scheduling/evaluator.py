"""The dependency evaluator: turns what has happened into stored state changes, and those into launches."""

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from asynsched.channels import (
    BackfillChanged,
    Channels,
    DagChanged,
    PoolsChanged,
    RunCancelled,
    RunCreated,
    RunEdited,
    TaskFinished,
    TriggerFired,
)
from asynsched.clock import Clock, new_token
from asynsched.errors import DagError, NotFound
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.scheduling.announcements import Announcer
from asynsched.scheduling.creation.failing_dags import announce_paused, apply_and_pause, failed_runs
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.scheduling.evaluation.ready_queues import ReadyQueues
from asynsched.scheduling.evaluation.run_limits import RunLimits
from asynsched.scheduling.evaluation.standstill import stand_still
from asynsched.scheduling.requests.request_taking import RequestTaker
from asynsched.scheduling.run_intake import RunIntake
from asynsched.scheduling.versions import VersionCache
from asynsched.scheduling.watermark import Watermark
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.pools import pool_capacities, pools_including_deferred
from asynsched.store.run_queue import QueuedRun, owned_runs, take_over_runs
from sandbox.protocol import Started

log = structlog.get_logger(__name__)

MAX_EVENTS = 2_000
"""Events taken up in one pass, so that no batch grows without bound."""


class DependencyEvaluator(Service):
    """Owns the active runs of this scheduler.

    `stored_until`: until when everything that was reported to it is stored.
    """

    name = "evaluator"

    def __init__(
        self,
        *,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        versions: VersionCache,
        parallelism: int,
        executors: Mapping[str, int],
        scheduler_id: str,
        lease_epoch: int,
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels
        self._database = database
        self._scheduler_id = scheduler_id
        self._lease_epoch = lease_epoch
        self._max_failed_runs = settings.max_consecutive_failed_dag_runs_per_dag
        self._pending = PendingBatch(scheduler_id, lease_epoch)
        self._evaluation = Evaluation(
            queues=ReadyQueues(parallelism, settings.keep_slots),
            limits=RunLimits(settings.max_active_tasks_per_dag, executors),
            pending=self._pending,
            new_token=new_token,
            max_machine_kills=settings.max_machine_kills,
        )
        self._intake = RunIntake(
            database=database,
            versions=versions,
            evaluation=self._evaluation,
            channels=channels,
            max_started_at_once=settings.max_dagruns_per_loop_to_schedule,
            owner=(scheduler_id, lease_epoch),
        )
        self._announcer = Announcer(channels, self._intake, self._evaluation.obstacle, settings.max_map_length)
        self._requests = RequestTaker(database=database, evaluation=self._evaluation, lease_epoch=lease_epoch)
        self._are_requests_due = True
        self._disturbed: dict[int, DagRunKey] = {}
        self._news: deque[RunCreated | RunCancelled | RunEdited | BackfillChanged | DagChanged | PoolsChanged] = deque()
        self._is_stopping = False
        self._sweep_at: datetime | None = None
        self.stored_until = Watermark(self.wake)
        channels.active_runs.wakes(self.wake)
        channels.finished.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether no run is active, and none could start."""
        return self._is_done and not self._evaluation.runs

    @property
    def is_at_a_standstill(self) -> bool:
        """Whether runs are active, and none of them goes on unless somebody does something."""
        return self._is_done and stand_still(self._evaluation.runs.values())

    @property
    def _is_done(self) -> bool:
        return self.is_settled and not self._has_news and not self._intake.may_start_any

    @property
    def _has_news(self) -> bool:
        """Whether somebody has done something that is not acted on yet."""
        return bool(self._disturbed or self._are_requests_due or self._news or self._channels.active_runs.qsize())

    @property
    def is_settled(self) -> bool:
        """Whether everything that was reported is stored."""
        return self._pending.is_empty and not self._channels.finished.qsize()

    def stop_granting(self) -> None:
        """Start no task from now on, and keep nothing back: the scheduler is stopping."""
        self._is_stopping = True
        self.wake()

    async def recover(self, held: Held, now: datetime) -> None:
        """Take up the runs of schedulers that are gone, and the tries that the executor still holds of them."""
        await self._read_pools()
        runs = await self._database.write(take_over_runs, self._scheduler_id, self._lease_epoch, now)
        for row in runs:
            await self._take_up(row, held, now)
        if runs:
            log.info("runs.taken_over", n_runs=len(runs))
        self._announcer.end_unclaimed(held, self._evaluation.tokens)
        # What is deferred is stored so already, and hosts that run its triggers may ask at once.
        self._announcer.announce_triggers(self._pending)

    async def tick(self, now: datetime) -> None:
        """Take up what has happened, decide what follows, store it, say it."""
        began_at = now
        if not self._waits_for_company(now):
            await self._store()
        await self._reload_disturbed(now)
        await self._take_news(now)
        await self._take_requests(now)
        for message in self._channels.finished.take(MAX_EVENTS):
            self._take_event(message, now)
        has_taken_all = not self._channels.finished.qsize()
        self._evaluation.time_passed(now)
        await self._sweep(now)
        if not self._is_stopping:
            # What was read meanwhile may be younger than this pass: nothing is to start before it was queued.
            now = max(now, self.clock.now())
            await self._intake.start(now)
            self._evaluation.grant(now)
        if not self._waits_for_company(now):
            await self._store()
        if has_taken_all:
            self.stored_until.rise(began_at)
        may_start_more = self._intake.may_start_any and not self._is_stopping
        if self._channels.finished.qsize() or self._has_news or may_start_more:
            self.wake()
        self.due_at = min((at for at in (self._evaluation.next_timer, self._pending.due_at) if at), default=None)

    # What has happened

    async def _take_news(self, now: datetime) -> None:
        self._news.extend(self._channels.active_runs.take())
        created = [message.run for message in self._news if isinstance(message, RunCreated)]
        if created:
            await self._intake.take_created(created)
        edited = {message.run for message in self._news if isinstance(message, RunEdited)}
        if edited:
            self._are_requests_due = True
            await self._intake.follow_edits(edited, now)
        changed = {message.dag_id for message in self._news if isinstance(message, DagChanged)}
        if changed:
            await self._intake.read_dags(changed)
        # Each is dropped only once it was acted on: the database may go away between two of them.
        while self._news:
            match self._news[0]:
                case BackfillChanged(dag_id):
                    await self._intake.follow_backfills(dag_id)
                case PoolsChanged():
                    await self._read_pools()
                case RunCancelled(run):
                    await self._requests.cancel(run, now)
                    self._are_requests_due = True
                    await self._intake.follow_edits({run}, now)
            self._news.popleft()

    async def _take_requests(self, now: datetime) -> None:
        """Do what people want done with runs that are active here."""
        if not self._are_requests_due:
            return
        # What is in memory is stored first: a request changes what is stored, and that is then taken up anew.
        await self._store()
        self._are_requests_due = await self._requests.take(self._disturbed, now)
        await self._reload_disturbed(now)

    def _take_event(self, message: TaskFinished | TriggerFired, now: datetime) -> None:
        if isinstance(message, TriggerFired):
            self._evaluation.trigger_fired(message.outcome, now)
        elif isinstance(message.event, Started):
            self._evaluation.try_started(message.event, now)
        else:
            self._evaluation.try_ended(message.event, now)

    async def _sweep(self, now: datetime) -> None:
        """Now and then, look for what no message told of."""
        if self._sweep_at is not None and now < self._sweep_at:
            return
        await self._read_pools()
        await self._intake.sweep(now)
        self._are_requests_due = True
        for row in await self._database.read(owned_runs, self._lease_epoch):
            if row.key not in self._evaluation.runs and row.id not in self._pending.runs:
                self._disturbed[row.id] = row.key
        self._sweep_at = now + (self.interval or timedelta())

    async def _read_pools(self) -> None:
        capacities = await self._database.read(pool_capacities)
        self._evaluation.queues.resize_pools(capacities, await self._database.read(pools_including_deferred))

    # Runs that others have begun or changed

    async def _take_up(self, row: QueuedRun, held: Held | None, now: datetime) -> None:
        """Take up a running run as it is stored.

        Args:
            held: What the executor holds, where an earlier scheduler began the run; None: this one did, and its
                executor knows its tries.
        """
        try:
            run = await self._intake.load(row)
        except (NotFound, DagError) as exc:
            log.warning("run.unusable", dag_id=row.dag_id, run_id=row.run_id, reason=str(exc))
            return
        tasks = await self._intake.load_tasks(run)
        let_go = self._evaluation.drop_run(run.key)
        self._intake.resumed(row)
        self._evaluation.resume_run(run, tasks, now)
        self._are_requests_due |= self._requests.concern(run.key)
        if held is not None:
            self._announcer.settle(tasks, held, now)
        else:
            self._announcer.end_tries(let_go, tasks)

    async def _reload_disturbed(self, now: datetime) -> None:
        """Take runs up anew whose rows somebody else has changed; forget those that are no longer ours."""
        if not self._disturbed:
            return
        # What was decided of them is stored first: what is forgotten is forgotten unchanged.
        await self._store()
        owned = {row.id: row for row in await self._database.read(owned_runs, self._lease_epoch)}
        for run_id, key in list(self._disturbed.items()):
            if run_id in owned:
                await self._take_up(owned[run_id], None, now)
            else:
                self._announcer.end_tries(self._evaluation.drop_run(key))
                self._intake.ended(key)
                await self._intake.follow_edits({key}, now)
            del self._disturbed[run_id]

    # What follows

    def _waits_for_company(self, now: datetime) -> bool:
        return not self._is_stopping and self._pending.waits_for_company(now)

    async def _store(self) -> None:
        """Store what was decided, then say it. When the database is away, the next tick tries again."""
        pending = self._pending
        if pending.is_empty:
            return
        failed = failed_runs(pending.ended_runs, self._max_failed_runs)
        stale, paused = await self._database.write(apply_and_pause, pending.batch(), failed)
        pending.mark_stored()
        for task in pending.tasks.values():
            if task.run.id in stale.run_ids:
                self._disturbed[task.run.id] = task.run.key
        for run in pending.runs.values():
            if run.id in stale.run_ids:
                self._disturbed[run.id] = run.key
        self._announcer.announce(pending, stale)
        announce_paused(self._channels, paused)
        if any(self._requests.concern(run.key) for run in pending.ended_runs):
            self._are_requests_due = True
            self.wake()
        pending.clear()
        if self._disturbed:
            self.wake()
