"""What follows from a change: which tasks are ready now, which are settled, which expand, and whether the run is over.

Work follows change: what is examined is what depends on a task that ended, in topological order, and nothing else.
It is examined in slices: ten thousand tasks that are to be looked at do not hold up whoever else has something to do.
"""

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice

from asynsched.keys import DagRunKey
from asynsched.scheduling.evaluation.dependencies import verdict_of
from asynsched.scheduling.evaluation.expansion import Expansion
from asynsched.scheduling.evaluation.leaving_tries import LeavingTries
from asynsched.scheduling.evaluation.run import WAITING, ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.run_stopping import stopping
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.run_state import RunVerdict, decide_run_state
from asynsched.scheduling.rules.run_stop import RunStop
from asynsched.states import DagRunState, TaskInstanceState

State = TaskInstanceState


class Examination:
    """Decides about the waiting task instances of active runs.

    Args:
        changes: Takes every change of state.
        runs: The active runs; those that end are taken out.
        leaving: Tries that are being ended: their runs go on until they are gone.
        at_once: How many task instances are decided about, or made, until `go_on` is called.
    """

    def __init__(
        self, changes: StateChanges, runs: dict[DagRunKey, ActiveRun], leaving: LeavingTries, at_once: int
    ) -> None:
        self._changes = changes
        self._runs = runs
        self._leaving = leaving
        self._expansion = Expansion(changes)
        self._at_once = at_once
        self._left = at_once
        self._agendas: dict[ActiveRun, list[tuple[int, int]]] = {}
        """What is still to be looked at: heaps of places in topological order, with map indexes."""
        self._stopping: dict[ActiveRun, Iterator[Iterable[ActiveTask]]] = {}
        """What is left to do of the runs that are being stopped."""

    def examine(self, run: ActiveRun, tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Decide about task instances whose upstream has changed, and about those that follow from that.

        In topological order: what one event settles is all settled before a task that depends on it is looked at.
        """
        position = run.structure.position
        agenda = self._agendas.setdefault(run, [])
        agenda += [(position[task.task_id], task.map_index) for task in tasks]
        heapq.heapify(agenda)
        self._go_through(run, agenda, now)

    def stop(self, run: ActiveRun, stop: RunStop, now: datetime) -> None:
        """Have a run stopped: the next `examine` begins with that, and looks at nothing until it is done.

        A stop that is not done yet is done first: what it has brought about is still to be looked at. After one that
        fails the run there is no other.
        """
        if run.stop is not None and run.stop.fails_run:
            return
        self._changes.pending.touch_run(run)
        run.stop = stop
        self._stopping[run] = chain(self._stopping.get(run, ()), stopping(run, stop, self._changes, now))

    @property
    def is_unfinished(self) -> bool:
        """Whether there is something left to look at."""
        return bool(self._agendas)

    def go_on(self, now: datetime) -> None:
        """Look at the next of what is left."""
        self._left = self._at_once
        for run, agenda in list(self._agendas.items()):
            self._go_through(run, agenda, now)

    def forget(self, run: ActiveRun) -> None:
        """Look at nothing of a run any more."""
        self._agendas.pop(run, None)
        self._stopping.pop(run, None)

    def _go_through(self, run: ActiveRun, agenda: list[tuple[int, int]], now: datetime) -> None:
        position, names = run.structure.position, run.structure.dag.tasks
        if run in self._stopping and not self._stop_some(run, agenda):
            return
        while agenda and self._left > 0:
            place, map_index = heapq.heappop(agenda)
            task = run.instances[names[place].task_id].get(map_index)
            if task is not None and task.state in WAITING:
                self._left -= 1
                for dependent in self._decide(task, now):
                    heapq.heappush(agenda, (position[dependent.task_id], dependent.map_index))
        if not agenda:
            self.forget(run)
            # Not before: with half of it looked at, it may seem deadlocked.
            self._end_if_over(run, now)

    def _stop_some(self, run: ActiveRun, agenda: list[tuple[int, int]]) -> bool:
        """Go on with the stop of a run; return whether that is done."""
        position = run.structure.position
        for found in islice(self._stopping[run], max(0, self._left)):
            self._left -= 1
            for task in found:
                heapq.heappush(agenda, (position[task.task_id], task.map_index))
        if self._left <= 0:
            return False
        del self._stopping[run]
        return True

    def examine_dependents(self, tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Decide about what depends on task instances of one run that have ended."""
        tasks = list(tasks)
        refitted = [found for task in tasks for found in self._expansion.remap_after(task, now)]
        dependents = [found for task in tasks for found in task.run.dependents(task)]
        self.examine(tasks[0].run, [*refitted, *dependents], now)

    def _end_if_over(self, run: ActiveRun, now: datetime) -> None:
        """End a run in which nothing can happen any more."""
        if run.state is not DagRunState.RUNNING or not run.may_have_ended or self._leaving.are_left(run.key):
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
                return self._expand(task, now)
            else:
                self._start(task, now)
        return [*new, *_next_alike(task), *(task.run.dependents(task) if task.is_finished else ())]

    def _expand(self, task: ActiveTask, now: datetime) -> list[ActiveTask]:
        n_made = self._expansion.make_instances(task, at_most=self._at_once)
        self._left -= n_made
        if n_made == self._at_once:
            return [task]  # there may be more to make
        return [*self._expansion.expand(task, now), *task.run.dependents(task)]

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
