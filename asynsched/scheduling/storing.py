"""Stores a batch of changes, and settles in the same transaction the slots that its grants take of shared limits.

If several schedulers may serve the database, grants made in memory against pools and `max_active_tis_per_dag` are
settled: a grant is refused if others have taken its slots meanwhile, and memory then notes the others' use.

The same transaction pauses DAGs whose last runs have all failed: Airflow's `max_consecutive_failed_dag_runs`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.channels import Channels, DagChanged
from asynsched.clock import Clock, jitter
from asynsched.keys import DagRunKey
from asynsched.loggers import get_logger
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.slices import Slices
from asynsched.states import COUNTED_TASK_STATES, SLOT_TASK_STATES, DagRunState, TaskInstanceState
from asynsched.store.audit import record_audit
from asynsched.store.dags.dags import pause_active
from asynsched.store.database import Database
from asynsched.store.rows import MOST_PARAMETERS
from asynsched.store.runs.dag_runs import last_run_states
from asynsched.store.runs.pools import OwnUse, Settlement, SlotGrant, settle_slots
from asynsched.store.runs.transitions import Batch, Stale, TaskRowKey, TaskWrite, apply, apply_at_once
from asynsched.store.schedulers import notify

log = get_logger(__name__)

BUSY_PAUSE = timedelta(milliseconds=5)
"""How long to leave limits alone that another scheduler is settling: about as long as that takes."""
WATCHED_FOR = timedelta(seconds=30)
"""How long a command that waits for a run is notified of its changes; the command asks more often than that."""


class FailedRun(NamedTuple):
    """A failed run of a DAG that is paused after `limit` failed runs in a row."""

    run_row_id: int
    dag_id: str
    limit: int
    ended_at: datetime


def failed_runs(runs: Iterable[ActiveRun], default_limit: int) -> list[FailedRun]:
    """Return the runs whose failure may pause their DAG: those that failed by their tasks. A limit of 0 means none."""
    found = []
    for run in runs:
        own = run.structure.dag.max_consecutive_failed_dag_runs
        limit = default_limit if own is None else own
        is_stopped = run.stop is not None and run.stop.fails_run
        if limit and run.state is DagRunState.FAILED and run.ended_at is not None and not is_stopped:
            found.append(FailedRun(run.id, run.key.dag_id, limit, run.ended_at))
    return found


def apply_and_pause(conn: Connection, batch: Batch, failed: Sequence[FailedRun]) -> tuple[Stale, list[FailedRun]]:
    """Write a batch, and pause the DAGs that have now failed too often. Returns the stale rows, and the pausing runs.

    Source:
        Airflow's `DagRun._check_last_n_dagruns_failed`: the newest runs count, ended or not.
    """
    stale = apply(conn, batch)
    return stale, [run for run in failed if run.run_row_id not in stale.runs and _pause(conn, run)]


def _pause(conn: Connection, run: FailedRun) -> bool:
    states = last_run_states(conn, run.dag_id, run.limit)
    if len(states) < run.limit or set(states) != {DagRunState.FAILED}:
        return False
    if not pause_active(conn, run.dag_id, run.ended_at):
        return False
    detail = {"consecutive_failed_dag_runs": run.limit}
    record_audit(conn, at=run.ended_at, actor="scheduler", action="dag.pause", dag_id=run.dag_id, detail=detail)
    return True


def announce_paused(channels: Channels, paused: Iterable[FailedRun]) -> None:
    """Log which DAGs were paused, and notify the services."""
    for run in paused:
        log.warning("dag.paused", dag_id=run.dag_id, reason=f"its last {run.limit} runs have failed")
        channels.dag_changes.offer(DagChanged(run.dag_id))
        channels.limits.offer(DagChanged(run.dag_id))


class BatchAnswer(Struct, frozen=True):
    """The answer of the database to a batch.

    Attributes:
        stale: The changes that were not written, because the rows had been changed elsewhere.
        paused: The failed runs that have paused their DAG.
        settled: Which of the granted tasks were refused their slots, and other schedulers' use.
        retry_at: When to retry the limits that another scheduler was settling; None for none.
    """

    stale: Stale
    paused: Sequence[FailedRun] = ()
    settled: Settlement = Settlement()
    retry_at: datetime | None = None


@dataclass(eq=False, slots=True)
class Storing:
    """Writes decisions, and changes nothing in memory.

    Attributes:
        max_failed_runs: After how many failed runs in a row a DAG is paused, if it does not say itself; 0: never.
    """

    database: Database
    clock: Clock
    ready: ReadyQueues
    max_failed_runs: int
    _slices: Slices = field(default_factory=Slices, init=False)
    _signed: set[str] = field(default_factory=set, init=False)
    """Pools that this scheduler has signed: others use no more of them than memory has noted."""
    _watched: dict[DagRunKey, datetime] = field(default_factory=dict, init=False)
    """Runs that commands wait for, and until when to notify these commands."""

    async def store(self, pending: PendingBatch, *, tell: bool) -> BatchAnswer:
        """Store a batch, except the grants for which others leave no slots. After a failure, call this again.

        Args:
            tell: Whether there are other schedulers, which are notified of changes that concern them.
        """
        failed = failed_runs(pending.ended_runs, self.max_failed_runs)
        batch = pending.batch(await self._slices.take(pending.task_rows()))
        if not self.database.is_shared:
            return BatchAnswer(*await self.database.write(apply_and_pause, batch, failed))
        grants = self.ready.grants(task for task in pending.granted if task.state is TaskInstanceState.QUEUED)
        hints = [*(_hints(pending) if tell else ()), *self._changes_of_watched(pending)]
        pools = {grant.pool for grant in grants if grant.pool}
        signed = pools & self._signed
        counted = None if tell else {name: self.ready.pool(name).elsewhere for name in signed}
        # Until the commit is confirmed, it is not known who has signed.
        self._signed -= pools
        if counted is not None and not hints and signed == pools and not failed and _is_simple(batch, grants):
            needed = {name: self.ready.pool(name).taken for name in pools}
            if await self.database.write_at_once(apply_at_once, batch, needed):
                self._signed |= pools
                return BatchAnswer(Stale(frozenset(), frozenset()))
        stale, paused, settled = await self.database.write(
            _store, batch, failed, grants=grants, own=self.ready.own_use(grants), counted=counted, hints=hints
        )
        if counted is not None:
            self._signed.update(settled.pools)
        is_busy = settled.busy_pools or settled.busy_dags
        retry_at = self.clock.now() + BUSY_PAUSE + jitter(BUSY_PAUSE) if is_busy else None
        return BatchAnswer(stale, paused, settled, retry_at)

    async def watch(self, runs: Collection[DagRunKey], origin: str, now: datetime) -> None:
        """Notify commands of changes to these runs for a while, and at once of changes made while they asked."""
        self._watched.update(dict.fromkeys(runs, now + WATCHED_FOR))
        hints = [Hint("changed", *run, origin=origin) for run in sorted(runs)]
        await self.database.write(notify, *hints)

    def _changes_of_watched(self, pending: PendingBatch) -> list[Hint]:
        """Return hints of a batch's changes to runs that commands wait for."""
        if not self._watched:
            return []
        now = self.clock.now()
        self._watched = {run: until for run, until in self._watched.items() if now < until}
        changed = {task.run.key for task in pending.tasks.values()} | {run.key for run in pending.runs.values()}
        return [Hint("changed", *run, origin=pending.scheduler_id) for run in sorted(changed & self._watched.keys())]


