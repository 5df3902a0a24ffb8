"""What becomes of a task instance that somebody clears, marks, or whose run is moved to another version.

Source: Apache Airflow's `clear_task_instances` and `set_state`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from asynsched.scheduling.rules.branching import descendants
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FAILED_TASK_STATES, SLOT_TASK_STATES, TaskInstanceState


class TaskSelection:
    """Selects tasks of one DAG.

    Args:
        tasks: All its tasks.
    """

    def __init__(self, tasks: Iterable[SerializedTask]) -> None:
        self._tasks = {task.task_id: task for task in tasks}
        self._downstream = {task.task_id: task.downstream_task_ids for task in self._tasks.values()}
        self._upstream: dict[str, list[str]] = {task_id: [] for task_id in self._tasks}
        for task_id, targets in self._downstream.items():
            for target in targets:
                self._upstream[target].append(task_id)

    def to_clear(
        self, task_ids: Collection[str], *, upstream: bool = False, downstream: bool = False
    ) -> frozenset[str]:
        """Return these tasks, those up- and downstream of them if wanted, and the setups and teardowns of all."""
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
        """Return these tasks, and those up- and downstream of them if wanted."""
        found = set(task_ids)
        if upstream:
            found |= descendants(task_ids, self._upstream)
        if downstream:
            found |= descendants(task_ids, self._downstream)
        return frozenset(found)

    def _teardowns_of(self, task_id: str) -> Iterator[str]:
        if self._tasks[task_id].is_setup:
            yield from (other for other in self._downstream[task_id] if self._tasks[other].is_teardown)

    def _own_setups(self, task_id: str) -> Iterator[str]:
        """Yield the setups of a task, with their teardowns: setups whose teardowns come after it, or that have none."""
        if self._tasks[task_id].is_setup or self._tasks[task_id].is_teardown:
            return
        below = {other for other in descendants([task_id], self._downstream) if self._tasks[other].is_teardown}
        for setup in descendants([task_id], self._upstream):
            if self._tasks[setup].is_setup:
                teardowns = set(self._teardowns_of(setup))
                if not teardowns or teardowns & below:
                    yield setup
                    yield from teardowns


State = TaskInstanceState
_ENDED_TRIES = frozenset(
    {State.SUCCESS, State.FAILED, State.SKIPPED, State.REMOVED, State.UP_FOR_RESCHEDULE, State.DEFERRED}
)


def is_cleared(
    state: State | None, *, is_expanded: bool = False, only_failed: bool = False, only_running: bool = False
) -> bool:
    """Return whether a task instance in this state is one that is to be cleared; with both flags, either suffices.

    Args:
        state: Its state.
        is_expanded: It is one of a mapped task: was it removed, its task may be mapped over more values now.
        only_failed: Those that have failed.
        only_running: Those that have a process.
    """
    if state is None or (state is State.REMOVED and not is_expanded):
        return False
    if not (only_failed or only_running):
        return True
    return (only_failed and state in FAILED_TASK_STATES) or (only_running and state in SLOT_TASK_STATES)


def after_clear(state: State | None) -> State | None:
    """Return the state of a cleared task instance: one that has a process restarts once that is gone."""
    return State.RESTARTING if state in SLOT_TASK_STATES else None


def tries_after_clear(
    state: State | None, try_number: int, token: str | None, earlier: Mapping[str | None, int]
) -> int:
    """Return how many tries a cleared task instance has had.

    One that had only paused, deferred or rescheduled, when it was cleared or ended by somebody, has used no number up:
    it ends with the clear, under a number of its own.

    Args:
        state: Its state before.
        try_number: That of its last try that has used a number up.
        token: Of its last try.
        earlier: The numbers of its tries that are in the history, by token.
    """
    if token is None or token in earlier or not keeps_try(state):
        return try_number
    return try_number + (try_number == 0 or try_number in earlier.values())


def keeps_try(state: State | None) -> bool:
    """Return whether the last try of a task instance in this state goes to the history when it is cleared.

    A try that is killed goes there when it has ended, one that is followed by a retry is there already.
    """
    return state in _ENDED_TRIES


def fits(task: SerializedTask | None, map_index: int, *, is_mapped: bool) -> bool:
    """Return whether a version of a DAG has such a task instance; how many a mapped task has is not looked at."""
    return task is not None and (is_mapped or map_index < 0)


def may_be_forced(state: State | None, *, ignore_state: bool, ignore_retry_period: bool) -> Verdict:
    """Decide whether somebody may have a task instance in this state start, dependencies and limits aside.

    Source:
        Apache Airflow's `RUNNING_DEPS`, `RUNNABLE_STATES` and the flags of its DepContext.
    """
    if state is None:
        return MET
    if state in (State.UP_FOR_RETRY, State.UP_FOR_RESCHEDULE):
        if ignore_retry_period:
            return MET
        return Verdict(met=False, reason="waits until its retry, or its next poke, is due: --ignore-in-retry-period")
    if state is State.SCHEDULED:
        return Verdict(met=False, reason="is ready, and waits for room only: `asynsched why` tells for what")
    if ignore_state:
        return MET
    return Verdict(met=False, reason=f"is {state}: with --ignore-ti-state it runs again")
