"""The evaluation as simple as it can be: after each event, every state is recomputed from scratch."""

from collections import Counter
from collections.abc import Mapping

from asynsched.scheduling.rules.trigger_rule import UpstreamCounts, evaluate
from asynsched.scheduling.rules.verdict import Verdict
from asynsched.serialization.schema import SerializedTask
from asynsched.states import FINISHED_TASK_STATES, TaskInstanceState


class NaiveEvaluator:
    """Knows the tasks, in topological order, and what each has ended as."""

    def __init__(self, tasks: list[SerializedTask]) -> None:
        self._tasks = tasks
        self._upstream: dict[str, list[str]] = {task.task_id: [] for task in tasks}
        for task in tasks:
            for target in task.downstream_task_ids:
                self._upstream[target].append(task.task_id)
        self._states: dict[str, TaskInstanceState | None] = dict.fromkeys(self._upstream)

    def take_up(self, ran: Mapping[str, TaskInstanceState | None]) -> None:
        """Take over how the tasks that really ran have ended, and settle the rest anew."""
        for task_id, state in ran.items():
            if state in FINISHED_TASK_STATES:
                self._states[task_id] = state
        for task in self._tasks:
            if self._states[task.task_id] is None:
                self._states[task.task_id] = self._verdict(task).settle_as

    def finished(self) -> dict[str, TaskInstanceState]:
        """Return the state of each task that has ended."""
        return {task_id: state for task_id, state in self._states.items() if state is not None}

    def may_run(self) -> set[str]:
        """Return the unfinished tasks that their trigger rules let run."""
        return {task.task_id for task in self._tasks if self._states[task.task_id] is None and self._verdict(task).met}

    def _verdict(self, task: SerializedTask) -> Verdict:
        upstream = self._upstream[task.task_id]
        ended = Counter(str(self._states[other]) for other in upstream if self._states[other] is not None)
        return evaluate(task.trigger_rule, UpstreamCounts(total=len(upstream), **ended))
