"""The tasks that branches and short circuits leave out, computed in the simplest way."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from asynsched.protocol.messages import BranchDecision, ShortCircuitDecision
from asynsched.serialization.schema import SerializedTask

Key = tuple[str, int]
Decision = BranchDecision | ShortCircuitDecision


class Decided(NamedTuple):
    """The decision of a branch or a short circuit that has ended.

    Attributes:
        begun: The task instances that had begun by then, and go on.
        begun_if_ready: Those that had begun if they were ready by then.
        restarting: Those that were cleared while they ran: they are decided again when their tries are gone.
    """

    decision: Decision
    begun: Collection[Key] = ()
    begun_if_ready: Collection[Key] = ()
    restarting: Collection[Key] = ()


def left_out_by(name: str, decision: Decision, tasks: Mapping[str, SerializedTask]) -> set[str]:
    """Return the tasks that a branch or a short circuit of this name leaves out."""
    below = {other: list(task.downstream_task_ids) for other, task in tasks.items()}
    if isinstance(decision, BranchDecision):
        followed = {*decision.follow}.union(*(reachable(other, below) for other in decision.follow))
        return set(below[name]) - followed
    found = reachable(name, below) if decision.ignore_downstream_trigger_rules else set(below[name])
    return {other for other in found if not tasks[other].is_teardown}


def reachable(start: str, edges: Mapping[str, list[str]]) -> set[str]:
    """Return the tasks that these edges reach from a task."""
    found: set[str] = set()
    todo = list(edges[start])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += edges[name]
    return found
