"""Admission of queued runs: the limits that they wait for, and their order."""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from asynsched.keys import DagRunKey
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import RUN_TYPES_ON_REQUEST
from asynsched.store.runs.queue import Group, QueuedGroup, QueuedRun
from asynsched.store.schema import DagRunRow

A_FEW = 10
"""How many queued runs of a group are read beyond those that could start now."""
_Waiting = tuple[float, int, QueuedRun]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits of the queued runs of a DAG, or of a backfill."""

    is_paused: bool
    max_active_runs: int


@dataclass(slots=True)
class _Queue:
    """The first queued runs of a group, which are in memory, in the order in which they start."""

    first: list[_Waiting] = field(default_factory=list)
    is_all: bool = True
    """Whether the database had no others when last read."""

    @property
    def is_empty(self) -> bool:
        return self.is_all and not self.first


class Admission:
    """The queued runs of every DAG, oldest first; DAGs take turns, and so do the backfills beside them.

    Only the first runs of a group with many queued runs are in memory. The others are read when the group has room for
    them, so that neither memory nor a sweep grows with the number of waiting runs.

    The groups that could start a run are kept in the order of their turns, so that no step looks at the others.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._dags: dict[str, RunLimits] = {}
        self._backfills: dict[int, RunLimits] = {}
        self._queues: dict[Group, _Queue] = {}
        self._known: dict[DagRunKey, Group] = {}
        self._only_elsewhere: dict[Group, set[DagRunKey]] = {}
        """Queued runs that only other schedulers can start, as found since all were read."""
        self._active: dict[Group, set[DagRunKey]] = {}
        self._elsewhere: dict[Group, int] = {}
        self._group_of: dict[DagRunKey, Group] = {}
        self._groups: dict[str, dict[Group, None]] = {}
        self._turns: dict[Group, None] = {}
        self._later: dict[Group, datetime] = {}
        """Groups with room whose first run was triggered for a later time: that time."""
        self._now = datetime.min.replace(tzinfo=UTC)

    def update_dag(self, dag_id: str, *, is_paused: bool, max_active_runs: int) -> None:
        """Set the limits of a DAG, as the database has them."""
        self._dags[dag_id] = RunLimits(is_paused, max_active_runs)
        for group in list(self._groups.get(dag_id, ())):
            self._update_turn(group)

    def add(self, run: QueuedRun) -> None:
        """Enqueue a run; if it already waits, only the limits of its DAG and its backfill are updated."""
        group = (run.dag_id, run.backfill_id)
        self._only_elsewhere.get(group, set()).discard(run.key)
        if run.key not in self._known:
            queue, waiting = self._queue(group), (_order(run), run.id, run)
            if queue.is_all or (queue.first and waiting < queue.first[-1]):
                insort(queue.first, waiting)
                self._known[run.key] = group
            if len(queue.first) > self._at_once + A_FEW:
                del self._known[queue.first.pop()[2].key]
                queue.is_all = False
        self._update_backfill(run)
        self.update_dag(run.dag_id, is_paused=run.is_paused, max_active_runs=run.max_active_runs)

    def read_anew(self, groups: Iterable[QueuedGroup]) -> Iterator[QueuedGroup]:
        """Forget the waiting runs: exactly these groups have some. The caller takes all steps; each yields a group."""
        for queue in self._queues.values():
            queue.first, queue.is_all = [], True
        self._known.clear()
        self._only_elsewhere.clear()
        empty = set(self._queues)
        for found in groups:
            group = (found.dag_id, found.backfill_id)
            empty.discard(group)
            self._queue(group).is_all = False
            self._update_backfill(found)
            self._dags[found.dag_id] = RunLimits(found.is_paused, found.max_active_runs)
            self._update_turn(group)
            yield found
        for group in empty:
            self._update_turn(group)

    def to_read(self, at_most: int | None = None) -> list[tuple[Group, int]]:
        """Return the next groups that have no waiting run in memory, with how many to read of each."""
        groups = list(islice(self._turns, self._limit(at_most)))
        return [
            (group, self._n_wanted(group) + len(self._only_elsewhere.get(group, ())))
            for group in groups
            if not self._queues[group].first
        ]

    def take_first(self, group: Group, runs: Iterable[QueuedRun], *, is_all: bool) -> None:
        """Add the first queued runs of a group, as they were read; `is_all`: the group has no others."""
        queue = self._queue(group)
        queue.is_all = True
        left = self._only_elsewhere.get(group, set())
        for run in [run for run in runs if run.key not in left]:
            self.add(run)
        queue.is_all = queue.is_all and is_all
        self._update_turn(group)

    def leave_to_others(self, run: QueuedRun) -> None:
        """Leave an admitted run to other schedulers, until it is added again or all runs are read again.

        The next runs of its group may start instead. After as many of them as one pass starts, the whole group is left.
        """
        self.ended(run.key)
        group = (run.dag_id, run.backfill_id)
        left = self._only_elsewhere.setdefault(group, set())
        left.add(run.key)
        queue = self._queues.get(group)
        if queue is not None and len(left) >= self._at_once:
            for _, _, waiting in queue.first:
                del self._known[waiting.key]
            queue.first, queue.is_all = [], True
            self._update_turn(group)

    def note_elsewhere(self, n_runs: Mapping[Group, int]) -> None:
        """Record the numbers of other schedulers' running runs of some groups."""
        for group, n in n_runs.items():
            self._elsewhere.pop(group, None)
            if n:
                self._elsewhere[group] = n
            self._update_turn(group)

    def groups_of(self, dag_ids: Collection[str]) -> list[Group]:
        """Return the groups of some DAGs that have runs waiting here, or runs that others are known to run."""
        groups = {group for dag_id in dag_ids for group in self._groups.get(dag_id, ())}
        return sorted(groups | {group for group in self._elsewhere if group[0] in dag_ids}, key=str)

    def began(self, run: QueuedRun) -> None:
        """Count a run as active. It stops waiting, even if another scheduler began it without a message."""
        self.withdraw(run.key)
        group = self._group_of[run.key] = (run.dag_id, run.backfill_id)
        if run.backfill_id not in self._backfills:
            self._update_backfill(run)
        self._active.setdefault(group, set()).add(run.key)
        self._update_turn(group)

    def ended(self, run: DagRunKey) -> None:
        """Count a run as no longer active."""
        group = self._group_of.pop(run, None)
        if group is None:
            return
        self._active[group].discard(run)
        if not self._active[group]:
            del self._active[group]
        self._update_turn(group)

    def time_passed(self, now: datetime) -> None:
        """Give those groups a turn whose first run was triggered for a time that has come."""
        self._now = now
        for group in [group for group, start in self._later.items() if start <= now]:
            self._update_turn(group)

    @property
    def next_start(self) -> datetime | None:
        """When the next run may start that was triggered for a later time; None: only other events start runs."""
        return min(self._later.values(), default=None)

    def admit(self, at_most: int | None = None) -> list[QueuedRun]:
        """Take the runs that may start now, one per group in turn, and count them as active.

        It stops at a group whose runs must first be read.
        """
        admitted: list[QueuedRun] = []
        limit = self._limit(at_most)
        while self._turns and len(admitted) < limit:
            group = next(iter(self._turns))
            if not self._queues[group].first:
                break
            run = self._queues[group].first.pop(0)[2]
            del self._known[run.key]
            # After its turn, a group goes last.
            del self._turns[group]
            self.began(run)
            admitted.append(run)
        return admitted

    def verdict(self, dag_id: str, backfill_id: int | None = None, start: datetime | None = None) -> Verdict:
        """Return whether the next queued run of a DAG, or of a backfill, may start, and if not, why.

        Args:
            start: When it may start at the earliest; None: at once.
        """
        group = (dag_id, backfill_id)
        if self._room(group):
            if start is None or start <= self._now:
                return MET
            return Verdict(met=False, reason=f"it was triggered for {start.isoformat()}", release="that time comes")
        dag = self._dags.get(dag_id)
        if dag is None or dag.is_paused:
            return Verdict(met=False, reason="the DAG is paused", release="it is unpaused")
        limits, whose = dag, ""
        if backfill_id is not None:
            limits, whose = self._backfills.get(backfill_id, dag), f" of the backfill {backfill_id}"
            if limits.is_paused:
                release = f"a user unpauses it: `asynsched backfill unpause {backfill_id}`"
                return Verdict(met=False, reason=f"the backfill {backfill_id} is paused", release=release)
        active = sorted(key.run_id for key in self._active.get(group, ()))
        number = f"max_active_runs{whose} is {limits.max_active_runs}"
        return Verdict(
            met=False, reason=f"{number}, and these are active: {', '.join(active)}", release="one of them ends"
        )

    def withdraw(self, run: DagRunKey) -> bool:
        """Remove a run from the queue; return whether it was in memory."""
        group = self._known.pop(run, None)
        if group is None:
            return False
        queue = self._queues[group]
        queue.first = [waiting for waiting in queue.first if waiting[2].key != run]
        self._update_turn(group)
        return True

    def has(self, run: DagRunKey) -> bool:
        return run in self._known

    def waiting_of(self, dag_ids: Collection[str]) -> list[DagRunKey]:
        """Return the queued runs of some DAGs that are in memory."""
        return [key for key in self._known if key.dag_id in dag_ids]

    def group_of(self, run: DagRunKey) -> Group | None:
        return self._group_of.get(run)

    @property
    def dag_ids(self) -> set[str]:
        """The DAGs that have runs here, waiting or active, or runs that others are known to run."""
        return {group[0] for group in self._queues.keys() | self._active.keys() | self._elsewhere.keys()}

    @property
    def may_start_any(self) -> bool:
        return bool(self._turns)

    def _limit(self, at_most: int | None) -> int:
        return self._at_once if at_most is None else min(at_most, self._at_once)

    def _n_wanted(self, group: Group) -> int:
        return min(self._room(group), self._at_once) + A_FEW

    def _queue(self, group: Group) -> _Queue:
        self._groups.setdefault(group[0], {})[group] = None
        return self._queues.setdefault(group, _Queue())

    def _update_backfill(self, run: QueuedRun | QueuedGroup) -> None:
        if run.backfill_id is not None:
            self._backfills[run.backfill_id] = RunLimits(run.backfill_is_paused, run.backfill_max_active_runs)

    def _update_turn(self, group: Group) -> None:
        """Give a group a turn exactly if it could start a run, or if its runs are yet to be read."""
        queue = self._queues.get(group)
        is_empty = queue is None or queue.is_empty
        start = earliest_start(queue.first[0][2]) if queue is not None and queue.first else None
        self._later.pop(group, None)
        if is_empty or self._room(group) <= 0:
            self._turns.pop(group, None)
        elif start is not None and start > self._now:
            self._turns.pop(group, None)
            self._later[group] = start
        else:
            self._turns.setdefault(group)
        if is_empty:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        dag_id, backfill_id = group
        self._queues.pop(group, None)
        self._groups.get(dag_id, {}).pop(group, None)
        if not self._groups.get(dag_id):
            self._groups.pop(dag_id, None)
        if backfill_id is not None and group not in self._active:
            self._backfills.pop(backfill_id, None)

    def _room(self, group: Group) -> int:
        """Return the number of runs of a group that may still start: 0 while it is paused or its limits are unknown."""
        dag_id, backfill_id = group
        dag = self._dags.get(dag_id)
        limits = dag if backfill_id is None else self._backfills.get(backfill_id)
        if dag is None or limits is None or dag.is_paused or limits.is_paused:
            return 0
        return max(0, limits.max_active_runs - len(self._active.get(group, ())) - self._elsewhere.get(group, 0))


def earliest_start(run: DagRunRow) -> datetime | None:
    """Return when a queued run may start at the earliest, if it was triggered for a later time; otherwise None.

    Both instants are of the clock of the scheduler that queued the run: the clocks of others may differ.
    """
    return run.run_after if run.run_type in RUN_TYPES_ON_REQUEST and run.run_after > run.queued_at else None


def _order(run: QueuedRun) -> float:
    """Return the key that orders a group's queued runs by when they start, as `first_queued` reads them."""
    date = run.logical_date or run.partition_date
    if run.backfill_id is None or date is None:
        return run.run_after.timestamp()
    return -date.timestamp() if run.backfill_is_reverse else date.timestamp()
