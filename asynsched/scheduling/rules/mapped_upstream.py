"""May a mapped task be expanded, given how the tasks ended whose results it is mapped over?

Source: Apache Airflow's `MappedTaskUpstreamDep`. They must succeed, whatever the trigger rule says; one that was
expanded itself has neither failed nor been skipped as a whole, and does not count.
"""

from collections.abc import Collection

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import FAILED_TASK_STATES, FINISHED_TASK_STATES, TaskInstanceState

SKIPPED, UPSTREAM_FAILED = TaskInstanceState.SKIPPED, TaskInstanceState.UPSTREAM_FAILED


def mapped_upstream(states: Collection[TaskInstanceState | None]) -> Verdict:
    """Decide by the states of the unexpanded instances of those tasks."""
    finished = FINISHED_TASK_STATES.intersection(states)
    if not finished or finished == {TaskInstanceState.SUCCESS}:
        return MET
    settled = None
    if finished & FAILED_TASK_STATES:
        settled = UPSTREAM_FAILED
    elif SKIPPED in finished:
        settled = SKIPPED
    names = ", ".join(sorted(finished))
    return Verdict(met=False, reason=f"what it is mapped over did not all succeed: {names}", settle_as=settled)
