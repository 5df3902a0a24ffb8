"""All that must hold before a task instance of an active run may start, limits aside: one verdict of each rule."""

from collections.abc import Iterator

from asynsched.scheduling.active_task import ActiveTask
from asynsched.scheduling.rules.mapped_upstream import mapped_upstream
from asynsched.scheduling.rules.past_depends import past_depends
from asynsched.scheduling.rules.previously_skipped import not_previously_skipped
from asynsched.scheduling.rules.task_dates import within_task_dates
from asynsched.scheduling.rules.trigger_rule import evaluate, evaluate_setups
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import TaskInstanceState


def verdict_of(task: ActiveTask) -> Verdict:
    """Return whether a task instance may start: the first verdict that settles it, else the first that holds it."""
    held: Verdict | None = None
    for verdict in verdicts(task):
        if verdict.settle_as is not None:
            return _unless_past_is_awaited(task, verdict)
        if not verdict.met and held is None:
            held = verdict
    return held or MET


def verdicts(task: ActiveTask) -> Iterator[Verdict]:
    """Yield what each rule says of a task instance, in the order in which they decide."""
    run = task.run
    yield within_task_dates(task.task, run.logical_date, run.run_type)
    if run.structure.map_sources[task.task_id]:
        yield mapped_upstream(_unexpanded_sources(task))
    yield not_previously_skipped(task.task_id, _decisions_above(task))
    ends = run.ends_of(task)
    if ends.setups.total:
        yield evaluate_setups(ends.setups, map_index=task.map_index)
    yield evaluate(task.task.trigger_rule, ends.direct, map_index=task.map_index)
    yield past_depends(task.task, run.past.get(task.task_id))


def _unless_past_is_awaited(task: ActiveTask, verdict: Verdict) -> Verdict:
    """Hold a skip back where a task is to wait for its past before that (wait_for_past_depends_before_skipping)."""
    if verdict.settle_as is not TaskInstanceState.SKIPPED or not task.task.wait_for_past_depends_before_skipping:
        return verdict
    past = past_depends(task.task, task.run.past.get(task.task_id))
    return verdict if past.met else Verdict(met=False, reason=f"to be skipped, but first: {past.reason}")


def _unexpanded_sources(task: ActiveTask) -> list[TaskInstanceState | None]:
    found = (task.run.instances[source].get(-1) for source in task.run.structure.map_sources[task.task_id])
    return [source.state for source in found if source is not None]


def _decisions_above(task: ActiveTask) -> dict[str, frozenset[str]]:
    """Return what the direct upstreams that have ended decided to skip, by task_id."""
    decisions = {}
    for upstream_id in task.run.structure.deciders[task.task_id]:
        instances = task.run.instances[upstream_id]
        upstream = instances.get(task.map_index) or instances.get(-1)
        if upstream is not None and upstream.is_finished:
            decisions[upstream_id] = upstream.skips
    return decisions
