"""Evaluation of the active runs, in memory: events in, one batch of changes out. No I/O, no clock.

    event ──▶ decisions.of_…(task or run, event) ──▶ changes ──▶ _apply ──▶ agenda of the run ───┐
                 ▲                                                                               │
                 └──── decisions.of_look(task), in topological order, in slices ◀────────────────┘

The work follows the changes: an event touches its task instance, the instances directly downstream, and the limits that
it gives back; nothing is ever scanned. The work is done in slices, so ten thousand tasks to examine block nothing else.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from datetime import datetime, timedelta

from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.protocol.messages import Ended, Started, TriggerOutcome
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.changes import (
    HOLDS,
    TIMER,
    TRIGGER,
    Change,
    Expanded,
    RunChange,
    Stopped,
    TaskChange,
)
from asynsched.scheduling.evaluation.deferral import timeout_of
from asynsched.scheduling.evaluation.past import PastLinks, instances_with_past
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import WAITING, ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.tries import Tries
from asynsched.scheduling.rules.run_end import RunStop, timed_out
from asynsched.settings import Settings
from asynsched.states import FINISHED_RUN_STATES, SLOT_TASK_STATES
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs.pools import Settlement
from asynsched.timers import Timers


class Agenda:
    """The work left for one run: first the steps under way, then the task instances to examine in topological order."""

    def __init__(self, run: ActiveRun) -> None:
        self.run = run
        self.steps: deque[Iterator[Change | None]] = deque()
        self._places: list[tuple[int, int]] = []

    def add(self, tasks: Iterable[ActiveTask]) -> None:
        """Add task instances to examine."""
        position = self.run.structure.position
        for task in tasks:
            heapq.heappush(self._places, (position[task.task.task_id], task.map_index))

    def pop(self) -> ActiveTask | None:
        """Return the next task instance that waits, or whose task is to be refitted; None if none is left."""
        run, names = self.run, self.run.structure.dag.tasks
        while self._places:
            place, map_index = heapq.heappop(self._places)
            task = run.instances[names[place].task_id].get(map_index)
            if task is not None and (task.state in WAITING or task.task_id in run.to_be_remapped):
                return task
        return None


class Evaluation:
    """The active runs of one scheduler: takes in events, and decides their consequences.

    Args:
        ready: The queues in which ready tasks wait for room.
        pending: Gathers every change.
        new_token: Returns a new attempt token.
        max_machine_kills: How often a task gets another try for one that the machine killed.
        at_once: How many task instances are decided about before `is_unsettled` asks for a pause.
    """

    def __init__(
        self,
        *,
        ready: ReadyQueues,
        pending: PendingBatch,
        new_token: Callable[[], str],
        max_machine_kills: int,
        at_once: int = sys.maxsize,
    ) -> None:
        self.runs: dict[DagRunKey, ActiveRun] = {}
        self.ready = ready
        self.pending = pending
        self._new_token = new_token
        self._max_machine_kills = max_machine_kills
        self._tries = Tries()
        self._timers: Timers[datetime, TaskInstanceKey | DagRunKey] = Timers()
        """When the next try of a task instance, the timeout of a deferral, or that of a run is due."""
        self._past = PastLinks(self.runs)
        self._agendas: dict[ActiveRun, Agenda] = {}
        self._at_once = self._left = at_once

    @classmethod
    def by_settings(
        cls,
        settings: Settings,
        pending: PendingBatch,
        *,
        parallelism: int,
        executors: Mapping[str, int],
        new_token: Callable[[], str],
        at_once: int = sys.maxsize,
    ) -> Evaluation:
        """Return an evaluation without runs, with the limits that settings give.

        Args:
            settings: Their `parallelism` is not used: the executor may have another one.
            pending: Takes every change.
            parallelism: How many tasks may run at once.
            executors: How many of them in each of several executors, by the names that tasks give.
            new_token: Gives an attempt token.
            at_once: How many task instances it decides about before it asks for a pause.
        """
        return cls(
            ready=ReadyQueues(parallelism, settings.max_active_tasks_per_dag, executors, settings.keep_slots),
            pending=pending,
            new_token=new_token,
            max_machine_kills=settings.max_machine_kills,
            at_once=at_once,
        )

    @property
    def tries(self) -> Mapping[str, ActiveTask]:
        """The task instances that are queued or running, by their tokens."""
        return self._tries.awaited

    # Runs come and go

    def start_run(self, run: ActiveRun, now: datetime) -> None:
        """Begin a queued run: all its task instances are new, and made here unless it has them already."""
        if not run.instances:
            run.add_tasks(run.first_instances())
        change = decisions.of_beginning(run, now)
        self._apply((change,), now)
        self._follow(now)

    def resume_run(self, run: ActiveRun, tasks: list[ActiveTask], now: datetime, stop: RunStop | None = None) -> None:
        """Take up a run that has begun, with its stored task instances and new ones; apply `stop` first, if given."""
        if not run.instances:
            run.add_tasks([*tasks, *run.first_instances({task.task_id for task in tasks})])
        change = decisions.of_taking_up(run)
        self._apply((change,), now)
        for task in tasks:
            self._hold(TaskChange(task, None, None, task.state), now)
        if stop is not None:
            self._apply(decisions.of_wish(run, stop, now), now)
        self._follow(now)

    def suspend(self, key: DagRunKey) -> None:
        """Decide nothing more about a run that was edited elsewhere, whatever changes before it; drop it next."""
        if (run := self.runs.get(key)) is not None:
            self._agendas.pop(run, None)
            self._past.remove(run)

    def drop_run(self, key: DagRunKey) -> list[str]:
        """Forget a run without changing it: its rows were changed elsewhere. Returns the tokens of its tries."""
        if (run := self.runs.pop(key, None)) is None:
            return []
        tasks = list(run.all_instances())
        tokens = [task.token for task in tasks if task.token and task.state in SLOT_TASK_STATES]
        for token in tokens:
            # It stays unclaimed if it is: its process may still run.
            self._tries.awaited.pop(token, None)
        for task in tasks:
            before, task.state = task.state, None
            self._hold(TaskChange(task, before, task.token, None), run.queued_at)
        self._forget(run)
        return tokens + self._tries.forget(run)

    # Events

    def try_started(self, event: Started, now: datetime) -> None:
        """User code of a try has begun."""
        task = self._tries.awaited.get(event.token)
        if task is None or task.state is not State.QUEUED:
            self.pending.count_stale()
        else:
            self._apply((decisions.of_start(task, event),), now)

    def try_ended(self, event: Ended, now: datetime) -> None:
        """A try has ended, or was lost."""
        task, waiting_run = self._tries.ended(event.token)
        self.pending.ends.append((event, task))
        if task is None:
            self.pending.count_stale()
        else:
            changes = decisions.of_end(task, event, now, self._max_machine_kills)
            self._apply(changes, now)
        if waiting_run is not None:
            self._agenda(waiting_run)
        self._follow(now)

    def try_gone(self, token: str, now: datetime) -> None:
        """No process of a try is left: its run may end if it waited for that."""
        _, waiting_run = self._tries.ended(token)
        if waiting_run is not None:
            self._agenda(waiting_run)
        self._follow(now)

    def trigger_fired(self, outcome: TriggerOutcome, now: datetime) -> None:
        """A trigger has an outcome: its task goes on in a process, or ends without one."""
        task = self._tries.deferred.get(outcome.id)
        if task is None:
            self.pending.count_stale()
        else:
            changes = decisions.of_trigger(task, outcome, self.ready.obstacle, now, self._max_machine_kills)
            self._apply(changes, now)
        self._follow(now)

    def stop_run(self, key: DagRunKey, stop: RunStop, now: datetime) -> None:
        """Stop a run: kill running task instances, skip waiting ones."""
        if (run := self.runs.get(key)) is not None:
            self._agenda(run)
            self._apply(decisions.of_wish(run, stop, now), now)
            self._follow(now)

    def past_read(self, run: ActiveRun, now: datetime) -> None:
        """The stored past was read into `run.past` again."""
        self._agenda(run).add(instances_with_past(run))
        self._follow(now)

    def time_passed(self, now: datetime) -> None:
        """Act on every timer that is due: retries, pokes, deferrals that take too long, run timeouts."""
        for subject in self._timers.due(now):
            if isinstance(subject, DagRunKey):
                run = self.runs.get(subject)
                if run is not None and (timeout := decisions.time_is_over(run, now)):
                    self.stop_run(subject, timed_out(timeout), now)
            elif (run := self.runs.get(subject.run)) is not None:
                self._task_is_due(run.instances.get(subject.task_id, {}).get(subject.map_index), now)

    def _task_is_due(self, task: ActiveTask | None, now: datetime) -> None:
        if task is None:
            return
        if task.state is State.DEFERRED:
            if (fired := timeout_of(task, now)) is not None:
                self.trigger_fired(fired, now)
        elif HOLDS[task.state] == TIMER and (task.next_try_at or now) <= now:
            self._apply((decisions.ready(task, self.ready.obstacle, now),), now)

    @property
    def next_timer(self) -> datetime | None:
        """When the earliest timer is due."""
        return self._timers.next_at

    def grant(self, now: datetime) -> None:
        """Grant slots to every ready task for which all its limits have room, best first."""
        while (task := self.ready.best(now)) is not None:
            self._apply((decisions.of_grant(task, self._new_token(), now),), now)

    def settled(self, settlement: Settlement, retry_at: datetime | None, now: datetime) -> None:
        """The batch was stored: note other schedulers' use of shared limits, and make refused tasks wait again.

        Args:
            retry_at: When to retry the limits that another scheduler was settling.
        """
        self.ready.note_settled(settlement, retry_at)
        for task in self.pending.take_refused(settlement.refused):
            self._tries.ended(task.token or "")
            self._apply((decisions.of_refusal(task),), now)

    # Tries that no task instance waits for

    @property
    def are_leaving(self) -> bool:
        """Whether runs wait for tries to be gone that no task instance waits for."""
        return self._tries.are_leaving

    @property
    def unclaimed(self) -> Set[str]:
        """The tries of runs that are not active here that the executor may still run."""
        return self._tries.unclaimed

    def expect_ends(self, tokens: Iterable[str]) -> None:
        """The executor may still run these tries of runs that are not active here, until it reports their ends."""
        self._tries.unclaimed.update(tokens)

    def leave(self, run: ActiveRun, tokens: Iterable[str], now: datetime) -> None:
        """Make a run that is taken up next wait until these tries, for which no task instance waits, are gone."""
        self._tries.leave(run, sorted(tokens), now)

    def leaving_of(self, run: ActiveRun) -> list[str]:
        """Return the tokens of the tries that a run waits for, but none of its task instances."""
        return self._tries.leaving_of(run)

    def take_lingering(self, before: datetime) -> list[tuple[ActiveRun, list[str]]]:
        """Return the runs, each once, that have waited for such tries since before a moment, with the tokens."""
        return self._tries.take_lingering(before)

    # Changes are applied

    def _apply(self, changes: Iterable[Change], now: datetime) -> None:
        """Apply changes to the batch, to their run, to the slots and timers of its task instances, and to later runs.

        Nothing else changes any of these. All changes of an event are applied before any task instance is examined:
        with half of them applied, a run may seem deadlocked.
        """
        for change in changes:
            self.pending.note(change)
            found = change.run.take(change)
            if isinstance(change, TaskChange):
                self._hold(change, now)
                self._past.task_changed(change.task)
                # Even with nothing to examine, the end of a task instance may have ended the run.
                if found or change.task.is_finished:
                    self._agenda(change.run).add(found)
            elif isinstance(change, RunChange):
                self._keep_run(change, found)
            else:
                agenda = self._agenda(change.run)
                agenda.add(found)
                if isinstance(change, Stopped | Expanded):
                    agenda.steps.append(change.steps)

    def _hold(self, change: TaskChange, now: datetime) -> None:
        """Take the slots and timers that a task instance's new state holds, and release those of the state before."""
        held, holds = HOLDS[change.before], HOLDS[change.state]
        if held == holds:
            return
        task = change.task
        self.ready.swap(task, held, holds)
        if (message := self._tries.swap(change, held, holds, now)) is not None:
            self.pending.say(message)
        if held in (TIMER, TRIGGER):
            self._timers.disarm(task.key)
        if holds == TIMER or (holds == TRIGGER and task.next_try_at is not None):
            self._timers.arm(task.next_try_at or now, task.key)

    def _keep_run(self, change: RunChange, found: Iterable[ActiveTask]) -> None:
        """Add a run that begins or is taken up, or drop one that has ended."""
        run = change.run
        if change.state in FINISHED_RUN_STATES:
            del self.runs[run.key]
            self._forget(run)
            return
        self.runs[run.key] = run
        self._past.add(run)
        timeout = run.structure.dag.dagrun_timeout
        if timeout is not None and run.started_at is not None:
            self._timers.arm(run.started_at + timedelta(seconds=timeout), run.key)
        self._agenda(run).add(found)

    def _forget(self, run: ActiveRun) -> None:
        self._agendas.pop(run, None)
        self._timers.disarm(run.key)
        self._past.remove(run)
        self.ready.forget(run)

    # Decisions

    @property
    def is_unsettled(self) -> bool:
        """Whether decisions are left that follow from events: call `go_on` after a pause."""
        return bool(self._agendas)

    def go_on(self, now: datetime) -> None:
        """Decide more of them. Other events may come in between; a crash in between loses nothing that is stored."""
        self._left = self._at_once
        self._follow(now)

    def _agenda(self, run: ActiveRun) -> Agenda:
        if (agenda := self._agendas.get(run)) is None:
            agenda = self._agendas[run] = Agenda(run)
        return agenda

    def _follow(self, now: datetime) -> None:
        """Decide run by run, until everything is decided or a slice is full."""
        while self._agendas or self._look_at_later_runs():
            agenda = next(iter(self._agendas.values()))
            if not self._go_through(agenda, now):
                return
            del self._agendas[agenda.run]
            # Not before: a run that is only half examined may seem deadlocked.
            if not self._tries.are_waited_for(agenda.run):
                self._apply(decisions.of_rest(agenda.run, now), now)

    def _look_at_later_runs(self) -> bool:
        """Put the tasks of later runs whose past has changed on their agendas."""
        for run, tasks in self._past.take_changed():
            self._agenda(run).add(tasks)
        return bool(self._agendas)

    def _go_through(self, agenda: Agenda, now: datetime) -> bool:
        """Take a run's steps, and examine its task instances in topological order; return whether none is left."""
        while True:
            if agenda.steps and not self._take_steps(agenda, now):
                return False
            if (task := agenda.pop()) is None:
                return True
            if self._left <= 0:
                agenda.add((task,))
                return False
            self._left -= 1
            if changes := decisions.of_look(task, self.ready.obstacle, now):
                self._apply(changes, now)

    def _take_steps(self, agenda: Agenda, now: datetime) -> bool:
        while agenda.steps:
            for change in agenda.steps[0]:
                if change is not None:
                    self._apply((change,), now)
                self._left -= 1
                if self._left <= 0:
                    return False
            agenda.steps.popleft()
        return True


_GOING_ON = SLOT_TASK_STATES | {
    State.UP_FOR_RETRY,
    State.UP_FOR_RESCHEDULE,
    State.DEFERRED,
}


def stand_still(runs: Collection[ActiveRun]) -> bool:
    """Return whether there are runs and none of them can progress without a user's intervention.

    Call this once everything that may start has started: a task that is still ready although nothing runs will never
    have room.
    """
    return bool(runs) and not any(_goes_on(run) for run in runs)


def _goes_on(run: ActiveRun) -> bool:
    will_time_out = run.structure.dag.dagrun_timeout is not None
    return will_time_out or any(task.state in _GOING_ON for task in run.all_instances())
