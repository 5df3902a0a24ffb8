"""What the processes of tasks themselves would have written down: who ran, when, and how it ended."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from sandbox.protocol import BranchDecision, Ended, Launch, ShortCircuitDecision

Key = tuple[str, str, str, int]
"""DAG, run, task, map index."""
End = Literal["success", "failed", "skipped", "up_for_reschedule", "deferred", "killed", "interrupted"]


class Violation(AssertionError):
    """Something has happened that must never happen."""


@dataclass
class Execution:
    """The user code of one try, from its first line to its last."""

    key: Key
    token: str
    try_number: int
    pool: str
    pool_slots: int
    started_at: float
    end: End | None = None
    decision: BranchDecision | ShortCircuitDecision | None = None
    result_length: int | None = None
    is_resumed: bool = False


class Ledger:
    """All executions of task instances, in the order in which they began, and those that run now."""

    def __init__(self) -> None:
        self.executions: dict[Key, list[Execution]] = defaultdict(list)
        self.running: dict[Key, Execution] = {}
        self.tokens: dict[str, Execution] = {}
        self.callbacks: dict[tuple[str, str, str, int, str], list[str]] = defaultdict(list)
        """How the attempts at each callback ended: by DAG, run, task, map index and event."""

    def begin(self, launch: Launch, now: float, pool: str, pool_slots: int) -> Execution:
        """User code of a try of a task begins. Raises Violation when another one of it runs, or this one ran before."""
        key = launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
        if (other := self.running.get(key)) is not None:
            raise Violation(f"two tries of {key} run at once: {other.token} and {launch.token}")
        if launch.token in self.tokens:
            raise Violation(f"the try {launch.token} of {key} runs a second time")
        made = Execution(
            key, launch.token, launch.try_number, pool, pool_slots, now, is_resumed=launch.resume is not None
        )
        self.running[key] = self.tokens[launch.token] = made
        self.executions[key].append(made)
        return made

    def end(self, execution: Execution, end: End, said: Ended | None) -> None:
        """User code of a try is over, with what it says itself of that."""
        del self.running[execution.key]
        execution.end = end
        if said is not None:
            execution.decision, execution.result_length = said.decision, said.result_length
