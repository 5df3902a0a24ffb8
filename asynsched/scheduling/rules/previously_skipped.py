"""A branch's or short circuit's decision holds when a task that it skipped is cleared.

Source: Apache Airflow's `NotPreviouslySkippedDep`.
"""

from collections.abc import Collection, Mapping

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import TaskInstanceState


def not_previously_skipped(task_id: str, skipped_by: Mapping[str, Collection[str]]) -> Verdict:
    """Decide by what the finished direct upstreams of a task have skipped, by their task_id."""
    for upstream_id, skipped in skipped_by.items():
        if task_id in skipped:
            reason = f"{upstream_id} decided to skip it, and has not run again since"
            return Verdict(met=False, reason=reason, settle_as=TaskInstanceState.SKIPPED)
    return MET
