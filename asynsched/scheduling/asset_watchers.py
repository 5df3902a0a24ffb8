"""Keeps the triggers of asset watchers running, and stores their events: each updates assets, as a task does.

The triggerer runs them beside the triggers of tasks. Each trigger belongs to one scheduler; a scheduler takes
free triggers, among them the triggers of a scheduler that is gone. A host repeats an outcome until it learns that it is
stored, so no event is lost when a scheduler restarts, and the event's id keeps it from being stored twice.
"""

from datetime import datetime, timedelta

from asynsched.channels import AssetsUpdated, Channels, OutcomeStored, TriggerFired, TriggerUnwanted, TriggerWanted
from asynsched.clock import Clock
from asynsched.errors import DagError, NotFound
from asynsched.executors.tokens import row_of_watcher, watcher_id
from asynsched.lease.expiry import Lease
from asynsched.loggers import get_logger
from asynsched.protocol.messages import TriggerOutcome, TriggerSpec
from asynsched.scheduling.loading import VersionCache
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.watchers import WatchedTrigger, assign_triggers, store_outcomes, watched_triggers
from asynsched.timers import has_come

log = get_logger(__name__)


class AssetWatchers(Service):
    """Takes and leaves the triggers of watchers, and stores their outcomes."""

    name = "asset watchers"

    def __init__(
        self, settings: Settings, channels: Channels, database: Database, clock: Clock, *, versions: VersionCache,
        lease: Lease,
    ) -> None:  # fmt: skip
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._channels = channels
        self._database = database
        self._versions = versions
        self._lease = lease
        self._running: dict[int, TriggerWanted] = {}
        self._outcomes: list[TriggerOutcome] = []
        """Outcomes that are not stored yet."""
        self._may_have_changed = True
        self._look_at: datetime | None = None
        channels.asset_watchers.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether all changes of DAGs are taken into account, and all events are stored."""
        return not self._may_have_changed and self.are_reports_stored

    @property
    def are_reports_stored(self) -> bool:
        """Whether all outcomes of triggers are stored."""
        return not (self._outcomes or self._channels.asset_watchers.qsize())

    async def recover(self) -> None:
        """Take up the triggers that an earlier scheduler of this home left, whose hosts may still run."""
        await self._look(self.clock.now())

    async def tick(self, now: datetime) -> None:
        """Store the outcomes of triggers, then start and stop triggers."""
        for message in self._channels.asset_watchers.take():
            if isinstance(message, TriggerFired):
                self._outcomes.append(message.outcome)
            else:
                self._may_have_changed = True
        if self._outcomes:
            await self._store(now)
        is_due = self.interval is None or has_come(self._look_at, now, self.interval)
        if self._may_have_changed or is_due:
            await self._look(now)

    async def _store(self, now: datetime) -> None:
        rows = [(row_of_watcher(outcome.id) or 0, outcome) for outcome in self._outcomes]
        await self._database.write(store_outcomes, rows, now)
        for row_id, outcome in rows:
            if outcome.kind == "error" and row_id in self._running:
                watcher = self._running[row_id].trigger.watcher
                log.warning("watcher.failed", watcher=watcher, error=outcome.detail, then="it is started again")
            self._channels.triggers.put_nowait(OutcomeStored(outcome.id, outcome.event_id))
        if any(outcome.kind == "event" for outcome in self._outcomes):
            self._channels.dag_changes.offer(AssetsUpdated())
        self._outcomes.clear()

    async def _look(self, now: datetime) -> None:
        """Take the free triggers that are wanted, and release the triggers that are no longer wanted."""
        self._may_have_changed = False
        scheduler_id = self._lease.scheduler_id
        try:
            found = await self._database.read(watched_triggers, scheduler_id)
            take = [trigger.id for trigger in found if trigger.is_wanted and trigger.is_free and not trigger.is_ours]
            leave = [trigger.id for trigger in found if trigger.is_ours and not trigger.is_wanted]
            unused = any(trigger.is_unused and trigger.is_free for trigger in found)
            if take or leave or unused:
                await self._database.write(assign_triggers, take, leave, scheduler_id, self._lease.epoch)
                found = await self._database.read(watched_triggers, scheduler_id)
            wanted = [await self._wanted(trigger) for trigger in found if trigger.is_wanted and trigger.is_ours]
        except BaseException:
            self._may_have_changed = True
            raise
        self._look_at = None if self.interval is None else now + self.interval
        self._tell({row_of_watcher(one.trigger.id) or 0: one for one in wanted if one is not None})

    async def _wanted(self, trigger: WatchedTrigger) -> TriggerWanted | None:
        """Return the order to run a trigger; None if its code cannot be read, which its DAG's next parse may change."""
        try:
            code = (await self._versions.get(trigger.version_id or 0)).code
        except (DagError, NotFound) as exc:
            log.warning("watcher.unreadable", watcher=trigger.watcher, error=str(exc))
            return None
        of_no_task = ("", "", "", -1, 1)
        spec = TriggerSpec(
            watcher_id(trigger.id), trigger.classpath, trigger.kwargs, *of_no_task, trigger.watcher, trigger.assets
        )
        return TriggerWanted(spec, code)

    def _tell(self, wanted: dict[int, TriggerWanted]) -> None:
        """Tell the triggerer about changes. A trigger whose code or assets have changed starts again."""
        same = {
            row_id
            for row_id, before in self._running.items()
            if row_id in wanted
            and wanted[row_id].code.sources == before.code.sources
            and wanted[row_id].trigger.assets == before.trigger.assets
        }
        for row_id, before in self._running.items():
            if row_id not in same:
                self._channels.triggers.put_nowait(TriggerUnwanted(before.trigger.id))
        for row_id, order in wanted.items():
            if row_id not in same:
                self._channels.triggers.put_nowait(order)
        self._running = wanted
