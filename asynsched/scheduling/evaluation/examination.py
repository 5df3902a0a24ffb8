"""What follows from a change: which tasks are ready now, which are settled, which expand, and whether the run is over.

Work follows change: what is examined is what depends on a task that ended, in topological order, and nothing else.
"""

import heapq
from collections.abc import Iterable
from datetime import datetime

from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.active_run import ActiveRun
from asynsched.scheduling.evaluation.active_task import WAITING, ActiveTask
from asynsched.scheduling.evaluation.dependencies import verdict_of
from asynsched.scheduling.evaluation.expansion import Expansion
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.run_state import RunVerdict, decide_run_state
from asynsched.states import DagRunState, TaskInstanceState

State = TaskInstanceState


class Examination:
    """Decides about the waiting task instances of active runs.

    Args:
        changes: Takes every change of state.
        runs: The active runs; those that end are taken out.
    """

    def __init__(self, changes: StateChanges, runs: dict[DagRunKey, ActiveRun]) -> None:
        self._changes = changes
        self._runs = runs
        self._expansion = Expansion(changes)

    def examine(self, run: ActiveRun, tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Decide about task instances whose upstream has changed, and about those that follow from that.

        In topological order: what one event settles is all settled before a task that depends on it is looked at.
        """
        position = run.structure.position
        queue = [(position[task.task_id], task.map_index) for task in tasks]
        heapq.heapify(queue)
        names = run.structure.dag.tasks
        while queue:
            place, map_index = heapq.heappop(queue)
            task = run.instances[names[place].task_id].get(map_index)
            if task is not None and task.state in WAITING:
                for dependent in self._decide(task, now):
                    heapq.heappush(queue, (position[dependent.task_id], dependent.map_index))
        self.end_if_over(run, now)

    def examine_dependents(self, tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Decide about what depends on task instances of one run that have ended."""
        tasks = list(tasks)
        self.examine(tasks[0].run, [found for task in tasks for found in task.run.dependents(task)], now)

    def end_if_over(self, run: ActiveRun, now: datetime) -> None:
        """End a run in which nothing can happen any more."""
        if run.state is not DagRunState.RUNNING or not run.may_have_ended:
            return
        verdict = decide_run_state(run.ends())
        if verdict is None:
            return
        if run.stop is not None and run.stop.fails_run:
            verdict = RunVerdict(DagRunState.FAILED, run.stop.reason, "timed_out")
        run.ended_at = _ended_at(run, now)
        changes = self._changes
        changes.set_run_state(run, verdict.state, verdict.reason)
        event = "on_success" if verdict.state is DagRunState.SUCCESS else "on_failure"
        if event in run.structure.dag.callbacks:
            changes.pending.run_callback(run, event, verdict.cause, now)
        del self._runs[run.key]
        changes.past.remove(run)
        changes.queues.forget(changes.limits.forget(run))
        changes.pending.ended_runs.append(run)

    def _decide(self, task: ActiveTask, now: datetime) -> list[ActiveTask]:
        """Make a task instance ready, finish or expand it, or leave it; return what is to be looked at next."""
        # First: which upstream instances it depends on goes by how many there are of both.
        new = self._expansion.remap(task, now)
        if task.state in WAITING:
            verdict = verdict_of(task)
            if verdict.settle_as is not None:
                self._changes.set_state(task, verdict.settle_as, verdict.reason, now)
            elif not verdict.met:
                return new
            elif task.is_unexpanded:
                return [*self._expansion.expand(task, now), *task.run.dependents(task)]
            else:
                self._start(task, now)
        return [*new, *_next_alike(task), *(task.run.dependents(task) if task.is_finished else ())]

    def _start(self, task: ActiveTask, now: datetime) -> None:
        if task.task.is_empty:
            task.started_at = task.ended_at = task.scheduled_at = now
            self._changes.set_state(task, State.SUCCESS, "an empty task", now)
        else:
            self._changes.make_ready(task, now)


def _ended_at(run: ActiveRun, now: datetime) -> datetime:
    """Return when the last task instance of a run ended; news of that may come late, as when the database was away."""
    if run.n_unfinished or run.started_at is None:
        return now
    last = max((task.ended_at or now for task in run.all_instances()), default=now)
    return min(now, max(run.started_at, last))


def _next_alike(task: ActiveTask) -> list[ActiveTask]:
    """Return the next instance that waits for just the same, and so follows suit."""
    if task.map_index < 0 or task.task_id in task.run.structure.split:
        return []
    instances, index = task.run.instances[task.task_id], task.map_index + 1
    while index in instances:
        if instances[index].state in WAITING:
            return [instances[index]]
        index += 1
    return []
