"""The tasks that a branch, a short circuit or another task with SkipMixin skips.

Source: Apache Airflow's SkipMixin. A branch skips each direct downstream that it does not follow, unless a followed
task leads to it. A short circuit skips everything downstream, or, when it respects trigger rules, the direct
downstream; it never skips teardowns. `SkipMixin.skip` skips the tasks that it is given, anywhere in the run.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from asynsched.protocol.messages import BranchDecision, Decision, SkipDecision
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import TaskInstanceState


@dataclass(frozen=True, slots=True)
class Skips:
    """The tasks that a decision skips, and why.

    `are_named`: The decision names them itself: they are skipped whatever their past, as nothing skips them later.
    """

    task_ids: frozenset[str]
    reason: str
    are_named: bool = False


def skips_of(
    decision: Decision,
    task_id: str,
    downstream: Mapping[str, Collection[str]],
    teardowns: Collection[str],
) -> Skips:
    """Return the tasks that the decision of `task_id` skips."""
    direct = frozenset(downstream[task_id])
    if isinstance(decision, BranchDecision):
        # A followed task may be further down: a branch to a task group names the group's first tasks, whichever of its
        # tasks the branch leads to.
        followed = [target for target in decision.follow if target in downstream]
        chosen = ", ".join(decision.follow) or "nothing"
        skipped = direct - set(followed) - descendants(followed, downstream)
        return Skips(skipped, f"the branch {task_id} chose {chosen}")
    if isinstance(decision, SkipDecision):
        named = frozenset(decision.task_ids) & downstream.keys() - {task_id}
        return Skips(named, f"the task {task_id} skipped it", are_named=True)
    below = descendants([task_id], downstream) if decision.ignore_downstream_trigger_rules else direct
    return Skips(frozenset(below) - frozenset(teardowns), f"the short circuit {task_id} was false")


def not_previously_skipped(task_id: str, skipped_by: Mapping[str, Collection[str]]) -> Verdict:
    """Skip a task if a finished direct upstream decided so; `skipped_by` has each upstream's decision."""
    for upstream_id, skipped in skipped_by.items():
        if task_id in skipped:
            reason = f"{upstream_id} decided to skip it, and has not run again since"
            return Verdict(met=False, reason=reason, ends_as=TaskInstanceState.SKIPPED)
    return MET


def descendants(task_ids: Iterable[str], downstream: Mapping[str, Collection[str]]) -> set[str]:
    """Return all tasks downstream of the given ones, which are included only if a path leads back to them."""
    seen: set[str] = set()
    stack = list(task_ids)
    while stack:
        for target in downstream[stack.pop()]:
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return seen


def reversed_edges(downstream: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Return the tasks directly upstream of each task."""
    upstream: dict[str, list[str]] = {task_id: [] for task_id in downstream}
    for task_id, targets in downstream.items():
        for target in targets:
            upstream[target].append(task_id)
    return {task_id: tuple(found) for task_id, found in upstream.items()}
