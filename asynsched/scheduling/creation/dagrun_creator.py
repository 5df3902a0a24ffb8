"""The dagrun creator creates the due runs, from a heap of due times: a DAG that is not due costs nothing."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.channels import AssetsUpdated, Channels, DagChanged, FileChanged, RunCreated, RunEnded, RunsCreated
from asynsched.clock import Clock
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.scheduling.creation.scheduled_runs import Examined, examine_dags
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.assets import unexamined_dag_ids
from asynsched.store.dags.dags import scheduled_dag_ids
from asynsched.store.database import Database
from asynsched.store.schedulers import notify
from asynsched.timers import Timers, has_come

log = get_logger(__name__)

MAX_DUE_AT_ONCE = 1_000
"""Most DAGs that one tick takes from the heap; `max_dagruns_to_create_per_loop` limits how many it examines."""
ASK_AGAIN = timedelta(minutes=5)
"""How long a custom timetable has to plan its next runs, or a mapper to answer, before it is asked again."""


class DagRunCreator(Service):
    """Creates the runs that schedules and assets call for.

    Args:
        tell_as: Returns the origin under which to notify other schedulers of new runs, so that one with room claims
            them; None if there are no others.
    """

    name = "dagrun creator"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        *,
        tell_as: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(clock)
        self._tell_as = tell_as
        self.interval = timedelta(seconds=settings.sweep_interval)
        self._max_created_at_once = settings.max_dagruns_to_create_per_loop
        self._channels = channels
        self._database = database
        self._due: Timers[datetime, str] = Timers()
        self._changed: dict[str, None] = {}
        self._untold: set[str] = set()
        """DAGs that a message reported as changed. Once they are examined, their active runs are told."""
        self._held_back: set[str] = set()
        self._unanswered: set[str] = set()
        self._assets_were_updated = False
        self._asked: dict[str, tuple[int, datetime]] = {}
        """What the code of a DAG was asked about last, as `Examined.asks_about`, and when."""
        self._sweep_at: datetime | None = None
        channels.dag_changes.wakes(self.wake)

    @property
    def is_idle(self) -> bool:
        """Whether every changed or due DAG has been examined."""
        has_news = self._sweep_at is None or self._changed or self._assets_were_updated
        is_due = (next_at := self._due.next_at) is not None and next_at <= self.clock.now()
        return not (has_news or is_due or self._channels.dag_changes.qsize())

    async def tick(self, now: datetime) -> None:
        """Examine a few of the DAGs that have changed or are due."""
        self._take_news()
        await self._sweep(now)
        await self._note_updated_assets()
        dag_ids = self._take_examinable(now)
        if dag_ids:
            examined = await self._examine(dag_ids, now)
            for dag_id in dag_ids:
                self._changed.pop(dag_id, None)
                if dag_id in self._untold:
                    self._untold.discard(dag_id)
                    self._channels.limits.offer(DagChanged(dag_id))
            for dag_id, result in examined.items():
                await self._take_up(dag_id, result)
        self.due_at = self._due.next_at
        if self._changed:
            self.wake()

    def _take_news(self) -> None:
        for message in self._channels.dag_changes.take():
            match message:
                case DagChanged(dag_id):
                    self._channels.asset_watchers.put_nowait(message)
                    self._changed.setdefault(dag_id)
                    self._untold.add(dag_id)
                case AssetsUpdated():
                    self._assets_were_updated = True
                case RunEnded(run, _) if run.dag_id in self._held_back:
                    self._changed.setdefault(run.dag_id)

    async def _sweep(self, now: datetime) -> None:
        """Find DAGs that no message reported, once per interval; at the start, find all that have a schedule."""
        interval = self.interval or timedelta()
        if not has_come(self._sweep_at, now, interval):
            return
        # The next sweep may come late, so look as far ahead as the one after it.
        until = None if self._sweep_at is None else now + 2 * interval
        for dag_id, due_at in await self._database.read(scheduled_dag_ids, until):
            self._schedule(dag_id, due_at or now)
        self._assets_were_updated = True
        self._changed.update(dict.fromkeys(sorted(self._held_back)))
        self._sweep_at = now + interval

    async def _note_updated_assets(self) -> None:
        """Examine the DAGs that have unexamined events of assets."""
        if self._assets_were_updated:
            self._changed.update(dict.fromkeys(await self._database.read(unexamined_dag_ids)))
            self._assets_were_updated = False

    def _take_examinable(self, now: datetime) -> list[str]:
        """Return the DAGs that have waited longest for examination. They stay noted until it is done."""
        for dag_id in islice(self._due.due(now), MAX_DUE_AT_ONCE):
            self._changed.setdefault(dag_id)
        return list(islice(self._changed, self._max_created_at_once))

    async def _examine(self, dag_ids: list[str], now: datetime) -> dict[str, Examined]:
        """Examine DAGs, and announce runs that were created by an earlier examination whose answer was lost."""
        again = sorted(self._unanswered.intersection(dag_ids))
        self._unanswered.update(dag_ids)
        examined = await self._database.write(_examine, dag_ids, now, self._tell_as())
        for dag_id in again:
            await self._channels.runs.put(RunsCreated(dag_id))
        self._unanswered.difference_update(dag_ids)
        return examined

    async def _take_up(self, dag_id: str, result: Examined) -> None:
        self._held_back.discard(dag_id)
        if result.error:
            log.warning("dag.unschedulable", dag_id=dag_id, error=result.error)
        if result.asks:
            self._ask(dag_id, result)
        else:
            self._asked.pop(dag_id, None)
        for reason in result.unmapped:
            log.warning("partition.unmapped", dag_id=dag_id, reason=reason)
        if result.has_more:
            self._changed.setdefault(dag_id)
        for _ in filter(None, (result.triggered, *result.of_partitions)):
            self.metrics.count("asset.triggered_dagruns")
        for run_id in result.run_ids:
            log.info("run.created", dag_id=dag_id, run_id=run_id)
            await self._channels.runs.put(RunCreated(DagRunKey(dag_id, run_id)))
        if result.is_held_back:
            self._held_back.add(dag_id)
        self._schedule(dag_id, result.due_at)

    def _ask(self, dag_id: str, result: Examined) -> None:
        """Parse a DAG's file, which asks its timetable for more runs or its mappers for keys, unless just requested.

        The new plan marks the DAG as changed. If the file cannot be parsed, the request is repeated later.
        """
        now = self.clock.now()
        about, asked_at = self._asked.get(dag_id, (None, now))
        if about != result.asks_about or has_come(asked_at + ASK_AGAIN, now, ASK_AGAIN):
            self._asked[dag_id] = result.asks_about, now
            self._channels.file_changes.offer(FileChanged(result.asks, forced=True))

    def _schedule(self, dag_id: str, due_at: datetime | None) -> None:
        if due_at is None:
            self._due.disarm(dag_id)
        else:
            self._due.arm(due_at, dag_id)


def _examine(conn: Connection, dag_ids: list[str], now: datetime, tell_as: str | None) -> dict[str, Examined]:
    examined = examine_dags(conn, sorted(dag_ids), now)
    if tell_as is not None:
        made = [(dag_id, run_id) for dag_id, found in examined.items() for run_id in found.run_ids]
        notify(conn, *(Hint("run", *key, origin=tell_as) for key in made))
    return examined
