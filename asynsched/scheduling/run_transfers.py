"""Runs that come from elsewhere: taken over from schedulers that are gone, or taken up anew after somebody's edit."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from asynsched.errors import DagError, NotFound
from asynsched.executors.base import Held
from asynsched.keys import DagRunKey
from asynsched.scheduling.announcements import Announcer
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.requests.request_taking import RequestTaker
from asynsched.scheduling.run_intake import RunIntake
from asynsched.store.database import Database
from asynsched.store.run_queue import MOST_TAKEN_OVER, QueuedRun, owned_runs, take_over_runs

log = structlog.get_logger(__name__)


class RunTransfers:
    """Brings stored runs into the evaluation, and lets go of those that have become another scheduler's.

    Args:
        owner: Id and lease epoch of this scheduler.
        store: Stores what was decided until now.

    Attributes:
        disturbed: Runs whose rows somebody else has changed, by row id.
        are_requests_due: Whether requests of people may be done now.
    """

    def __init__(
        self,
        *,
        database: Database,
        evaluation: Evaluation,
        intake: RunIntake,
        announcer: Announcer,
        requests: RequestTaker,
        owner: tuple[str, int],
        store: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._evaluation = evaluation
        self._intake = intake
        self._announcer = announcer
        self._requests = requests
        self._owner = owner
        self._store = store
        self._may_be_orphans = False
        self._taken_over: dict[int, QueuedRun] = {}
        self.disturbed: dict[int, DagRunKey] = {}
        self.are_requests_due = True

    @property
    def are_waiting(self) -> bool:
        """Whether there is something left to take up."""
        return bool(self.disturbed or self._may_be_orphans or self._taken_over)

    async def recover(self, held: Held, now: datetime) -> None:
        """Take up the runs that nobody owns, and the tries that the executor still holds of them."""
        self._may_be_orphans = True
        while self._may_be_orphans:
            await self.adopt(held, now)

    def look_for_orphans(self) -> None:
        """Have runs taken over whose scheduler is gone, with the next `adopt`."""
        self._may_be_orphans = True

    async def adopt(self, held: Held, now: datetime) -> None:
        """Take over some of the runs that nobody owns, if there may be such.

        Args:
            held: What the executor holds of their tries: nothing, where they were begun on another home.
        """
        if self._may_be_orphans:
            found = await self._database.write(take_over_runs, *self._owner)
            self._may_be_orphans = len(found) == MOST_TAKEN_OVER
            self._taken_over |= {row.id: row for row in found}
            if found:
                log.info("runs.taken_over", n_runs=len(found))
        # Each is dropped only once it was taken up: the database may go away between two of them.
        while self._taken_over:
            await self._take_up(next(iter(self._taken_over.values())), held, now)
            del self._taken_over[next(iter(self._taken_over))]

    async def reload_disturbed(self, now: datetime) -> None:
        """Take runs up anew whose rows somebody else has changed; forget those that are no longer ours."""
        if not self.disturbed:
            return
        # What was decided of them is stored first: what is forgotten is forgotten unchanged.
        await self._store()
        owned = {row.id: row for row in await self._database.read(owned_runs, self._owner[1])}
        for run_id, key in list(self.disturbed.items()):
            if run_id in owned:
                await self._take_up(owned[run_id], None, now)
            else:
                self._announcer.end_tries(self._evaluation.drop_run(key))
                self._intake.ended(key)
                await self._intake.follow_edits({key}, now)
            del self.disturbed[run_id]

    async def find_unknown(self) -> None:
        """Note the runs that are ours, and that memory knows nothing of: an answer of the database was lost."""
        pending = self._evaluation.pending.runs
        for row in await self._database.read(owned_runs, self._owner[1]):
            if row.key not in self._evaluation.runs and row.id not in pending and row.id not in self._taken_over:
                self.disturbed[row.id] = row.key

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
        self.are_requests_due |= self._requests.concern(run.key)
        if held is not None:
            self._announcer.settle(tasks, held, now)
        else:
            self._announcer.end_tries(let_go, tasks)
            self._announcer.launch_unknown(let_go, tasks)
