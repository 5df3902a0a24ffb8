"""`depends_on_past` and `wait_for_downstream`: may a task run, given how it went in the run before?

Source: Apache Airflow's `PrevDagrunDep`. The run before is the one of the next earlier logical date, by hand or not;
with `catchup`, the one of the next earlier that no one made by hand. Where there is none, a task has no past.
"""

from dataclasses import dataclass

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import TaskInstanceState

GOOD_STATES = frozenset({TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED})


@dataclass(frozen=True, slots=True)
class PastTask:
    """A task in the run before.

    Attributes:
        run_id: That run.
        n_instances: How many instances the task had there; 0: it was not part of it.
        n_bad: How many of them have not succeeded, nor been skipped, as yet.
        n_bad_downstream: The same of the tasks directly downstream of it.
        has_earlier: Whether any earlier run had the task.
    """

    run_id: str
    n_instances: int
    n_bad: int
    n_bad_downstream: int
    has_earlier: bool = True


def past_depends(task: SerializedTask, past: PastTask | None) -> Verdict:
    """Decide by what a task did in the run before; None: there was no such run."""
    if not task.depends_on_past or past is None:
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
        reason = f"wait_for_downstream: {what} not succeeded in the run"
        return Verdict(met=False, reason=f"{reason} before, {past.run_id}")
    return MET
