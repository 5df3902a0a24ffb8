"""The keys of DagRuns and TaskInstances: plain values for queues, logs and messages."""

from typing import NamedTuple

LATEST = "latest"
"""Names the newest run of a DAG, by `run_after`; no run may be triggered under this name."""


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


def instance_name(task_id: str, map_index: int) -> str:
    """Return the name of a task instance within its run: `load`, or `load[3]` if the task is mapped."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"
