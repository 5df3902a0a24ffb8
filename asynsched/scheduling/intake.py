"""Intake of queued runs from the database: reads and claims them, begins those that `admission.py` lets start.

A scheduler that shares its database claims runs before it starts them.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from asynsched.channels import CallbackRequested, Channels, RunCreated, RunEnded
from asynsched.clock import jitter
from asynsched.errors import DagError, NotFound
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.scheduling.deciding import decide_all
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import LONGEST_RETRY
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.scheduling.loading import Loader, VersionCache
from asynsched.scheduling.places import Place, Places
from asynsched.slices import Slices
from asynsched.states import FINISHED_RUN_STATES, DagRunState
from asynsched.store.database import Database
from asynsched.store.runs import queue
from asynsched.store.runs.dag_runs import end_queued_run
from asynsched.timers import has_come

log = get_logger(__name__)
BUSY_PAUSE = timedelta(milliseconds=20)
"""How long to wait before claiming queued runs again whose rows another transaction has locked."""


@dataclass(eq=False, kw_only=True)
class RunIntake:
    """Admits queued runs to the evaluation.

    A method that needs the database changes memory only after the database has answered, so it may be called again.

    Attributes:
        owner: Id and lease epoch of the scheduler that runs the admitted runs; None: only find out which would start.
        has_peers: Whether there are other schedulers: runs whose code only they can read are left to them.
        retry_at: When to claim again because another transaction blocked a claim; None: no claim is blocked.
    """

    database: Database
    versions: VersionCache
    evaluation: Evaluation
    channels: Channels
    places: Places
    owner: tuple[str, int] | None = None
    has_peers: Callable[[], bool] = lambda: False
    retry_at: datetime | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.loader = Loader(self.database, self.versions)
        self._queue = self.places.queue
        self._slices = Slices()
        self._told = deque[tuple[int, datetime]](maxlen=1_000)
        """Runs that were lately announced as ended before they began: row ids, and when each was queued."""

    @property
    def starts_any(self) -> bool:
        """Whether `start` would start a run now, or try to."""
        return self.may_start_any and self.retry_at is None and not self._leaves_runs_to_others

    @property
    def may_start_any(self) -> bool:
        return bool(self.places.at(Place.STARTING)) or self._queue.may_start_any

    @property
    def next_claim(self) -> datetime | None:
        """When to claim runs again that another transaction had locked; None: there are none, or no room for them."""
        return None if self._leaves_runs_to_others else self.retry_at

    @property
    def next_start(self) -> datetime | None:
        """When the next run may start that was triggered for a later time; None: no run waits for its time."""
        return None if self._leaves_runs_to_others else self._queue.next_start

    async def take_created(self, keys: list[DagRunKey], now: datetime) -> None:
        """Enqueue the runs that messages announced."""
        for row in await self.database.read_at_once(queue.queued_runs, keys):
            self._enqueue(row)
        if dependent := self._dependent_runs({key.dag_id for key in keys}):
            rows = await self.database.read(queue.runs_of, sorted(set(keys)))  # others may have begun them
            for run in dependent:
                if any(_is_earlier(row, run) for row in rows):
                    await self._follow_past(run, now, is_new=True)

    async def sweep(self, now: datetime) -> None:
        """Enqueue runs that no message announced, and read again their DAGs and the past of active runs."""
        await self._look_for_queued()
        for run in self._dependent_runs():
            await self._follow_past(run, now)
        await self.read_dags({key.dag_id for key in self.evaluation.runs})

    async def _look_for_queued(self) -> None:
        """Read which DAGs and backfills have queued runs. The runs are read when there is room for them."""
        await self._slices.take(self._queue.read_anew(await self.database.read(queue.queued_groups)))
        await self._count_elsewhere(self._queue.dag_ids)

    async def read_dags(self, dag_ids: set[str]) -> None:
        """Read the pause and the `max_active_runs` of these DAGs if they have runs here; others do not matter yet."""
        known = dag_ids & (self._queue.dag_ids | {key.dag_id for key in self.evaluation.runs})
        if known:
            for dag in await self.database.read_at_once(queue.dag_admissions, sorted(known)):
                self._queue.update_dag(dag.dag_id, is_paused=dag.is_paused, max_active_runs=dag.max_active_runs)
                self.evaluation.ready.pause(dag.dag_id, paused=dag.is_paused)
            await self._count_elsewhere(known)

    async def start(self, now: datetime) -> None:
        """Begin the runs that may start."""
        if self._leaves_runs_to_others:
            return
        self._queue.time_passed(now)
        if not self.places.at(Place.STARTING):
            at_most = self._n_slots if self.has_peers() else None
            await self._read_first(at_most)
            self.places.admit(at_most)
        starting = self.places.rows_at(Place.STARTING)
        await self.versions.prepare(row.version_id for row in starting if row.version_id is not None)
        if self.owner is not None and self.database.is_shared:
            await self._claim(*self.owner, now)
        # A run leaves its place only once it has begun: the database may go away between two runs.
        for row in self.places.rows_at(Place.STARTING):
            try:
                await self._start(row, now)
            except (NotFound, DagError) as exc:
                log.warning("run.refused", dag_id=row.dag_id, run_id=row.run_id, reason=str(exc))
                await self.database.write(end_queued_run, row.id, DagRunState.FAILED, str(exc), now)
                self._say_ended_unbegun(msgspec.structs.replace(row, state=DagRunState.FAILED))
                self.places.lose(row.key)
            await decide_all(self.evaluation, now)

    async def _read_first(self, at_most: int | None) -> None:
        """Read the first queued runs of groups that have room for them and none of whose waiting runs is in memory."""
        # Runs that have begun in memory, but are still stored as queued, take up part of the rows that are read.
        begun = (run for run in self.evaluation.pending.runs.values() if run.stored_state is DagRunState.QUEUED)
        n_begun = Counter(self._queue.group_of(run.key) for run in begun)
        wanted = [(group, n + n_begun[group]) for group, n in self._queue.to_read(at_most)]
        if not wanted:
            return
        found = await self.database.read_at_once(queue.first_queued, wanted)
        for (group, limit), rows in zip(wanted, found, strict=True):
            waiting = [row for row in rows if self._is_waiting(row)]
            for row in waiting:
                self._note(row)
            # If none of them waits, reading them again before the next sweep is useless.
            self._queue.take_first(group, waiting, is_all=len(rows) < limit or not waiting)

    async def _start(self, row: queue.QueuedRun, now: datetime) -> None:
        begun: queue.QueuedRun | None = row
        is_cleared = row.has_begun and row.state != DagRunState.RUNNING
        if is_cleared and self.owner is not None:
            # The run may have been edited since it was admitted: read it once it is ours.
            begun = await self.database.write(queue.begin_again, row.id, *self.owner, now)
        if begun is None:
            self.places.lose(row.key)
            return
        run = await self.loader.run(begun)
        tasks = await self.loader.fill(run, is_new=not row.has_begun)
        if is_cleared or row.state == DagRunState.RUNNING:
            # A run that was claimed and has never begun has no task instances yet.
            self.evaluation.resume_run(run, tasks, now, begins=True)
        else:
            self.evaluation.start_run(run, now)
        self.places.begin(row.key)

    @property
    def _leaves_runs_to_others(self) -> bool:
        """Whether this scheduler is full, and others may have room for queued runs."""
        return self.has_peers() and not self._n_slots

    @property
    def _n_slots(self) -> int:
        """How many more tasks could run here at once. A run has at least one."""
        parallelism = self.evaluation.ready.parallelism
        return max(0, (parallelism.capacity or 0) - parallelism.used)

    async def follow_backfills(self, dag_ids: set[str], now: datetime) -> None:
        """Read the changed backfills of these DAGs: their runs, and whether they are paused."""
        waiting = self._queue.waiting_of(dag_ids)
        self._note_gone(waiting, await self.database.read(queue.runs_of, waiting) if waiting else [])
        await self._look_for_queued()
        for run in self._dependent_runs(dag_ids):
            await self._follow_past(run, now, is_new=True)

    async def follow_edits(self, keys: set[DagRunKey], now: datetime) -> None:
        """Read edited runs again: queued ones, and those that came before active runs."""
        found = await self.database.read(queue.runs_of, sorted(keys))
        for row in found:
            if row.state == DagRunState.QUEUED:
                self._enqueue(row)
        self._note_gone(sorted(keys - self.evaluation.runs.keys()), found)
        for run in list(self.evaluation.runs.values()):
            if run.key_before in keys:
                await self._follow_past(run, now)

    def _note_gone(self, keys: Collection[DagRunKey], found: Iterable[queue.QueuedRun]) -> None:
        """Remove runs from the queue that are no longer queued, and announce those that ended before they began.

        Args:
            keys: Runs that may have been queued until now, perhaps too far back in the queue to be in memory.
            found: The rows of those that still exist.
        """
        rows = {row.key: row for row in found}
        for key in keys:
            row = rows.get(key)
            if row is not None and row.state == DagRunState.QUEUED:
                continue
            was_waiting = self.places.withdraw(key)
            if row is None and was_waiting:
                self._say_ended(key, DagRunState.FAILED)
            elif row is not None and row.state in FINISHED_RUN_STATES and (was_waiting or row.started_at is None):
                self._say_ended_unbegun(row)

    def _dependent_runs(self, dag_ids: Collection[str] | None = None) -> list[ActiveRun]:
        """Return the active runs, of some DAGs or all, with tasks that depend on the run before."""
        runs = self.evaluation.runs.values()
        return [run for run in runs if run.structure.depend_on_past and (dag_ids is None or run.key.dag_id in dag_ids)]

    async def _follow_past(self, run: ActiveRun, now: datetime, *, is_new: bool = False) -> None:
        """Read a run's past, unless the run before is active here: then its changes are passed on as they happen.

        Args:
            is_new: Whether the run before may be another one now.
        """
        before = run.key_before
        if before in self.evaluation.runs and not is_new:
            return
        if await self.loader.read_past(run) or run.key_before != before or is_new:
            self.evaluation.past_read(run, now)

    def take_up(self, row: queue.QueuedRun) -> None:
        """Prepare to resume a run that was begun by another scheduler, or by a claim whose answer was lost."""
        self.places.take_up(row)
        self._note(row)

    def _note(self, row: queue.QueuedRun) -> None:
        """Note whether the DAG of a run that may begin here is paused, and say that the run may have deadlines."""
        self.evaluation.ready.pause(row.dag_id, paused=row.is_paused)
        if row.has_deadlines:
            self.channels.deadlines.offer(RunCreated(row.key))
            # User code may have to say when one is due.
            self.channels.callbacks.put_nowait(CallbackRequested())

    def _enqueue(self, row: queue.QueuedRun) -> None:
        if self._is_waiting(row):
            self._note(row)
            self.places.heard(row)

    def _is_waiting(self, row: queue.QueuedRun) -> bool:
        """Return whether a queued run has not begun in memory."""
        return row.key not in self.evaluation.runs and self.places.may_wait(row.key)

    def _say_ended_unbegun(self, row: queue.QueuedRun) -> None:
        # Several messages may announce the same end: count it once.
        if (row.id, row.queued_at) not in self._told:
            self._told.append((row.id, row.queued_at))
            self._say_ended(row.key, row.state)

    def _say_ended(self, key: DagRunKey, state: str) -> None:
        ended = RunEnded(key, state)
        self.channels.run_ends.put_nowait(ended)
        self.channels.dag_changes.offer(ended)

    # Claims, where other schedulers share the database

    async def _claim(self, scheduler_id: str, epoch: int, now: datetime) -> None:
        """Claim the starting runs that are queued. A run that was not claimed waits again if it is still queued.

        Runs whose code cannot be loaded stay as they are.
        """
        if has_come(self.retry_at, now, LONGEST_RETRY):
            self.retry_at = None
        wanted = await self._loadable()
        if not wanted:
            return
        claims = await self.database.write(queue.claim_runs, [row.id for row in wanted], scheduler_id, epoch, now)
        keys = [row.key for row in wanted if row.id in claims.held]
        held = await self.database.read(queue.queued_runs, keys) if keys else []
        self._queue.note_elsewhere(claims.n_elsewhere)
        own = {row.id: row for row in claims.own}
        for row in wanted:
            if row.id in own:
                self.places.claimed(msgspec.structs.replace(own[row.id], has_begun=row.has_begun))
            else:
                self.places.lose(row.key)
        for row in held:
            self.places.heard(row)
        if claims.is_busy:
            self.retry_at = now + BUSY_PAUSE + jitter(BUSY_PAUSE)

    async def _loadable(self) -> list[queue.QueuedRun]:
        """Return the starting runs that are queued and can begin here; leave to others those that only they can."""
        wanted = []
        for row in self.places.rows_at(Place.STARTING):
            is_loadable = row.state == DagRunState.QUEUED and await self._is_loadable(row)
            if is_loadable is None and self.has_peers():
                log.warning("run.left_to_others", dag_id=row.dag_id, run_id=row.run_id)
                self.places.leave_queued(row)
            elif is_loadable:
                wanted.append(row)
        return wanted

    async def _count_elsewhere(self, dag_ids: Collection[str]) -> None:
        """Read the numbers of other schedulers' running runs of these DAGs."""
        if self.owner is None or not self.database.is_shared:
            return
        if groups := self._queue.groups_of(dag_ids):
            of_dags = sorted({group[0] for group in groups})
            found = await self.database.read_at_once(queue.runs_elsewhere, of_dags, self.owner[1])
            self._queue.note_elsewhere({group: found.get(group, 0) for group in groups})

    async def _is_loadable(self, row: queue.QueuedRun) -> bool | None:
        """Return whether the run's version exists; None: it exists, but only a newer asynsched can read it."""
        if row.version_id is None:
            return False
        try:
            await self.versions.get(row.version_id)
        except NotFound:
            return False
        except DagError:
            return None
        return True


def _is_earlier(row: queue.QueuedRun, run: ActiveRun) -> bool:
    """Return whether a stored run is of the same DAG as an active one, and of an earlier date."""
    if row.dag_id != run.key.dag_id or row.logical_date is None or run.logical_date is None:
        return False
    return row.logical_date < run.logical_date
