"""A task's own `start_date` and `end_date`: in a run of a date outside of them, the task is not there.

Source: Apache Airflow makes no instance of such a task, except in a backfill. Here it has one, removed, with the
reason, and what is downstream goes on as if it were not there.
"""

from datetime import datetime

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import DagRunType, TaskInstanceState


def within_task_dates(task: SerializedTask, logical_date: datetime | None, run_type: str) -> Verdict:
    """Decide by the run's logical date; one that has none, or is a backfill's, has every task."""
    if logical_date is None or run_type == DagRunType.BACKFILL:
        return MET
    removed = TaskInstanceState.REMOVED
    if task.start_date is not None and logical_date < task.start_date:
        reason = f"its start_date {task.start_date.isoformat()} is after the run's logical date"
        return Verdict(met=False, reason=reason, settle_as=removed)
    if task.end_date is not None and logical_date > task.end_date:
        reason = f"its end_date {task.end_date.isoformat()} is before the run's logical date"
        return Verdict(met=False, reason=reason, settle_as=removed)
    return MET
