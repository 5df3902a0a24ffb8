"""Limits that several schedulers share: pools, and `max_active_tis_per_dag`.

What is granted in memory is settled in the transaction that stores it. What others have meanwhile is refused there,
waits again, and memory knows from then on what they have, until they tell that they have given something back.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Connection

from asynsched.bell import Hint, encode_hints
from asynsched.clock import Clock, jitter
from asynsched.scheduling.creation.failing_dags import FailedRun, apply_and_pause
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.scheduling.evaluation.ready import Limit, ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.slices import Slices
from asynsched.states import SLOT_TASK_STATES, TaskInstanceState
from asynsched.store.database import Database
from asynsched.store.rows import MOST_PARAMETERS
from asynsched.store.runs.changes import Batch, Stale, TaskRow, TaskRowKey
from asynsched.store.runs.slot_settlement import OwnUse, Settlement, SlotClaim, pool_use_elsewhere, settle_slots
from asynsched.store.runs.transitions import apply_at_once
from asynsched.store.schedulers.schedulers import notify

BUSY_PAUSE = timedelta(milliseconds=5)
"""How long limits are left alone that another scheduler settles: about as long as that takes."""


class SharedLimits:
    """Settles what one scheduler grants.

    Args:
        owner: Id and lease epoch of the scheduler.

    Attributes:
        retry_at: When limits are to be tried again that others were settling; None: there are none.
        has_refused: Whether something was refused when it was last stored: others may take what that has given back.
    """

    def __init__(self, evaluation: Evaluation, database: Database, clock: Clock, owner: tuple[str, int]) -> None:
        self._clock = clock
        self._evaluation = evaluation
        self._database = database
        self._id, self._epoch = owner
        self._busy: list[Limit] = []
        self._signed: set[str] = set()
        """Pools that this scheduler has signed: others have at most what memory knows that they have."""
        self._slices = Slices()
        self.retry_at: datetime | None = None
        self.has_refused = False

    @property
    def is_active(self) -> bool:
        """Whether there may be other schedulers at all."""
        return self._database.is_shared

    async def store(self, failed: Sequence[FailedRun], *, tell: bool) -> tuple[Stale, list[FailedRun]]:
        """Store what is pending, less what was granted in vain, which is taken out of it.

        Args:
            failed: Runs that may pause their DAG.
            tell: Whether there are others, who are told what concerns them.
        """
        pending = self._evaluation.pending
        self.has_refused = False
        batch = pending.batch(await self._slices.take(pending.task_rows()))
        if not self.is_active:
            return await self._database.write(apply_and_pause, batch, failed)
        granted = {_key(task): task for task in pending.granted if task.state is TaskInstanceState.QUEUED}
        claims = [claim for task in granted.values() if (claim := self._claim(task)).pool or claim.task is not None]
        hints = self._hints() if tell else []
        pools = {claim.pool for claim in claims if claim.pool}
        signed = pools & self._signed
        counted = None if tell else {name: self._evaluation.queues.pool(name).elsewhere for name in signed}
        # Until it is known that the transaction was committed, it is not known who has signed.
        self._signed -= pools
        if counted is not None and signed == pools and not failed and _is_simple(batch, claims):
            needed = {name: self._evaluation.queues.pool(name).taken for name in pools}
            if await self._database.write_at_once(apply_at_once, batch, needed):
                self._signed |= pools
                return Stale(frozenset(), frozenset()), []
        stale, paused, settled = await self._database.write(
            _store, batch, failed, claims, self._own_use(claims), counted, hints
        )
        if counted is not None:
            self._signed.update(settled.pools)
        refused = [granted[key] for key in granted if key in settled.refused]
        pending.granted = [task for task in pending.granted if task not in refused]
        self._take_up(settled)
        self._evaluation.take_back(refused, self._clock.now())
        self.has_refused = bool(refused)
        return stale, paused

    def try_again(self, now: datetime) -> None:
        """Let limits be taken again that others were settling, once their time has come."""
        if self.retry_at is None or now < self.retry_at:
            return
        for limit in self._busy:
            limit.is_busy = False
        ReadyQueues.reopen(self._busy)
        self._busy.clear()
        self.retry_at = None

    async def read(self) -> None:
        """Take over what others have of the pools; of the other limits they may have given back everything."""
        if not self.is_active:
            return
        pools = self._evaluation.queues.pools
        including = frozenset(name for name, pool in pools.items() if pool.include_deferred)
        elsewhere = await self._database.read(pool_use_elsewhere, self._epoch, including)
        for name, pool in pools.items():
            pool.elsewhere = elsewhere.get(name, 0)
        held_up = [limit for limit in self._evaluation.limits.all_shared if limit.elsewhere]
        for limit in held_up:
            limit.elsewhere = 0
        ReadyQueues.reopen(held_up)

    def _claim(self, task: ActiveTask) -> SlotClaim:
        pool = self._evaluation.queues.pool(task.task.pool)
        limit = self._evaluation.limits.shared(task)
        return SlotClaim(
            key=_key(task),
            pool="" if pool.capacity is None else task.task.pool,
            slots=task.task.pool_slots,
            task=None if limit is None else (task.run.key.dag_id, task.task_id),
            max_active=0 if limit is None else limit.capacity or 0,
        )

    def _own_use(self, claims: Sequence[SlotClaim]) -> OwnUse:
        """Return what this scheduler takes beside what it claims."""
        claimed: Counter[str] = Counter()
        for claim in claims:
            claimed[claim.pool] += claim.slots
        n_claimed = Counter(claim.task for claim in claims if claim.task is not None)
        pools = {name: self._evaluation.queues.pool(name) for name in claimed if name}
        limits = {task: self._limit(task) for task in n_claimed}
        return OwnUse(
            {name: pool.taken - pool.elsewhere - claimed[name] for name, pool in pools.items()},
            {task: limit.used - n_claimed[task] for task, limit in limits.items() if limit is not None},
        )

    def _limit(self, task: tuple[str, str]) -> Limit | None:
        return self._evaluation.limits.shared_of(task[0]).get(task[1])

    def _take_up(self, settled: Settlement) -> None:
        """Remember what others have, and leave alone for a moment what they are settling."""
        queues, limits = self._evaluation.queues, self._evaluation.limits
        for name, used in settled.pools.items():
            queues.pool(name).elsewhere = used
        for task, n in settled.tasks.items():
            if (limit := self._limit(task)) is not None:
                limit.elsewhere = n
        busy: list[Limit] = [queues.pool(name) for name in settled.busy_pools]
        busy += [limit for dag_id in settled.busy_dags for limit in limits.shared_of(dag_id).values()]
        for limit in busy:
            limit.is_busy = True
        if busy:
            self._busy += busy
            self.retry_at = self._clock.now() + BUSY_PAUSE + jitter(BUSY_PAUSE)

    def _hints(self) -> list[Hint]:
        """Return what others want to know of what is pending: slots they may have, runs that they wait for."""
        pending = self._evaluation.pending
        hints = {Hint("end", *run.key, origin=self._id) for run in pending.ended_runs}
        for task in pending.tasks.values():
            if task.stored_state in SLOT_TASK_STATES and task.state not in SLOT_TASK_STATES:
                hints.add(Hint("slots", origin=self._id))
            if task.is_finished and task.run.structure.depend_on_past:
                hints.add(Hint("edit", *task.run.key, origin=self._id))
        return sorted(hints, key=lambda hint: (hint.kind, hint.dag_id, hint.run_id))


def _is_simple(batch: Batch, claims: Sequence[SlotClaim]) -> bool:
    """Whether one statement can write a batch, with the slots that it takes of pools."""
    is_limited = any(claim.task is not None for claim in claims)
    return batch.is_of_states_alone and max(len(batch.tasks), len(batch.runs)) <= MOST_PARAMETERS and not is_limited


def _key(task: ActiveTask) -> TaskRowKey:
    return (task.run.id, task.task_id, task.map_index)


def _store(
    conn: Connection, batch: Batch, failed: Sequence[FailedRun], claims: Sequence[SlotClaim], own: OwnUse,
    counted: Mapping[str, int] | None, hints: Sequence[Hint],
) -> tuple[Stale, list[FailedRun], Settlement]:  # fmt: skip
    settled = settle_slots(conn, claims, own, batch.lease_epoch, counted) if claims else Settlement()
    if settled.refused:
        new_tasks = [_unqueued(row, settled.refused) for row in batch.new_tasks]
        tasks = [_unqueued(row, settled.refused) for row in batch.tasks]
        batch = msgspec.structs.replace(batch, new_tasks=new_tasks, tasks=tasks)
    stale, paused = apply_and_pause(conn, batch, failed)
    if hints:
        notify(conn, encode_hints(hints))
    return stale, paused, settled


def _unqueued(row: TaskRow, refused: frozenset[TaskRowKey]) -> TaskRow:
    """Return what is written of a task instance whose slots were refused: it waits, as before it was granted them."""
    if (row.dag_run_id, row.task_id, row.map_index) not in refused:
        return row
    return msgspec.structs.replace(
        row, state=TaskInstanceState.SCHEDULED, try_number=row.try_number - 1, token=None, queued_at=None
    )
