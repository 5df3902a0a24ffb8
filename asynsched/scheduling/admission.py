"""Which queued runs may start: Airflow's `max_active_runs`, the DAG's pause, and fairness between DAGs."""

import heapq
from dataclasses import dataclass
from datetime import datetime

from asynsched.keys import DagRunKey
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.store.run_queue import QueuedRun


@dataclass(slots=True)
class DagAdmission:
    """What one DAG's queued runs depend on."""

    is_paused: bool
    max_active_runs: int


class Admission:
    """The queued runs of every DAG, oldest first; DAGs take turns.

    The DAGs that could start a run are kept in the order of their turns, so that no step looks at the others.

    Args:
        at_once: Most runs that one pass starts.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._dags: dict[str, DagAdmission] = {}
        self._waiting: dict[str, list[tuple[datetime, int, QueuedRun]]] = {}
        self._known: dict[DagRunKey, int] = {}
        self._active: dict[str, set[DagRunKey]] = {}
        self._turns: dict[str, None] = {}

    def update_dag(self, dag_id: str, *, is_paused: bool, max_active_runs: int) -> None:
        """Take over what the database says of a DAG."""
        self._dags[dag_id] = DagAdmission(is_paused, max_active_runs)
        self._take_place(dag_id)

    def add(self, run: QueuedRun) -> None:
        """Let a queued run wait; one that waits already only tells what has changed of its DAG."""
        if run.key not in self._known:
            self._known[run.key] = run.id
            heapq.heappush(self._waiting.setdefault(run.dag_id, []), (run.run_after, run.id, run))
        self.update_dag(run.dag_id, is_paused=run.is_paused, max_active_runs=run.max_active_runs)

    def began(self, run: DagRunKey) -> None:
        """Count a run as active."""
        self._active.setdefault(run.dag_id, set()).add(run)
        self._take_place(run.dag_id)

    def ended(self, run: DagRunKey) -> None:
        """Count a run as active no more."""
        active = self._active.get(run.dag_id, set())
        active.discard(run)
        if not active:
            self._active.pop(run.dag_id, None)
        self._take_place(run.dag_id)

    def admit(self) -> list[QueuedRun]:
        """Take the runs that may start now, one a DAG in turn, and count them as active."""
        admitted: list[QueuedRun] = []
        while self._turns and len(admitted) < self._at_once:
            dag_id = next(iter(self._turns))
            run = heapq.heappop(self._waiting[dag_id])[2]
            del self._known[run.key]
            # A DAG that had its turn goes last.
            del self._turns[dag_id]
            self.began(run.key)
            admitted.append(run)
        return admitted

    def verdict(self, dag_id: str) -> Verdict:
        """Return whether a DAG's next queued run may start, and if not, why."""
        if self._has_room(dag_id):
            return MET
        dag = self._dags.get(dag_id)
        if dag is None or dag.is_paused:
            return Verdict(met=False, reason="the DAG is paused", release="it is unpaused")
        active = sorted(key.run_id for key in self._active.get(dag_id, ()))
        reason = f"max_active_runs is {dag.max_active_runs}, and so many are active: {', '.join(active)}"
        return Verdict(met=False, reason=reason, release="one of them ends")

    def withdraw(self, run: DagRunKey) -> bool:
        """Take a run out of the queue because it was cancelled; return whether it was there."""
        was_known = self._known.pop(run, None) is not None
        if was_known:
            self._take_place(run.dag_id)
        return was_known

    @property
    def dag_ids(self) -> set[str]:
        """The DAGs that have runs here, waiting or active."""
        return self._waiting.keys() | self._active.keys()

    @property
    def may_start_any(self) -> bool:
        """Whether a queued run could start now."""
        return bool(self._turns)

    def _take_place(self, dag_id: str) -> None:
        """Let a DAG take its turns exactly if it could start a run."""
        waiting = self._waiting.get(dag_id, [])
        while waiting and self._known.get(waiting[0][2].key) != waiting[0][1]:
            heapq.heappop(waiting)  # withdrawn
        if not waiting:
            self._waiting.pop(dag_id, None)
        if waiting and self._has_room(dag_id):
            self._turns.setdefault(dag_id)
        else:
            self._turns.pop(dag_id, None)

    def _has_room(self, dag_id: str) -> bool:
        dag = self._dags.get(dag_id)
        return dag is not None and not dag.is_paused and len(self._active.get(dag_id, ())) < dag.max_active_runs
