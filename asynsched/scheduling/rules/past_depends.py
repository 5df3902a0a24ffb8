"""Whether a task may run, by its run's place in time: the run before, and the task's `start_date` and `end_date`."""

from dataclasses import dataclass
from datetime import datetime

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import DagRunType, TaskInstanceState

GOOD_STATES = frozenset({TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED})


@dataclass(frozen=True, slots=True)
class PastTask:
    """A task in the run before.

    Attributes:
        run_id: The run before.
        n_instances: How many instances the task had there; 0 if that run did not have the task, or if its logical date
            was outside the task's dates.
        n_bad: How many of those have neither succeeded nor been skipped.
        n_bad_downstream: The same count over the tasks directly downstream.
        has_earlier: Whether any earlier run had the task.
        is_too_early: Whether, with `catchup`, the task's `start_date` is after the logical date of the run before.
    """

    run_id: str
    n_instances: int
    n_bad: int
    n_bad_downstream: int
    has_earlier: bool = True
    is_too_early: bool = False


def past_depends(task: SerializedTask, past: PastTask | None) -> Verdict:
    """Decide by `depends_on_past` and `wait_for_downstream`.

    Args:
        past: The task in the run with the next earlier logical date; with `catchup`, manual runs are passed over. None
            if there is no such run.

    Source:
        Apache Airflow's `PrevDagrunDep`.
    """
    if not task.depends_on_past or past is None or past.is_too_early:
        return MET
    if not past.n_instances:
        if task.ignore_first_depends_on_past and not past.has_earlier:
            return MET
        return Verdict(met=False, reason=f"the run before, {past.run_id}, has no such task")
    if past.n_bad:
        what = "it has" if past.n_instances == 1 else f"{past.n_bad} of its {past.n_instances} instances have"
        return Verdict(met=False, reason=f"{what} not succeeded in the run before, {past.run_id}")
    if task.wait_for_downstream and past.n_bad_downstream:
        n_bad = past.n_bad_downstream
        what = "1 task downstream of it has" if n_bad == 1 else f"{n_bad} tasks downstream of it have"
        return Verdict(met=False, reason=f"wait_for_downstream: {what} not succeeded in the run before, {past.run_id}")
    return MET


def is_too_early(task: SerializedTask, past_date: datetime | None, *, catchup: bool) -> bool:
    """Whether a task does not depend on a run of this logical date, because it had not begun to be part of the DAG."""
    return catchup and task.start_date is not None and past_date is not None and past_date < task.start_date


def within_task_dates(task: SerializedTask, logical_date: datetime | None, run_type: str) -> Verdict:
    """Decide by a task's `start_date` and `end_date`, which do not apply to backfills or without a logical date."""
    if logical_date is None or run_type == DagRunType.BACKFILL:
        return MET
    reason = ""
    if task.start_date is not None and logical_date < task.start_date:
        reason = f"its start_date {task.start_date.isoformat()} is after the run's logical date"
    elif task.end_date is not None and logical_date > task.end_date:
        reason = f"its end_date {task.end_date.isoformat()} is before the run's logical date"
    return Verdict(met=False, reason=reason, ends_as=TaskInstanceState.REMOVED) if reason else MET
