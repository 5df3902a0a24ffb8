"""Claiming queued runs, where several schedulers want to start them."""

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec
import structlog

from asynsched.clock import jitter
from asynsched.errors import DagError, NotFound
from asynsched.scheduling.admission import Admission
from asynsched.scheduling.loading import VersionCache
from asynsched.states import DagRunState
from asynsched.store.database import Database
from asynsched.store.runs.queue import QueuedRun, claim_runs, queued_runs, runs_elsewhere

log = structlog.get_logger(__name__)

BUSY_PAUSE = timedelta(milliseconds=20)
"""How long queued runs are left alone whose rows somebody else has locked."""


class RunClaimer:
    """Makes admitted runs this scheduler's own, as far as others leave them to it.

    Args:
        owner: Id and lease epoch of the scheduler.
        has_peers: Whether there are others, to which runs are left whose code only they can read.

    Attributes:
        retry_at: When to claim again, because somebody was in the way; None: nobody was.
    """

    def __init__(
        self,
        database: Database,
        versions: VersionCache,
        admission: Admission,
        owner: tuple[str, int],
        has_peers: Callable[[], bool],
    ) -> None:
        self._has_peers = has_peers
        self._database = database
        self._versions = versions
        self._admission = admission
        self._owner = owner
        self.retry_at: datetime | None = None

    async def claim(self, admitted: deque[QueuedRun], now: datetime) -> deque[QueuedRun]:
        """Return those of the admitted runs that can go on: they are running now, and this scheduler's own.

        Those whose code cannot be loaded are returned as they are. The others wait again, or are queued no more.
        """
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
        wanted, admitted = await self._loadable(admitted)
        if not wanted:
            return admitted
        claims = await self._database.write(claim_runs, [row.id for row in wanted], *self._owner, now)
        keys = [row.key for row in wanted if row.id in claims.held]
        held = await self._database.read(queued_runs, keys) if keys else []
        self._admission.note_elsewhere(claims.n_elsewhere)
        begun = {row.id for row in wanted if row.has_begun}
        own = {row.id: msgspec.structs.replace(row, has_begun=row.id in begun) for row in claims.own}
        for row in wanted:
            if row.id not in own:
                self._admission.ended(row.key)
        for row in held:
            self._admission.add(row)
        if claims.is_busy:
            self.retry_at = now + BUSY_PAUSE + jitter(BUSY_PAUSE)
        asked = {row.id for row in wanted}
        return deque(own.get(row.id, row) for row in admitted if row.id in own or row.id not in asked)

    async def _loadable(self, admitted: deque[QueuedRun]) -> tuple[list[QueuedRun], deque[QueuedRun]]:
        """Return the queued runs that can be begun, and all of them but those that are left to others."""
        wanted, kept = [], deque[QueuedRun]()
        for row in admitted:
            is_loadable = row.state == DagRunState.QUEUED and await self._is_loadable(row)
            if is_loadable is None and self._has_peers():
                log.warning("run.left_to_others", dag_id=row.dag_id, run_id=row.run_id)
                self._admission.leave_to_others(row)
                continue
            kept.append(row)
            if is_loadable:
                wanted.append(row)
        return wanted, kept

    async def read(self, dag_ids: Iterable[str]) -> None:
        """Take over how many runs of some DAGs others run."""
        groups = self._admission.groups_of(set(dag_ids))
        if groups:
            of_dags = sorted({group[0] for group in groups})
            found = await self._database.read_at_once(runs_elsewhere, of_dags, self._owner[1])
            self._admission.note_elsewhere({group: found.get(group, 0) for group in groups})

    async def _is_loadable(self, row: QueuedRun) -> bool | None:
        """Return whether there is such a version; None: there is, and only a newer asynsched can read it."""
        if row.version_id is None:
            return False
        try:
            await self._versions.get(row.version_id)
        except NotFound:
            return False
        except DagError:
            return None
        return True