def _hints(pending: PendingBatch) -> list[Hint]:
    """Return hints of a batch for other schedulers: freed slots, ended runs, runs that their runs depend on."""
    origin = pending.scheduler_id
    hints = {Hint("end", *run.key, origin=origin) for run in pending.ended_runs}
    for task in pending.tasks.values():
        # A task that waits for a trigger or an answer gives back its slots, and counts against some limits.
        for counted in (SLOT_TASK_STATES, COUNTED_TASK_STATES):
            if task.stored_state in counted and task.state not in counted:
                hints.add(Hint("slots", origin=origin))
        if task.is_finished and task.run.structure.depend_on_past:
            hints.add(Hint("edit", *task.run.key, origin=origin))
    return sorted(hints, key=lambda hint: (hint.kind, hint.dag_id, hint.run_id))


def _is_simple(batch: Batch, grants: Sequence[SlotGrant]) -> bool:
    """Whether one statement can write a batch, with the slots that it takes of pools."""
    is_limited = any(grant.task is not None for grant in grants)
    return batch.is_of_states_alone and max(len(batch.tasks), len(batch.runs)) <= MOST_PARAMETERS and not is_limited


def _store(
    conn: Connection, batch: Batch, failed: Sequence[FailedRun], grants: Sequence[SlotGrant], own: OwnUse,
    counted: Mapping[str, int] | None, hints: Sequence[Hint],
) -> tuple[Stale, list[FailedRun], Settlement]:  # fmt: skip
    settled = settle_slots(conn, grants, own, batch.lease_epoch, counted) if grants else Settlement()
    if settled.refused:
        new_tasks = [_unqueued(row, settled.refused) for row in batch.new_tasks]
        tasks = [_unqueued(row, settled.refused) for row in batch.tasks]
        batch = msgspec.structs.replace(batch, new_tasks=new_tasks, tasks=tasks)
    stale, paused = apply_and_pause(conn, batch, failed)
    notify(conn, *hints)
    return stale, paused, settled


def _unqueued(row: TaskWrite, refused: frozenset[TaskRowKey]) -> TaskWrite:
    """Return the row of a task instance whose slots were refused: it waits as before; see `decisions.of_refusal`."""
    if (row.dag_run_id, row.task_id, row.map_index) not in refused:
        return row
    return msgspec.structs.replace(
        row, state=TaskInstanceState.SCHEDULED, try_number=row.try_number - 1, token=None, queued_at=None
    )
