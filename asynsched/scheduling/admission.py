"""Which queued runs may start: Airflow's `max_active_runs`, pauses, and fairness between DAGs."""

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from asynsched.keys import DagRunKey
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.store.run_claims import Group
from asynsched.store.run_queue import QueuedRun

Waiting = tuple[datetime | float, int, QueuedRun]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the queued runs of a DAG, or of a backfill, depend on."""

    is_paused: bool
    max_active_runs: int


class Admission:
    """The queued runs of every DAG, oldest first; DAGs take turns, and so do the backfills beside them.

    The groups that could start a run are kept in the order of their turns, so that no step looks at the others.

    Args:
        at_once: Most runs that one pass starts.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._dags: dict[str, Limits] = {}
        self._backfills: dict[int, Limits] = {}
        self._waiting: dict[Group, list[Waiting]] = {}
        self._known: dict[DagRunKey, tuple[int, Group]] = {}
        self._active: dict[Group, set[DagRunKey]] = {}
        self._elsewhere: dict[Group, int] = {}
        self._group_of: dict[DagRunKey, Group] = {}
        self._groups: dict[str, set[Group]] = {}
        self._turns: dict[Group, None] = {}

    def update_dag(self, dag_id: str, *, is_paused: bool, max_active_runs: int) -> None:
        """Take over what the database says of a DAG."""
        self._dags[dag_id] = Limits(is_paused, max_active_runs)
        for group in list(self._groups.get(dag_id, ())):
            self._take_place(group)

    def add(self, run: QueuedRun) -> None:
        """Let a queued run wait; one that waits already only tells what has changed of its DAG and its backfill."""
        group = (run.dag_id, run.backfill_id)
        if run.key not in self._known:
            self._known[run.key] = run.id, group
            heapq.heappush(self._waiting.setdefault(group, []), (_order(run), run.id, run))
            self._groups.setdefault(run.dag_id, set()).add(group)
        self._update_backfill(run)
        self.update_dag(run.dag_id, is_paused=run.is_paused, max_active_runs=run.max_active_runs)

    def note_elsewhere(self, n_runs: Mapping[Group, int]) -> None:
        """Take over how many runs of some groups other schedulers run."""
        for group, n in n_runs.items():
            self._elsewhere.pop(group, None)
            if n:
                self._elsewhere[group] = n
            self._take_place(group)

    def groups_of(self, dag_ids: Collection[str]) -> list[Group]:
        """Return the groups of some DAGs that have runs waiting here, or of which others are known to run some."""
        groups = {group for dag_id in dag_ids for group in self._groups.get(dag_id, ())}
        return sorted(groups | {group for group in self._elsewhere if group[0] in dag_ids}, key=str)

    def began(self, run: QueuedRun) -> None:
        """Count a run as active. It waits no more, also if somebody else had begun it and nobody has told of that."""
        self.withdraw(run.key)
        group = self._group_of[run.key] = (run.dag_id, run.backfill_id)
        if run.backfill_id not in self._backfills:
            self._update_backfill(run)
        self._active.setdefault(group, set()).add(run.key)
        self._take_place(group)

    def ended(self, run: DagRunKey) -> None:
        """Count a run as active no more."""
        group = self._group_of.pop(run, None)
        if group is None:
            return
        self._active[group].discard(run)
        if not self._active[group]:
            del self._active[group]
        self._take_place(group)

    def admit(self, at_most: int | None = None) -> list[QueuedRun]:
        """Take the runs that may start now, one a group in turn, and count them as active."""
        admitted: list[QueuedRun] = []
        limit = self._at_once if at_most is None else min(at_most, self._at_once)
        while self._turns and len(admitted) < limit:
            group = next(iter(self._turns))
            run = heapq.heappop(self._waiting[group])[2]
            del self._known[run.key]
            # A group that had its turn goes last.
            del self._turns[group]
            self.began(run)
            admitted.append(run)
        return admitted

    def verdict(self, dag_id: str, backfill_id: int | None = None) -> Verdict:
        """Return whether the next queued run of a DAG, or of a backfill, may start, and if not, why."""
        group = (dag_id, backfill_id)
        if self._has_room(group):
            return MET
        dag = self._dags.get(dag_id)
        if dag is None or dag.is_paused:
            return Verdict(met=False, reason="the DAG is paused", release="it is unpaused")
        limits, whose = dag, ""
        if backfill_id is not None:
            limits, whose = self._backfills.get(backfill_id, dag), f" of the backfill {backfill_id}"
            if limits.is_paused:
                release = f"somebody unpauses it: `asynsched backfill unpause {backfill_id}`"
                return Verdict(met=False, reason=f"the backfill {backfill_id} is paused", release=release)
        active = sorted(key.run_id for key in self._active.get(group, ()))
        number = f"max_active_runs{whose} is {limits.max_active_runs}"
        return Verdict(
            met=False, reason=f"{number}, and so many are active: {', '.join(active)}", release="one of them ends"
        )

    def withdraw(self, run: DagRunKey) -> bool:
        """Take a run out of the queue; return whether it was there."""
        known = self._known.pop(run, None)
        if known is not None:
            self._take_place(known[1])
        return known is not None

    def waiting_of(self, dag_id: str) -> list[DagRunKey]:
        """Return the queued runs of a DAG."""
        return [key for key in self._known if key.dag_id == dag_id]

    @property
    def dag_ids(self) -> set[str]:
        """The DAGs that have runs here, waiting or active."""
        return {group[0] for group in self._waiting.keys() | self._active.keys()}

    @property
    def may_start_any(self) -> bool:
        """Whether a queued run could start now."""
        return bool(self._turns)

    def _update_backfill(self, run: QueuedRun) -> None:
        if run.backfill_id is not None:
            self._backfills[run.backfill_id] = Limits(run.backfill_is_paused, run.backfill_max_active_runs)

    def _take_place(self, group: Group) -> None:
        """Let a group take its turns exactly if it could start a run."""
        waiting = self._waiting.get(group, [])
        while waiting and self._known.get(waiting[0][2].key) != (waiting[0][1], group):
            heapq.heappop(waiting)  # withdrawn
        if waiting and self._has_room(group):
            self._turns.setdefault(group)
        else:
            self._turns.pop(group, None)
        if not waiting:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        dag_id, backfill_id = group
        self._waiting.pop(group, None)
        self._groups.get(dag_id, set()).discard(group)
        if not self._groups.get(dag_id):
            self._groups.pop(dag_id, None)
        if backfill_id is not None and group not in self._active:
            self._backfills.pop(backfill_id, None)

    def _has_room(self, group: Group) -> bool:
        dag_id, backfill_id = group
        dag = self._dags.get(dag_id)
        limits = dag if backfill_id is None else self._backfills.get(backfill_id)
        if dag is None or limits is None or dag.is_paused or limits.is_paused:
            return False
        return len(self._active.get(group, ())) + self._elsewhere.get(group, 0) < limits.max_active_runs


def _order(run: QueuedRun) -> datetime | float:
    if run.backfill_is_reverse and run.logical_date is not None:
        return -run.logical_date.timestamp()
    return run.run_after
