"""The records that the processes of tasks would have made: the executions, their times, and their ends."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from asynsched.authoring.triggers.base import FAIL_METHOD, TRIGGER_TIMEOUT
from asynsched.protocol.messages import BranchDecision, Deferral, Ended, Launch, Resume, ShortCircuitDecision
from asynsched.scheduling.triggerer import MAX_FAILURES

Key = tuple[str, str, str, int]
"""DAG, run, task, map index."""
End = Literal["success", "failed", "skipped", "up_for_reschedule", "deferred", "killed", "interrupted"]


RESOLUTION = 0.001
"""Seconds that stamps may be apart."""


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


@dataclass
class Waiting:
    """The trigger of a deferred try, and its outcome, each time that it ran.

    Attributes:
        since: When it was deferred, in the world's seconds.
        n_events: How often its trigger has fired an event.
        ends: The states that its trigger has wanted its task to end in.
        n_errors: How often its trigger has failed.
        has_hung: Whether its trigger has had a host hang.
        resumption: How the try was resumed.
    """

    deferral: Deferral
    since: float
    n_events: int = 0
    ends: set[str] = field(default_factory=set)
    n_errors: int = 0
    has_hung: bool = False
    resumption: Resume | None = None

    def problem(self, resume: Resume, token: str, now: float, n_seconds_off: float, n_deaths: int) -> str:
        """Return the error in a resumption of the try; empty if it is correct."""
        if self.resumption not in (None, resume):
            return f"was resumed with {self.resumption}, and now with {resume}"
        if resume.method_name != FAIL_METHOD:
            event = resume.kwargs["event"]
            if resume.kwargs.get("deferred_by") != token or event["of"] != token:
                return f"is resumed with the deferral of another try: {resume}"
            return "" if event["number"] <= self.n_events else f"is resumed with an event that was never fired: {event}"
        if resume.kwargs["error"] == TRIGGER_TIMEOUT:
            timeout = self.deferral.timeout
            is_due = timeout is not None and self.since + timeout <= now + n_seconds_off + RESOLUTION
            return "" if is_due else f"times out after {now - self.since:g} s, with a timeout of {timeout}"
        has_failed = self.n_errors or n_deaths >= MAX_FAILURES
        return "" if has_failed else "is said to have a trigger that has failed"


class Ledger:
    """All executions of task instances, in the order in which they began, and those that run now."""

    def __init__(self) -> None:
        self.executions: dict[Key, list[Execution]] = defaultdict(list)
        self.running: dict[Key, Execution] = {}
        self.tokens: dict[str, Execution] = {}
        self.given_up: set[str] = set()
        """Tries that were given up: whatever became of them does not count."""
        self.deferrals: dict[str, Waiting] = {}
        """The deferrals of tries, by the token of each."""
        self.given_up_at = -1.0
        """When a scheduler was last given up by another one."""
        self.host_deaths: list[float] = []
        """When processes of trigger hosts were killed, or have died."""
        self.callbacks: dict[tuple[str, str, str, int, str], list[str]] = defaultdict(list)
        """How the attempts at each callback ended: by DAG, run, task, map index and event."""

    def begin(self, launch: Launch, now: float, pool: str, pool_slots: int) -> Execution:
        """User code of a try of a task begins. Raises Violation when another one of it runs, or this one ran before."""
        key = launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
        if (other := self.running.get(key)) is not None:
            raise Violation(f"two tries of {key} run at once: {other.token} and {launch.token}")
        if launch.token in self.tokens:
            raise Violation(f"the try {launch.token} of {key} runs a second time")
        made = Execution(key, launch.token, launch.try_number, pool, pool_slots, now)
        self.running[key] = self.tokens[launch.token] = made
        self.executions[key].append(made)
        return made

    def begin_adrift(self, launch: Launch, now: float) -> Execution:
        """User code of a try begins that was given up while its machine stood still: it may, and does not count."""
        key = launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
        if launch.token in self.tokens:
            raise Violation(f"the try {launch.token} of {key} runs a second time")
        made = self.tokens[launch.token] = Execution(key, launch.token, launch.try_number, "", 0, now)
        self.given_up.add(launch.token)
        return made

    def give_up(self, token: str) -> None:
        """A try on another machine is taken for lost: it may be repeated, and its end does not count any more."""
        self.given_up.add(token)
        if (execution := self.tokens.get(token)) is None:
            return
        if self.running.get(execution.key) is execution:
            del self.running[execution.key]
        if execution.end is not None:
            execution.end, execution.decision, execution.result_length = "killed", None, None
            self.deferrals.pop(token, None)

    def check_need(self, launch: Launch, *, is_remote: bool) -> None:
        """A try is about to begin, and no one has edited its run: its last one has not succeeded.

        Another home's scheduler does not know of a success that is not stored, and may run the task again: but only
        once it has given up the scheduler whose keeper knows. Of tries on other machines, all schedulers know.
        """
        key = launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
        last = self.executions[key][-1] if self.executions[key] else None
        if last is not None and last.end == "success" and (is_remote or last.started_at > self.given_up_at):
            raise Violation(f"the try {launch.token} of {key} begins, and {last.token} has succeeded")

    def check_resumption(self, launch: Launch, now: float, *, is_edited: bool, n_seconds_off: float) -> None:
        """A try is about to begin: it is resumed if its last one has deferred, with that deferral.

        Args:
            is_edited: A user has edited the run, and perhaps cleared the task.
            n_seconds_off: How wrong clocks have been.
        """
        key = launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
        last = next((one for one in reversed(self.executions[key]) if one.end != "interrupted"), None)
        has_deferred = last is not None and last.end == "deferred"
        if launch.resume is None:
            if has_deferred and last.try_number == launch.try_number and not is_edited:
                raise Violation(f"the try {launch.token} of {key} begins, and was to go on: {last.token} has deferred")
        elif not has_deferred:
            raise Violation(f"the try {launch.token} of {key} is resumed, and its last one has not deferred: {last}")
        else:
            waiting = self.deferrals[last.token]
            n_deaths = sum(at >= waiting.since for at in self.host_deaths)
            if problem := waiting.problem(launch.resume, last.token, now, n_seconds_off, n_deaths):
                raise Violation(f"the try {last.token} of {key} {problem}")
            waiting.resumption = launch.resume

    def end(self, execution: Execution, end: End, said: Ended | None, now: float) -> None:
        """User code of a try is over, with its own report."""
        if execution.token in self.given_up:
            execution.end = "killed"
            return
        del self.running[execution.key]
        execution.end = end
        if said is not None:
            execution.decision, execution.result_length = said.decision, said.result_length
            if said.deferral is not None:
                self.deferrals[execution.token] = Waiting(said.deferral, now)
