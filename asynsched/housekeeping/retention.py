"""The retention sweep: deletes what is kept no longer, in small batches.

It is one of the few parts that look at everything, which is why a scheduler does so once an hour only, and only at what
a setting limits. Several may sweep one database at once: what one has locked the others leave alone.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import anyio.to_thread
import structlog

from asynsched.clock import Clock
from asynsched.executors.log_paths import remove_logs
from asynsched.home import SOURCES
from asynsched.housekeeping.log_retention import LogRetention
from asynsched.housekeeping.retention_policy import RetentionPolicy, policy_of
from asynsched.housekeeping.source_files import SourceFiles
from asynsched.service import Service
from asynsched.settings import RetentionSettings
from asynsched.store.assets.events import delete_old_events
from asynsched.store.dags.versions import delete_unused_sources, delete_unused_versions, has_unused_sources
from asynsched.store.database import Database
from asynsched.store.runs.retention import delete_runs, delete_xcoms_of, old_runs, old_runs_with_xcoms
from asynsched.store.schedulers.audit import delete_old_audit

log = structlog.get_logger(__name__)

PAUSE = timedelta(milliseconds=50)
"""Between two batches: others write meanwhile."""
BATCH_RUNS = 100
"""Runs that are looked at together; how many of them are deleted together depends on their rows."""

Chore = Callable[[datetime], Awaitable[bool]]
"""Does one batch of its work, at an instant. Returns whether there may be more."""


class Sweep:
    """One sweep: a batch at each step, until nothing is left that is to go.

    Args:
        home: Where the logs and the laid out sources are.
        batch_rows: Rows that are deleted in one transaction, about.

    Attributes:
        deleted: How much of each kind has gone so far.
    """

    def __init__(self, policy: RetentionPolicy, *, database: Database, home: Path, batch_rows: int) -> None:
        self._policy = policy
        self._database = database
        self._home = home
        self._batch_rows = batch_rows
        self.deleted: Counter[str] = Counter()
        self._left: deque[Chore] = deque(self._chores())

    async def step(self, now: datetime) -> bool:
        """Delete a batch. Returns whether there may be more."""
        if self._left and not await self._left[0](now):
            self._left.popleft()
        return bool(self._left)

    def _chores(self) -> list[Chore]:
        policy, chores = self._policy, list[Chore]()
        if not policy.runs.is_open:
            chores.append(self._runs)
        if not policy.xcoms.is_open:
            chores.append(self._xcoms)
        if policy.asset_events is not None:
            chores.append(partial(self._rows, "asset_events", delete_old_events, policy.asset_events))
        if policy.audit is not None:
            chores.append(partial(self._rows, "audit", delete_old_audit, policy.audit))
        if policy.versions is not None:
            chores.append(partial(self._rows, "versions", delete_unused_versions, policy.versions))
            chores += [self._sources, SourceFiles(self._home / SOURCES, self._database).sweep]
        if not (policy.logs.is_open and policy.runs.is_open):
            chores.append(LogRetention(self._home, self._database, policy.logs, self.deleted).sweep)
        return chores

    async def _runs(self, now: datetime) -> bool:
        found = await self._database.read(old_runs, self._policy.runs, limit=BATCH_RUNS)
        if not found:
            return False
        ids = [run.id for run in found]
        deleted = await self._database.write(delete_runs, ids, max_rows=self._batch_rows)
        await anyio.to_thread.run_sync(remove_logs, self._home, [run.key for run in deleted.runs])
        self.deleted["runs"] += len(deleted.runs)
        return deleted.n_rows > 0

    async def _xcoms(self, now: datetime) -> bool:
        found = await self._database.read(old_runs_with_xcoms, self._policy.xcoms, limit=BATCH_RUNS)
        if not found:
            return False
        ids = [run.id for run in found]
        n = await self._database.write(delete_xcoms_of, ids, max_rows=self._batch_rows)
        self.deleted["xcoms"] += n
        return n > 0

    async def _rows(self, kind: str, delete: Callable[..., int], before: datetime, now: datetime) -> bool:
        n = await self._database.write(delete, before=before, limit=self._batch_rows)
        self.deleted[kind] += n
        return n == self._batch_rows

    async def _sources(self, now: datetime) -> bool:
        # Also those that an earlier sweep has left, which was stopped after it had deleted their versions.
        if await self._database.read(has_unused_sources):
            self.deleted["sources"] += await self._database.write(delete_unused_sources)
        return False


class RetentionSweeper(Service):
    """Sweeps at the start, and then once an interval."""

    name = "retention"

    def __init__(self, *, settings: RetentionSettings, database: Database, clock: Clock, home: Path) -> None:
        super().__init__(clock)
        self._settings = settings
        self._database = database
        self._home = home
        self._sweep: Sweep | None = None
        self._next_sweep_at: datetime | None = None

    async def tick(self, now: datetime) -> None:
        """Go on with the sweep that is under way, or begin the next one when it is due."""
        if self._sweep is None and (self._next_sweep_at is None or now >= self._next_sweep_at):
            policy = policy_of(self._settings, now)
            rows = self._settings.batch_rows
            self._sweep = Sweep(policy, database=self._database, home=self._home, batch_rows=rows)
            self._next_sweep_at = now + timedelta(seconds=self._settings.interval)
        if self._sweep is not None and not await self._sweep.step(now):
            found = {f"n_{kind}": n for kind, n in sorted(self._sweep.deleted.items()) if n}
            if found:
                log.info("retention.swept", **found)
            self._sweep = None
        self.due_at = self._next_sweep_at if self._sweep is None else self.clock.now() + PAUSE
