"""The dependency evaluator: turns events into stored state changes, and those into launches."""

from datetime import datetime, timedelta

import anyio
from anyio.abc import TaskStatus

from asynsched.channels import (
    BackfillChanged,
    DagChanged,
    LimitNews,
    PoolsChanged,
    RunCancelled,
    RunCreated,
    RunEdited,
    RunNews,
    RunsCreated,
    RunsOrphaned,
    RunWatched,
    SlotsFreed,
    TriggerFired,
    TryReported,
)
from asynsched.clock import Clock
from asynsched.errors import InvalidTransition
from asynsched.executors.base import Adopt, Held
from asynsched.protocol.messages import Ended, Started
from asynsched.scheduling.announcements import Announcer, RunMetrics, TryLog
from asynsched.scheduling.deciding import decide_all
from asynsched.scheduling.evaluation.evaluation import stand_still
from asynsched.scheduling.intake import RunIntake
from asynsched.scheduling.places import Place
from asynsched.scheduling.storing import Storing, announce_paused
from asynsched.scheduling.transfers import RunTransfers
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.runs.pools import pool_capacities, pool_use_elsewhere, pools_including_deferred

MAX_EVENTS = 2_000
"""Events taken up in one pass, so that no batch grows without bound."""
MOST_GRANTED = 250
"""Tasks granted their slots, stored and launched in one pass: a few milliseconds of work for each of these steps."""


