"""Which queued runs may start: Airflow's `max_active_runs`, the DAG's pause, and fairness between DAGs."""

import heapq
from dataclasses import dataclass

from asynsched.keys import DagRunKey
from asynsched.store.run_queue import QueuedRun

MAX_STARTED_AT_ONCE = 20
"""Runs that one pass starts (Airflow: max_dagruns_per_loop_to_schedule)."""


@dataclass(slots=True)
class DagAdmission:
    """What one DAG's queued runs depend on."""

    is_paused: bool
    max_active_runs: int


class Admission:
    """The queued runs of every DAG, oldest first; DAGs take turns."""

    def __init__(self) -> None:
        self._dags: dict[str, DagAdmission] = {}
        self._waiting: dict[str, list[tuple[object, int, QueuedRun]]] = {}
        self._known: set[int] = set()
        self._active: dict[str, set[DagRunKey]] = {}

    def update_dag(self, dag_id: str, *, is_paused: bool, max_active_runs: int) -> None:
        """Take over what the database says of a DAG."""
        self._dags[dag_id] = DagAdmission(is_paused, max_active_runs)

    def add(self, run: QueuedRun) -> None:
        """Let a queued run wait; one that waits already only tells what has changed of its DAG."""
        self.update_dag(run.dag_id, is_paused=run.is_paused, max_active_runs=run.max_active_runs)
        if run.id in self._known:
            return
        self._known.add(run.id)
        heapq.heappush(self._waiting.setdefault(run.dag_id, []), (run.run_after, run.id, run))

    def began(self, run: DagRunKey) -> None:
        """Count a run as active."""
        self._active.setdefault(run.dag_id, set()).add(run)

    def ended(self, run: DagRunKey) -> None:
        """Count a run as active no more."""
        active = self._active.get(run.dag_id, set())
        active.discard(run)
        if not active:
            self._active.pop(run.dag_id, None)

    def admit(self, at_most: int = MAX_STARTED_AT_ONCE) -> list[QueuedRun]:
        """Take the runs that may start now, one a DAG in turn, and count them as active."""
        admitted: list[QueuedRun] = []
        candidates = [dag_id for dag_id in self._waiting if self._may_start(dag_id)]
        while candidates and len(admitted) < at_most:
            for dag_id in candidates[: at_most - len(admitted)]:
                run = heapq.heappop(self._waiting[dag_id])[2]
                self._known.discard(run.id)
                self.began(run.key)
                admitted.append(run)
                # A DAG that had its turn goes last the next time.
                self._waiting[dag_id] = self._waiting.pop(dag_id)
                if not self._waiting[dag_id]:
                    del self._waiting[dag_id]
            candidates = [dag_id for dag_id in candidates if self._may_start(dag_id)]
        return admitted

    def withdraw(self, run: DagRunKey) -> None:
        """Take a run out of the queue because it was cancelled."""
        heap = self._waiting.get(run.dag_id, [])
        for entry in [entry for entry in heap if entry[2].run_id == run.run_id]:
            heap.remove(entry)
            self._known.discard(entry[1])
        heapq.heapify(heap)

    @property
    def dag_ids(self) -> set[str]:
        """The DAGs that have runs here, waiting or active."""
        return self._waiting.keys() | self._active.keys()

    @property
    def may_start_any(self) -> bool:
        """Whether a queued run could start now."""
        return any(self._may_start(dag_id) for dag_id in self._waiting)

    def _may_start(self, dag_id: str) -> bool:
        dag = self._dags[dag_id]
        return (
            bool(self._waiting.get(dag_id))
            and not dag.is_paused
            and len(self._active.get(dag_id, ())) < dag.max_active_runs
        )
