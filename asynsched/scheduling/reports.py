"""The metrics and log lines about tries and runs, made from each batch once it is stored.

Writing a log line takes as long as a decision about a task. So a thousand failures at once must not make a line each:
beyond MOST_LINES, they are counted.
"""

from datetime import datetime, timedelta
from typing import Any

import structlog

from asynsched.metrics.base import Metrics
from asynsched.protocol.messages import Ended
from asynsched.scheduling.announcements import is_stale
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.changes import TryResult
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs.transitions import Stale

log = structlog.get_logger(__name__)

SPAN = timedelta(seconds=10)
MOST_LINES = 20
"""How many failed tries are logged one by one within a SPAN."""
FAILED_STATES = frozenset({State.FAILED, State.UP_FOR_RETRY})


class RunMetrics:
    """The counters and timers of a scheduler's runs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def stored(self, pending: PendingBatch, stale: Stale) -> None:
        """Update the metrics from a stored batch, except its stale changes. Call this before `mark_stored`."""
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


class TryLog:
    """Logs `try.failed` and `tries.failed`, and `try.started` and `try.ended` if it `tells_all`."""

    def __init__(self, *, tells_all: bool) -> None:
        self._tells_all = tells_all
        self._n_told = 0
        self._n_untold = 0
        self._span_ends_at: datetime | None = None

    @property
    def due_at(self) -> datetime | None:
        """When to call `time_passed`, which logs the failures that were only counted."""
        return self._span_ends_at if self._n_untold else None

    def stored(self, pending: PendingBatch, stale: Stale, now: datetime) -> None:
        """Log a stored batch, except its stale changes. Call this before `mark_stored`."""
        self.time_passed(now)
        if self._tells_all:
            for task in pending.tasks.values():
                before = task.stored_state
                if task.state is State.RUNNING and before is not task.state and not is_stale(task, stale):
                    log.debug("try.started", **_names(task, task.try_number))
        for result in pending.results:
            if not is_stale(result.task, stale):
                self._ended(result, now)

    def time_passed(self, now: datetime) -> None:
        """Begin to log failures one by one again, if the span is over."""
        if self._span_ends_at is not None and now >= self._span_ends_at:
            self.flush()

    def flush(self) -> None:
        """Log the number of failures that were only counted."""
        if self._n_untold:
            seconds = int(SPAN.total_seconds())
            log.warning("tries.failed", n_more=self._n_untold, beside=f"the {self._n_told} of the same {seconds} s")
        self._n_told = self._n_untold = 0
        self._span_ends_at = None

    def _ended(self, result: TryResult, now: datetime) -> None:
        if result.outcome.state in FAILED_STATES:
            if self._span_ends_at is None:
                self._span_ends_at = now + SPAN
            if self._n_told < MOST_LINES or self._tells_all:
                self._n_told += 1
                log.warning("try.failed", **_facts(result))
            else:
                self._n_untold += 1
        elif self._tells_all:
            log.debug("try.ended", **_facts(result))


def _names(task: ActiveTask, try_number: int) -> dict[str, Any]:
    key = task.key
    index = {} if key.map_index < 0 else {"map_index": key.map_index}
    return {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, **index, "try_number": try_number}


def _facts(result: TryResult) -> dict[str, Any]:
    ended, outcome = result.ended, result.outcome
    facts = _names(result.task, result.try_number) | {"state": str(outcome.state)}
    if outcome.reason:
        facts["reason"] = outcome.reason
    if ended.started_at is not None:
        facts["seconds"] = round((ended.ended_at - ended.started_at).total_seconds(), 3)
    if outcome.state is State.UP_FOR_RETRY and outcome.next_try_at is not None:
        facts["retry_at"] = outcome.next_try_at.isoformat(timespec="seconds")
    return facts
