"""The figures of tries and runs: made of each batch once it is stored."""

from datetime import datetime

from asynsched.metrics.base import Metrics
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType, TaskInstanceState
from asynsched.store.runs.changes import Stale
from sandbox.protocol import Ended

State = TaskInstanceState


class RunMetrics:
    """Counts and times what a scheduler's runs do."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def stored(self, pending: PendingBatch, stale: Stale) -> None:
        """Take the figures of a batch that was stored, less what was stale. Call it before `mark_stored`."""
        if not self._metrics.are_wanted:
            return
        for changed in pending.tasks.values():
            if changed.run.id not in stale.run_ids:
                self._task(changed)
        for ended, task in pending.ends:
            if task is not None and task.run.id not in stale.run_ids:
                self._end(ended, task)
        for run in pending.runs.values():
            if run.id not in stale.runs:
                self._run(run)
        if pending.asset_events:
            self._metrics.count("asset.updates", n=len(pending.asset_events))

    def _run(self, run: ActiveRun) -> None:
        dag_id = run.key.dag_id
        if run.state in FINISHED_RUN_STATES:
            self._time(f"dagrun.duration.{run.state}", run.started_at, run.ended_at, dag_id)
        elif run.stored_state is DagRunState.QUEUED and run.run_type == DagRunType.SCHEDULED:
            self._time("dagrun.schedule_delay", run.run_after, run.started_at, dag_id)

    def _task(self, task: ActiveTask) -> None:
        before, after, key = task.stored_state, task.state, (task.run.key.dag_id, task.task_id)
        if after is State.QUEUED and before is not State.QUEUED:
            self._time("task.scheduled_duration", task.scheduled_at, task.queued_at, *key)
        elif after is State.RUNNING and before is State.QUEUED:
            self._begun(task, key)

    def _begun(self, task: ActiveTask, key: tuple[str, str]) -> None:
        self._metrics.count("ti.start", *key)
        self._time("task.queued_duration", task.queued_at, task.started_at, *key)

    def _end(self, ended: Ended, task: ActiveTask) -> None:
        key = (task.run.key.dag_id, task.task_id)
        if ended.started_at is not None and task.stored_state is State.QUEUED:
            self._begun(task, key)
        self._metrics.count("ti.finish", *key, str(task.state))
        self._time("task.duration", ended.started_at, ended.ended_at, *key)
        if ended.state == "success":
            self._metrics.count("ti_successes", *key)
            self._metrics.count("operator_successes", task.task.task_type)
        elif ended.state == "failed" and ended.cause == "task":
            self._metrics.count("ti_failures", *key)
            self._metrics.count("operator_failures", task.task.task_type)

    def _time(self, name: str, start: datetime | None, end: datetime | None, *labels: str) -> None:
        if start is not None and end is not None:
            self._metrics.time(name, max(0.0, (end - start).total_seconds()), *labels)
