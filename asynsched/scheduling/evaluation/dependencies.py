"""Every dependency that must be met before a task instance of an active run may start: one verdict of each rule.

Limits, such as pools, are not among them.
"""

from collections.abc import Callable

from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.rules.branching import not_previously_skipped
from asynsched.scheduling.rules.past_depends import past_depends, within_task_dates
from asynsched.scheduling.rules.trigger_rule import evaluate, evaluate_setups, mapped_upstream
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import TaskInstanceState


def verdict_of(task: ActiveTask) -> Verdict:
    """Return whether a task instance may start: the first verdict that settles it, else the first that is not met."""
    held: Verdict | None = None
    for name, dependency in DEPENDENCIES.items():
        if name in task.ignored:
            continue
        verdict = dependency(task)
        if verdict.settle_as is TaskInstanceState.SKIPPED and not may_be_skipped(task):
            return Verdict(met=False, reason=f"to be skipped, but first: {_past(task).reason}")
        if verdict.settle_as is not None:
            return verdict
        if not verdict.met and held is None:
            held = verdict
    return held or MET


def may_be_skipped(task: ActiveTask) -> bool:
    """Whether a task instance need not wait for its past before it is skipped."""
    return not task.task.wait_for_past_depends_before_skipping or _past(task).met


def _dates(task: ActiveTask) -> Verdict:
    return within_task_dates(task.task, task.run.logical_date, task.run.run_type)


def _mapped_upstream(task: ActiveTask) -> Verdict:
    sources = task.run.structure.map_sources[task.task_id]
    if not sources:
        return MET
    unexpanded = (task.run.instances[source].get(-1) for source in sources)
    return mapped_upstream([source.state for source in unexpanded if source is not None])


def _previously_skipped(task: ActiveTask) -> Verdict:
    decisions = {}
    for upstream_id in task.run.structure.deciders[task.task_id]:
        instances = task.run.instances[upstream_id]
        upstream = instances.get(task.map_index) or instances.get(-1)
        if upstream is not None and upstream.is_finished:
            decisions[upstream_id] = upstream.skips
    return not_previously_skipped(task.task_id, decisions)


def _setups(task: ActiveTask) -> Verdict:
    setups = task.run.ends_of(task).setups
    return evaluate_setups(setups, map_index=task.map_index) if setups.total else MET


def _trigger_rule(task: ActiveTask) -> Verdict:
    return evaluate(task.task.trigger_rule, task.run.ends_of(task).direct, map_index=task.map_index)


def _past(task: ActiveTask) -> Verdict:
    return past_depends(task.task, task.run.past.get(task.task_id))


DEPENDENCIES: dict[str, Callable[[ActiveTask], Verdict]] = {
    "task_dates": _dates,
    "mapped_upstream": _mapped_upstream,
    "previously_skipped": _previously_skipped,
    "setups": _setups,
    "trigger_rule": _trigger_rule,
    "depends_on_past": _past,
}
"""Every dependency by name, in the order in which they decide."""
IGNORABLE = frozenset(DEPENDENCIES) - {"mapped_upstream"}
"""The dependencies that forcing a task may ignore. Without its mapped upstream, a mapped task has no instances."""