class DependencyEvaluator(Service):
    """Owns the active runs of this scheduler.

    Args:
        intake: Admits runs to the evaluation, which gathers its decisions for this scheduler, under its lease.

    Attributes:
        evaluation: The active runs, for reading only.
        stored_until: The instant of the monotonic clock up to which all reports are stored.
    """

    name = "evaluator"

    def __init__(self, settings: Settings, clock: Clock, intake: RunIntake, adopt: Adopt) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels = intake.channels
        self._database = intake.database
        self.evaluation = evaluation = intake.evaluation
        self._pending = evaluation.pending
        self._intake = intake
        self._places = intake.places
        max_failed_runs = settings.max_consecutive_failed_dag_runs_per_dag
        self._storing = Storing(intake.database, clock, evaluation.ready, max_failed_runs)
        self._try_log = TryLog(tells_all=settings.log.level == "debug")
        self._announcer = Announcer(channels, evaluation.ready.obstacle, settings.max_map_length, clock.boot())
        kill_time = timedelta(seconds=settings.lease.kill_time)
        self._transfers = RunTransfers(intake, self._announcer, self._store, kill_time, adopt)
        self._news: list[RunNews | LimitNews] = []
        self._is_stopping = False
        self._are_slots_freed = False
        """Whether other schedulers have given back slots since theirs were last counted."""
        self._has_started_all = False
        self._swept_at: datetime | None = None
        self.stored_until = float("-inf")
        channels.runs.wakes(self.wake)
        channels.limits.wakes(self.wake)
        channels.reports.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether the evaluator has looked for waiting runs, and none is active or could start."""
        return self._has_started_all and self._is_done and not self.evaluation.runs

    @property
    def is_at_a_standstill(self) -> bool:
        """Whether runs are active, and none of them can progress soon without a user's intervention."""
        if self.evaluation.tries.are_ending or not (self._has_started_all and self._is_done):
            return False
        return stand_still(self.evaluation.runs.values(), self.clock.now())

    @property
    def _is_done(self) -> bool:
        return self.are_reports_stored and not self._has_news and not self._intake.may_start_any

    @property
    def n_runs(self) -> int:
        return len(self.evaluation.runs)

    @property
    def are_reports_stored(self) -> bool:
        """Whether all reports are stored."""
        return self._pending.is_empty and not self._channels.reports.qsize() and not self.evaluation.has_undecided

    def stop_granting(self) -> None:
        """Start no task from now on, and store every change without delay: the scheduler is stopping."""
        self._is_stopping = True
        self.wake()

    async def reports_stored(self) -> None:
        """Wait until all reports up to now are stored."""
        now = self.clock.monotonic()
        self.wake()
        await self.steps.until(lambda: self.stored_until >= now)

    async def recover(self, held: Held, now: datetime) -> None:
        """Take up the runs of schedulers that are gone, and the tries that the executor still holds of them."""
        await self._read_pools()
        await self._transfers.recover(held, now)
        self._announcer.end_strays(held, self.evaluation.tries.awaited)
        # Deferred task instances are already stored as deferred, and trigger hosts may ask for them at once.
        self._announcer.announce_wanted_triggers(self._pending)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await super().run(task_status=task_status)
        finally:
            self._try_log.stopped()

    async def tick(self, now: datetime) -> None:
        """Process events, decide their consequences, store the decisions, and announce them."""
        began_at = self.clock.monotonic()
        self._try_log.time_passed(now)
        self._has_started_all = has_granted_all = False
        await self._store_unless_young(now)
        await self._transfers.take_up_edited(now)
        await self._take_news(now)
        # Before other requests: those for a run that was taken over are done as the run is taken up. Its scheduler is
        # of another home, so the executor has found none of its tries at its start.
        self._are_slots_freed |= await self._transfers.adopt(Held(), now)
        await self._transfers.take_requests(now)
        await self._transfers.take_up_edited(now)
        has_taken_all = await self._take_events(now)
        self.evaluation.time_passed(now)
        await self._sweep(now)
        await decide_all(self.evaluation, now)
        if not self._is_stopping:
            # Runs read during this pass may be newer than `now`: no run may start before it was queued.
            now = max(now, self.clock.now())
            has_granted_all = await self._start_and_grant(now)
        await self._store_unless_young(now)
        if has_taken_all and not self._places.at(Place.EDITED):
            # Only without stale changes: these may have put ends back, to be decided again.
            self.stored_until = began_at
        self._has_started_all = has_granted_all and not self._is_stopping
        self._plan_next_pass()

    def _plan_next_pass(self) -> None:
        may_start_more = (self._intake.starts_any or not self._has_started_all) and not self._is_stopping
        if self._channels.reports.qsize() or self._has_news or may_start_more:
            self.wake()
        times = [self.evaluation.next_timer, self._pending.due_at, self._try_log.due_at]
        if not self._is_stopping:
            times += [self.evaluation.ready.retry_at, self._intake.next_claim, self._intake.next_start]
        self.due_at = min((at for at in times if at), default=None)

    @property
    def _has_news(self) -> bool:
        is_sent = self._channels.runs.qsize() or self._channels.limits.qsize()
        return bool(self._news or is_sent or self._transfers.has_work)

    # Events

    async def _take_news(self, now: datetime) -> None:
        # Messages stay here until all are acted on: the database may go away in between.
        self._news += (*self._channels.runs.take(), *self._channels.limits.take())
        created = [message.run for message in self._news if isinstance(message, RunCreated)]
        if created:
            await self._intake.take_created(created, now)
        edited = {message.run for message in self._news if isinstance(message, RunEdited)}
        if edited:
            self._transfers.expect_requests()
            await self._intake.follow_edits(edited, now)
        changed = {message.dag_id for message in self._news if isinstance(message, DagChanged)}
        if changed:
            await self._intake.read_dags(changed)
        self._are_slots_freed |= SlotsFreed() in self._news
        watched = {message.run for message in self._news if isinstance(message, RunWatched)}
        if watched:
            await self._storing.watch(watched, self._pending.scheduler_id, now)
        if PoolsChanged() in self._news:
            await self._read_pools()
        backfilled = {message.dag_id for message in self._news if isinstance(message, BackfillChanged | RunsCreated)}
        if backfilled:
            await self._intake.follow_backfills(backfilled, now)
        if RunsOrphaned() in self._news:
            self._transfers.expect_orphans()
        for message in [message for message in self._news if isinstance(message, RunCancelled)]:
            await self._transfers.cancel(message.run, now)
            self._transfers.expect_requests()
            await self._intake.follow_edits({message.run}, now)
            # Drop it at once: to cancel the run again would be another request.
            self._news.remove(message)
        self._news.clear()

    async def _take_events(self, now: datetime) -> bool:
        """Process the starts and ends of tries and triggers; return whether none is left."""
        if edited := self._places.at(Place.EDITED):
            raise InvalidTransition("run whose events are taken", edited[0].place, Place.ACTIVE)
        reports = self._channels.reports
        for _ in range(min(reports.qsize(), MAX_EVENTS)):
            # One by one: a cancellation in between must lose none, because they are stored after it.
            match reports.get_nowait():
                case TriggerFired(outcome):
                    self.evaluation.trigger_fired(outcome, now)
                case TryReported(Started() as started):
                    self.evaluation.try_started(started, now)
                case TryReported(Ended() as ended):
                    self.evaluation.try_ended(ended, now)
                    self._transfers.note_end(ended)
            await decide_all(self.evaluation, now)
        return not self._channels.reports.qsize()

    async def _sweep(self, now: datetime) -> None:
        """At intervals, look for changes that no message announced."""
        interval = self.interval or timedelta()
        if self._swept_at is not None and self._swept_at <= now < self._swept_at + interval:
            return
        await self._read_pools()
        await self._intake.sweep(now)
        self._transfers.expect_requests()
        self._transfers.expect_orphans()
        await self._transfers.find_unknown()
        self._transfers.warn_of_lingering(now)
        self._swept_at = now

    async def _read_pools(self) -> None:
        ready = self.evaluation.ready
        capacities = await self._database.read(pool_capacities)
        ready.resize_pools(capacities, await self._database.read(pools_including_deferred))
        if self._database.is_shared:
            including = frozenset(name for name, pool in ready.pools.items() if pool.include_deferred)
            ready.note_elsewhere(await self._database.read(pool_use_elsewhere, self._pending.lease_epoch, including))
        self._are_slots_freed = False

    # Decisions

    async def _start_and_grant(self, now: datetime) -> bool:
        """Start runs, and grant some of the ready tasks their slots; return whether none of them is left."""
        await self._intake.start(now)
        await decide_all(self.evaluation, now)
        self.evaluation.ready.try_again(now)
        if not self.evaluation.grant(now, MOST_GRANTED):
            return False
        if self._are_slots_freed and self.evaluation.ready.are_waiting:
            # Slots that others gave back matter only once a task waits, which may be long after.
            await self._read_pools()
            return self.evaluation.grant(now, MOST_GRANTED)
        return True

    async def _store_unless_young(self, now: datetime) -> None:
        if self._is_stopping or not self._pending.waits_for_more(now):
            await self._store()

    async def _store(self) -> None:
        """Store the decisions, then announce them. When the database is away, the next tick tries again."""
        pending = self._pending
        # A run that is being stopped is stored once all its tasks are decided, so that no crash leaves it half stopped.
        await decide_all(self.evaluation, self.clock.now())
        if pending.is_empty:
            return
        for run in pending.ended_runs:
            self._places.end(run.key)
        stored = await self._storing.store(pending, tell=self._intake.has_peers())
        self.evaluation.batch_stored(stored.settled, stored.retry_at, self.clock.now())
        stale = stored.stale
        pending.n_stale += len(stale.runs) + len(stale.tasks)
        RunMetrics(self.metrics).stored(pending, stale)
        self._try_log.stored(pending, stale, self.clock.now())
        pending.mark_stored()
        if stale:
            changed = {run.id: run for run in (*(task.run for task in pending.tasks.values()), *pending.runs.values())}
            for run_id in sorted(stale.run_ids & changed.keys()):
                self._places.disturb(changed[run_id].key, run_id)
        for run in pending.ended_runs:
            self._places.stored(run.key)
            self._transfers.run_ended(run.key)
        self._announcer.announce(pending, stale)
        announce_paused(self._channels, stored.paused)
        pending.clear()
        if stored.settled.refused:
            # Other tasks may take the slots that a refused task gave back.
            self.wake()
