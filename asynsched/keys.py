"""The keys of DagRuns and TaskInstances: plain values for queues, logs and messages."""

from typing import NamedTuple


class DagRunKey(NamedTuple):
    """Identifies one DagRun."""

    dag_id: str
    run_id: str


class TaskInstanceKey(NamedTuple):
    """Identifies one TaskInstance; `map_index` is -1 unless the task is mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def run(self) -> DagRunKey:
        return DagRunKey(self.dag_id, self.run_id)
