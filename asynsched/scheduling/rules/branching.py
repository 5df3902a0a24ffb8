"""What a branch or a short circuit skips.

Source: Apache Airflow's SkipMixin. A branch skips each direct downstream that it does not follow, unless that one is
downstream of one that it follows. A short circuit skips everything downstream, or, when it respects trigger rules,
what is directly downstream; teardowns are never skipped by either.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from asynsched.protocol.messages import BranchDecision, ShortCircuitDecision


@dataclass(frozen=True, slots=True)
class Skips:
    """The tasks that a decision skips, and why."""

    task_ids: frozenset[str]
    reason: str


def skips_of(
    decision: BranchDecision | ShortCircuitDecision,
    task_id: str,
    downstream: Mapping[str, Collection[str]],
    teardowns: Collection[str],
) -> Skips:
    """Return what the decision of `task_id` skips."""
    if isinstance(decision, BranchDecision):
        chosen = ", ".join(decision.follow) or "nothing"
        skipped = skipped_by_branch(task_id, decision.follow, downstream)
        return Skips(skipped, f"the branch {task_id} chose {chosen}")
    ignore = decision.ignore_downstream_trigger_rules
    skipped = skipped_by_short_circuit(task_id, downstream, teardowns, ignore_downstream_trigger_rules=ignore)
    return Skips(skipped, f"the short circuit {task_id} was false")


def skipped_by_branch(
    task_id: str, follow: Collection[str], downstream: Mapping[str, Collection[str]]
) -> frozenset[str]:
    """Return the direct downstream tasks of `task_id` that are skipped because it followed others.

    What it followed may be further down: a branch to a task group names the group's first tasks, whichever of its tasks
    the branch was joined to.
    """
    followed = [target for target in follow if target in downstream]
    kept = set(followed) | descendants(followed, downstream)
    return frozenset(downstream[task_id]) - kept


def skipped_by_short_circuit(
    task_id: str,
    downstream: Mapping[str, Collection[str]],
    teardowns: Collection[str] = (),
    *,
    ignore_downstream_trigger_rules: bool = True,
) -> frozenset[str]:
    """Return the tasks that are skipped because the condition of `task_id` was false."""
    if ignore_downstream_trigger_rules:
        return frozenset(descendants([task_id], downstream)) - frozenset(teardowns)
    return frozenset(downstream[task_id]) - frozenset(teardowns)


def descendants(task_ids: Iterable[str], downstream: Mapping[str, Collection[str]]) -> set[str]:
    """Return everything downstream of the given tasks, themselves only if a path leads back to them."""
    seen: set[str] = set()
    stack = list(task_ids)
    while stack:
        for target in downstream[stack.pop()]:
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return seen
