"""Which task instances are cleared, marked or forced to start, and the consequences for each.

Source: Apache Airflow's `clear_task_instances` and `set_state`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from asynsched.scheduling.rules.branching import descendants, reversed_edges
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FAILED_TASK_STATES, PAUSED_TASK_STATES, SLOT_TASK_STATES
from asynsched.states import TaskInstanceState as State

_ENDED_TRIES = PAUSED_TASK_STATES | {State.SUCCESS, State.FAILED, State.SKIPPED, State.REMOVED}

EMPTIED_BY_CLEAR = (
    "token", "scheduled_at", "queued_at", "started_at", "ended_at", "next_try_at", "rendered_map_index",
    "result_length", "deferral",
)  # fmt: skip
"""The fields of a task instance that a clear sets to None."""


class TaskSelection:
    """Selects among all the tasks of one DAG."""

    def __init__(self, tasks: Iterable[SerializedTask]) -> None:
        self._tasks = {task.task_id: task for task in tasks}
        self._downstream = {task.task_id: task.downstream_task_ids for task in self._tasks.values()}
        self._upstream = reversed_edges(self._downstream)

    def to_clear(
        self, task_ids: Collection[str], *, upstream: bool = False, downstream: bool = False
    ) -> frozenset[str]:
        """Return these tasks, the up- and downstream ones if wanted, and the setups and teardowns of all of them."""
        found = set(task_ids)
        for task_id in task_ids:
            if downstream:
                for other in descendants([task_id], self._downstream):
                    found |= {other, *self._own_setups(other)}
            if upstream:
                above = descendants([task_id], self._upstream)
                found |= above
                found |= {teardown for other in above for teardown in self._teardowns_of(other)}
            else:
                found.update(self._own_setups(task_id))
            if not downstream:
                found.update(self._teardowns_of(task_id))
        return frozenset(found)

    def to_mark(self, task_ids: Collection[str], *, upstream: bool = False, downstream: bool = False) -> frozenset[str]:
        """Return these tasks, and the up- and downstream ones if wanted; teardowns downstream still have to run."""
        found = set(task_ids)
        if upstream:
            found |= descendants(task_ids, self._upstream)
        if downstream:
            found |= {task for task in descendants(task_ids, self._downstream) if not self._tasks[task].is_teardown}
        return frozenset(found)

    def _teardowns_of(self, task_id: str) -> Iterator[str]:
        if self._tasks[task_id].is_setup:
            yield from (other for other in self._downstream[task_id] if self._tasks[other].is_teardown)

    def _own_setups(self, task_id: str) -> Iterator[str]:
        """Yield the setups that enclose a task (their teardowns follow it, or they have none), and those teardowns."""
        if self._tasks[task_id].is_setup or self._tasks[task_id].is_teardown:
            return
        below = {other for other in descendants([task_id], self._downstream) if self._tasks[other].is_teardown}
        for setup in descendants([task_id], self._upstream):
            if self._tasks[setup].is_setup:
                teardowns = set(self._teardowns_of(setup))
                if not teardowns or teardowns & below:
                    yield setup
                    yield from teardowns


def is_cleared(state: State | None, *, is_expanded: bool, only_failed: bool, only_running: bool) -> bool:
    """Return whether to clear a task instance in this state; with both `only_` flags, either suffices.

    Args:
        is_expanded: It belongs to a mapped task. A removed one is cleared, too: its task may now have more values.
    """
    if state is None or (state is State.REMOVED and not is_expanded):
        return False
    if not (only_failed or only_running):
        return True
    return (only_failed and state in FAILED_TASK_STATES) or (only_running and state in SLOT_TASK_STATES)


def after_clear(state: State | None) -> State | None:
    """Return the state of a cleared task instance; if it has a process, it restarts once that has ended."""
    return State.RESTARTING if state in SLOT_TASK_STATES else None


def tries_after_clear(
    state: State | None, try_number: int, token: str | None, earlier: Mapping[str | None, int]
) -> int:
    """Return the number of tries of a cleared task instance.

    A try that was deferred or rescheduled had not used up a number: the clear ends it, and gives it one.

    Args:
        try_number: The last try number that was used up.
        earlier: The numbers of the tries in the history, by token.
    """
    if token is None or token in earlier or not keeps_try(state):
        return try_number
    return try_number + (try_number == 0 or try_number in earlier.values())


def keeps_try(state: State | None) -> bool:
    """Return whether clearing a task instance in this state moves its last try to the history.

    A killed try is moved when it has ended, and a try that is followed by a retry is there already.
    """
    return state in _ENDED_TRIES


def may_be_forced(state: State | None, *, ignore_state: bool, ignore_retry_period: bool) -> Verdict:
    """Decide whether a user may force a task instance in this state to start, regardless of dependencies and limits.

    Source:
        Apache Airflow's `RUNNING_DEPS`, `RUNNABLE_STATES` and the flags of its DepContext.
    """
    if state is None:
        return MET
    if state in (State.UP_FOR_RETRY, State.UP_FOR_RESCHEDULE):
        if ignore_retry_period:
            return MET
        return Verdict(met=False, reason="waits for its next retry or poke: with --ignore-in-retry-period it may start")
    if state is State.SCHEDULED:
        return Verdict(met=False, reason="is ready and waits only for a free slot: `asynsched why` says where")
    if ignore_state:
        return MET
    return Verdict(met=False, reason=f"is {state}: with --ignore-ti-state it runs again")
