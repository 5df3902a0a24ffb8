"""Which tasks of a DAG are meant when somebody clears or marks some of them.

Source: Apache Airflow's `DAG.partial_subset`. With a task come the setups that it needs and their teardowns: it cannot
run again without them.
"""

from collections.abc import Collection, Iterable, Iterator

from asynsched.scheduling.rules.branching import descendants
from asynsched.serialization.schema import SerializedTask


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
