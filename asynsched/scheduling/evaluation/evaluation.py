"""Evaluation of the active runs, in memory: events in, one batch of changes out. No I/O, no clock.

    event ──▶ decisions.of_…(task or run, event) ──▶ changes ──▶ _apply ──▶ agenda of the run ───┐
                 ▲                                                                               │
                 └──── decisions.examine(task), in topological order, in slices ◀────────────────┘

The work follows the changes: an event touches its task instance, the instances directly downstream, and the limits that
it gives back; nothing is ever scanned. The work is done in slices, so ten thousand tasks to examine block nothing else.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from asynsched.channels import TriggerUnwanted, TriggerWanted, TryUnwanted
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.protocol.messages import AwaitedInput, Deferral, Ended, Started, TriggerOutcome, TriggerSpec, class_name
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.changes import (
    HOLDINGS,
    PARKED,
    Change,
    Expanded,
    Holding,
    RunChange,
    Stopped,
    TaskChange,
)
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import WAITING, ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.structure import DagStructure
from asynsched.scheduling.rules.past_depends import PastTask, is_too_early
from asynsched.scheduling.rules.run_end import RunStop, timed_out
from asynsched.states import FINISHED_RUN_STATES, PARKED_TASK_STATES, SLOT_TASK_STATES, TIMED_TASK_STATES, DagRunState
from asynsched.states import TaskInstanceState as State
from asynsched.store.runs.hitl import event_of
from asynsched.store.runs.pools import Settlement
from asynsched.timers import Timers

Message = TryUnwanted | TriggerWanted | TriggerUnwanted


class AwaitedTries:
    """The task instance or run that waits for the end of each try, by the try's token.

    A token is *awaited* by a task instance that is queued, running or restarting; *parked* while its task instance
    waits for a trigger or an answer; or *ending*: the try is being ended and no task instance waits for it, but its run
    does. The run waits because, once it has ended, it may be cleared and begun again by another scheduler, whose keeper
    knows nothing of processes left here. A token is *stray* while the executor may still run its try for a run that is
    not in memory.
    """

    def __init__(self) -> None:
        self.awaited: dict[str, ActiveTask] = {}
        self.parked: dict[str, ActiveTask] = {}
        self.strays: set[str] = set()
        self._ending: dict[str, ActiveRun] = {}
        self._waiting_for: dict[ActiveRun, set[str]] = {}
        self._since: dict[ActiveRun, datetime] = {}
        """When the last ending try of a run was added, until `take_lingering` has returned the run."""
        self._kept_open: set[ActiveRun] = set()

    def swap(self, change: TaskChange, held: Holding, holds: Holding, now: datetime) -> Message | None:
        """Follow a task instance from holding `held` to `holds`; return the message on its try or trigger, if any."""
        task, token = change.task, change.token
        message: Message | None = None
        if token is not None and held in PARKED and self.parked.pop(token, None) is not None:
            message = TriggerUnwanted(token, is_killed=change.is_kill) if held is Holding.TRIGGER else None
        elif token is not None and held is Holding.SLOTS and self.awaited.pop(token, None) is not None:
            # The task instance goes on without its try, which has not ended.
            self.make_wait(task.run, (token,), now)
            message = TryUnwanted(token, change.reason)
        if holds is Holding.SLOTS and task.token is not None:
            self.awaited[task.token] = task
        # A task instance that was put into this state by hand waits for nothing.
        elif holds in PARKED and task.deferral is not None and task.token is not None:
            self.parked[task.token] = task
            if holds is Holding.TRIGGER:
                message = TriggerWanted(trigger_of(task, task.deferral.deferral, task.token), task.run.code)
        return message

    def ended(self, token: str) -> tuple[ActiveTask | None, ActiveRun | None]:
        """Forget a try that is gone. Returns the task instance that waited for its end, and the run that did."""
        self.strays.discard(token)
        task = self.awaited.pop(token, None)
        run = self._ending.pop(token, None) if self._ending else None
        if run is not None:
            self._waiting_for[run].discard(token)
            if not self._waiting_for[run]:
                del self._waiting_for[run]
                self._since.pop(run, None)
        return task, run

    def make_wait(self, run: ActiveRun, tokens: Iterable[str], now: datetime) -> None:
        """Make a run wait until these tries, for which none of its task instances waits, are gone."""
        for token in tokens:
            self._ending[token] = run
            self._waiting_for.setdefault(run, set()).add(token)
            self._since[run] = now

    def keep_open(self, run: ActiveRun) -> None:
        """Keep a run from ending until it is forgotten, whatever tries it waits for."""
        self._kept_open.add(run)

    @property
    def are_ending(self) -> bool:
        """Whether runs wait for tries that no task instance waits for."""
        return bool(self._ending)

    def is_waiting(self, run: ActiveRun) -> bool:
        """Whether a run may not end yet, even if all its task instances have."""
        return run in self._waiting_for or run in self._kept_open

    def ending_of(self, run: ActiveRun) -> list[str]:
        return sorted(self._waiting_for.get(run, ()))

    def forget(self, run: ActiveRun) -> list[str]:
        self._kept_open.discard(run)
        self._since.pop(run, None)
        tokens = sorted(self._waiting_for.pop(run, ()))
        for token in tokens:
            del self._ending[token]
        return tokens

    def take_lingering(self, before: datetime) -> list[tuple[ActiveRun, list[str]]]:
        """Return the runs, each once, whose tries have been ending since before a moment, with the tokens."""
        found = [run for run, since in self._since.items() if since < before]
        for run in found:
            del self._since[run]
        return [(run, self.ending_of(run)) for run in found]


def trigger_of(task: ActiveTask, deferral: Deferral, token: str) -> TriggerSpec:
    """Return the trigger that a deferred task instance waits for, named by the token of the try that deferred."""
    return TriggerSpec(
        id=token,
        classpath=deferral.classpath,
        kwargs=deferral.trigger_kwargs,
        **task.key._asdict(),
        # A deferral uses up no try number: the try continues when its trigger has fired.
        try_number=task.try_number + 1,
    )


def timeout_of(task: ActiveTask, now: datetime) -> TriggerOutcome | None:
    """Return the outcome of a trigger that did not fire in time; None while there is time."""
    if task.deferral is None or task.next_try_at is None or task.next_try_at > now:
        return None
    if (awaited := task.deferral.deferral.input) is not None:
        return TriggerOutcome(task.token or "", "event", payload=_unanswered(awaited, now))
    timeout = timedelta(seconds=task.deferral.deferral.timeout or 0)
    detail = f"{class_name(task.deferral.deferral.classpath)} did not fire within {timeout}"
    return TriggerOutcome(task.token or "", "timeout", detail=detail)


def _unanswered(awaited: AwaitedInput, now: datetime) -> dict[str, Any]:
    """Return the event of a question that nobody has answered in time."""
    if awaited.defaults is None:
        return {"error": "nobody has answered in time, and there are no defaults", "error_type": "timeout"}
    return event_of(now, awaited.defaults, awaited.params, user=None, timedout=True)


class PastLinks:
    """Which active run comes after which: `depends_on_past` and `wait_for_downstream` across active runs.

    The loader reads a run's past from the database together with the run. While the run before is active here, its
    changes are passed on as they happen; otherwise the evaluator's sweep reads the past again. A run that has ended
    here is passed on until its end is stored.
    """

    def __init__(self, runs: dict[DagRunKey, ActiveRun]) -> None:
        self._runs = runs
        self._before: dict[DagRunKey, DagRunKey] = {}
        self._after: dict[DagRunKey, set[DagRunKey]] = {}
        self._ended: dict[DagRunKey, ActiveRun] = {}
        self._changed: dict[DagRunKey, set[str]] = {}

    def add(self, run: ActiveRun) -> None:
        """Link a run that was taken up to the runs before and after it."""
        self._ended.pop(run.key, None)
        self.link(run)
        for later in self._later(run):
            self._pass_on(run, later, later.structure.depend_on_past)

    def link(self, run: ActiveRun) -> None:
        """Link an active run to the run before it, which may be another one than before."""
        self._unlink(run)
        if run.key_before is None or not run.structure.depend_on_past:
            return
        self._before[run.key] = run.key_before
        self._after.setdefault(run.key_before, set()).add(run.key)
        before = self._runs.get(run.key_before) or self._ended.get(run.key_before)
        if before is not None:
            self._pass_on(before, run, run.structure.depend_on_past)

    def _unlink(self, run: ActiveRun) -> None:
        before = self._before.pop(run.key, None)
        if before is not None:
            self._after[before].discard(run.key)
            if not self._after[before]:
                del self._after[before]

    def remove(self, run: ActiveRun) -> None:
        """Forget a run that is no longer active; later runs keep their knowledge of it."""
        self._changed.pop(run.key, None)
        self._unlink(run)

    def ended(self, run: ActiveRun) -> None:
        """A run has ended, and its end is yet to be stored."""
        if run.structure.depend_on_past:
            self._ended[run.key] = run

    def stored(self) -> None:
        """All ends are stored."""
        self._ended.clear()

    def task_changed(self, task: ActiveTask) -> None:
        """Pass a task instance's change of state on to the later runs."""
        if task.run.key not in self._after:
            return
        for later in self._later(task.run):
            names = later.structure.depend_on_past
            above = names.intersection(task.run.structure.upstream[task.task_id])
            waits = {other for other in above if later.structure.tasks[other].wait_for_downstream}
            self._pass_on(task.run, later, waits | (names & {task.task_id}))

    def take_changed(self) -> list[tuple[ActiveRun, list[ActiveTask]]]:
        """Return the task instances whose past has changed, by run, and forget them."""
        changed, self._changed = self._changed, {}
        return [
            (run, [task for task_id in sorted(task_ids) for task in run.instances[task_id].values()])
            for key, task_ids in changed.items()
            if (run := self._runs.get(key)) is not None
        ]

    def _later(self, run: ActiveRun) -> list[ActiveRun]:
        return [self._runs[key] for key in sorted(self._after.get(run.key, ())) if key in self._runs]

    def _pass_on(self, before: ActiveRun, later: ActiveRun, task_ids: Iterable[str]) -> None:
        for task_id in sorted(task_ids):
            known = later.past.get(task_id)
            found = past_task(before, task_id, later.structure, has_earlier=known is None or known.has_earlier)
            if before.instances.get(task_id):
                later.past[task_id] = found
                # Of ten thousand instances in the run before, only the last bad one makes a difference.
                if known is None or _gate(known) != _gate(found):
                    self._changed.setdefault(later.key, set()).add(task_id)


def instances_with_past(run: ActiveRun) -> list[ActiveTask]:
    """Return the task instances of a run that depend on the run before."""
    return [task for task_id in run.structure.depend_on_past for task in run.instances[task_id].values()]


def past_task(run: ActiveRun, task_id: str, later: DagStructure, *, has_earlier: bool) -> PastTask:
    """Return the past that a run in memory gives to the same task of the next run, whose structure is given."""
    is_part, downstream = _is_part(run, task_id), run.structure.downstream.get(task_id, ())
    return PastTask(
        run_id=run.key.run_id,
        n_instances=len(run.instances[task_id]) if is_part else 0,
        n_bad=run.bad_of[task_id] if is_part else 0,
        n_bad_downstream=sum(run.bad_of[other] for other in downstream if _is_part(run, other)),
        has_earlier=has_earlier,
        is_too_early=is_too_early(later.tasks[task_id], run.logical_date, catchup=bool(later.dag.catchup)),
    )


def _is_part(run: ActiveRun, task_id: str) -> bool:
    """Whether a run has a task. Of one outside its own dates, Airflow makes no instance; here it is removed."""
    instances = run.instances.get(task_id, {})
    return bool(instances) and not (-1 in instances and instances[-1].state is State.REMOVED)


def _gate(past: PastTask) -> tuple[bool, bool, bool]:
    """Return the facts of a task's past that decide whether it may run."""
    return past.n_instances > 0, past.n_bad > 0, past.n_bad_downstream > 0


class Agenda:
    """The work left for one run: first the steps under way, then the task instances to examine in topological order."""

    def __init__(self, run: ActiveRun) -> None:
        self.run = run
        self.steps: deque[Iterator[Change | None]] = deque()
        self._positions: list[tuple[int, int]] = []

    def add(self, tasks: Iterable[ActiveTask]) -> None:
        position = self.run.structure.position
        for task in tasks:
            heapq.heappush(self._positions, (position[task.task.task_id], task.map_index))

    def pop(self) -> ActiveTask | None:
        """Return the next task instance that waits, or whose task is to be refitted; None if none is left."""
        run, names = self.run, self.run.structure.dag.tasks
        while self._positions:
            position, map_index = heapq.heappop(self._positions)
            task = run.instances[names[position].task_id].get(map_index)
            if task is not None and (task.state in WAITING or task.task_id in run.to_be_remapped):
                return task
        return None


class Evaluation:
    """The active runs of one scheduler: takes in events, and decides their consequences.

    Args:
        max_machine_kills: How often a task gets another try for one that the machine killed.
        at_once: The number of task instances to decide about before `has_undecided` asks for a pause.
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
        self.tries = AwaitedTries()
        self._timers: Timers[datetime, TaskInstanceKey | DagRunKey] = Timers()
        """When the next try of a task instance, the timeout of a deferral, or that of a run is due."""
        self._past = PastLinks(self.runs)
        self._agendas: dict[ActiveRun, Agenda] = {}
        self._at_once = self._left = at_once

    # Runs come and go

    def start_run(self, run: ActiveRun, now: datetime) -> None:
        """Begin a queued run: all its task instances are new, and made here unless it has them already."""
        if not run.instances:
            run.add_tasks(run.first_instances())
        rows = decisions.callbacks_of_start(run, now)
        self._apply((RunChange(run, run.state, DagRunState.RUNNING, started_at=now, rows=rows),), now)
        self._follow(now)

    def resume_run(
        self, run: ActiveRun, tasks: list[ActiveTask], now: datetime, stop: RunStop | None = None, *,
        begins: bool = False,
    ) -> None:  # fmt: skip
        """Take up a run that is stored as running, with its stored task instances and new ones.

        Args:
            stop: To apply first, if given.
            begins: Whether it has just begun to run. A run that has no stored task instance has, because the first
                changes that are stored of a run include them all.
        """
        if not run.instances:
            run.add_tasks([*tasks, *run.first_instances({task.task_id for task in tasks})])
        rows = decisions.callbacks_of_start(run, now) if begins or not tasks else ()
        taken_up = RunChange(run, DagRunState.RUNNING, DagRunState.RUNNING, run.reason, run.started_at, rows=rows)
        self._apply((taken_up,), now)
        for task in tasks:
            self._hold(TaskChange(task, None, None, task.state), now)
        if stop is not None:
            self._apply(decisions.of_stop(run, stop, now), now)
        self._follow(now)

    def suspend(self, key: DagRunKey) -> None:
        """Decide nothing more about a run that was edited elsewhere, whatever changes before it; drop it next."""
        if (run := self.runs.get(key)) is not None:
            self._agendas.pop(run, None)
            self._past.remove(run)

    def drop_run(self, key: DagRunKey, now: datetime) -> list[str]:
        """Forget a run without changing it: its rows were changed elsewhere. Returns the tokens of its tries."""
        if (run := self.runs.pop(key, None)) is None:
            return []
        tasks = list(run.all_instances())
        tokens = [task.token for task in tasks if task.token and task.state in SLOT_TASK_STATES]
        for token in tokens:
            # It stays a stray if it is one: its process may still run.
            self.tries.awaited.pop(token, None)
        for task in tasks:
            # Without a state it holds nothing, and no lane offers it any more. Nothing of this is stored.
            before, task.state = task.state, None
            self._hold(TaskChange(task, before, task.token, None), now)
        self._forget(run)
        return tokens + self.tries.forget(run)

    def triggers_of(self, key: DagRunKey) -> frozenset[str]:
        """Return the triggers that the task instances of a run wait for."""
        run = self.runs.get(key)
        tasks = run.all_instances() if run is not None else ()
        return frozenset(task.token for task in tasks if task.token and task.state is State.DEFERRED)

    # Events

    def try_started(self, event: Started, now: datetime) -> None:
        task = self.tries.awaited.get(event.token)
        if task is None or task.state is not State.QUEUED:
            self.pending.n_stale += 1
        else:
            self._apply((decisions.of_start(task, event),), now)

    def try_ended(self, event: Ended, now: datetime) -> None:
        """A try has ended, or was lost."""
        task, waiting_run = self.tries.ended(event.token)
        self.pending.ends.append((event, task))
        if task is None:
            self.pending.n_stale += 1
        else:
            changes = decisions.of_end(task, event, now, self._max_machine_kills)
            self._apply(changes, now)
        if waiting_run is not None:
            self._agenda(waiting_run)
        self._follow(now)

    def try_gone(self, token: str, now: datetime) -> None:
        """No process of a try is left: its run may end if it waited for that."""
        _, waiting_run = self.tries.ended(token)
        if waiting_run is not None:
            self._agenda(waiting_run)
        self._follow(now)

    def trigger_fired(self, outcome: TriggerOutcome, now: datetime) -> None:
        """A trigger has an outcome: its task goes on in a process, or ends without one."""
        task = self.tries.parked.get(outcome.id)
        if task is None:
            self.pending.n_stale += 1
        else:
            changes = decisions.of_trigger(task, outcome, self.ready.obstacle, now, self._max_machine_kills)
            self._apply(changes, now)
        self._follow(now)

    def stop_run(self, key: DagRunKey, stop: RunStop, now: datetime) -> None:
        """Stop a run: its task instances are killed, or end at once, as `on_stop` says."""
        if (run := self.runs.get(key)) is not None:
            self._agenda(run)
            self._apply(decisions.of_stop(run, stop, now), now)
            self._follow(now)

    def past_read(self, run: ActiveRun, now: datetime) -> None:
        """The stored past was read into `run.past` again, perhaps of another run before it."""
        if self.runs.get(run.key) is not run:
            return  # what was decided about another run has ended it
        self._past.link(run)
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
        self._follow(now)

    def _task_is_due(self, task: ActiveTask | None, now: datetime) -> None:
        if task is None:
            return
        if task.state in PARKED_TASK_STATES:
            if (fired := timeout_of(task, now)) is not None:
                self.trigger_fired(fired, now)
        elif HOLDINGS[task.state] is Holding.TIMER and (task.next_try_at or now) <= now:
            self._apply((decisions.of_next_try(task, self.ready.obstacle, now),), now)

    @property
    def next_timer(self) -> datetime | None:
        return self._timers.next_at

    def grant(self, now: datetime, at_most: int = sys.maxsize) -> bool:
        """Grant slots to ready tasks for which all their limits have room, best first; return whether none is left."""
        for _ in range(at_most):
            if (task := self.ready.best(now)) is None:
                return True
            self._apply((decisions.of_grant(task, self._new_token(), now),), now)
        return self.ready.best(now) is None

    def batch_stored(self, settlement: Settlement, retry_at: datetime | None, now: datetime) -> None:
        """The batch was stored: note other schedulers' use of shared limits, and make refused tasks wait again.

        Args:
            retry_at: When to retry the limits that another scheduler was settling.
        """
        self._past.stored()
        self.ready.note_settled(settlement, retry_at)
        for task in self.pending.take_refused(settlement.refused):
            self.tries.ended(task.token or "")
            self._apply((decisions.of_refusal(task),), now)

    # Changes are applied

    def _apply(self, changes: Iterable[Change], now: datetime) -> None:
        """Apply changes to the batch, to their run, to the slots and timers of its task instances, and to later runs.

        Nothing else changes what is stored next. Beside it, `resume_run` takes what the stored task instances hold, and
        `drop_run` gives it back, both by `_hold`; and the events of tries forget the tries that are gone.

        All changes of an event are applied before any task instance is examined: with half of them applied, a run may
        seem deadlocked.
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
        held, holds = HOLDINGS[change.before], HOLDINGS[change.state]
        if held is holds:
            return
        task = change.task
        self.ready.swap(task, held, holds)
        if (message := self.tries.swap(change, held, holds, now)) is not None:
            self.pending.say(message)
        if held is Holding.TIMER or held in PARKED:
            self._timers.disarm(task.key)
        if holds is Holding.TIMER or (holds in PARKED and task.next_try_at is not None):
            self._timers.arm(task.next_try_at or now, task.key)

    def _keep_run(self, change: RunChange, found: Iterable[ActiveTask]) -> None:
        """Add a run that begins or is taken up, or drop one that has ended."""
        run = change.run
        if change.state in FINISHED_RUN_STATES:
            del self.runs[run.key]
            self._forget(run)
            self._past.ended(run)
            return
        self.runs[run.key] = run
        self._past.add(run)
        if run.over_at is not None:
            self._timers.arm(run.over_at, run.key)
        self._agenda(run).add(found)

    def _forget(self, run: ActiveRun) -> None:
        self._agendas.pop(run, None)
        self._timers.disarm(run.key)
        self._past.remove(run)
        self.ready.forget(run)

    # Decisions

    @property
    def has_undecided(self) -> bool:
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
            if not self.tries.is_waiting(agenda.run):
                self._apply(decisions.end_of_run(agenda.run, now), now)

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
            if changes := decisions.examine(task, self.ready.obstacle, now):
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


_GOING_ON = SLOT_TASK_STATES | TIMED_TASK_STATES | {State.DEFERRED}


NEAR_TIMEOUT = timedelta(minutes=1)
"""A timeout that is no further away is waited for, although nothing else can happen before."""


def stand_still(runs: Collection[ActiveRun], now: datetime) -> bool:
    """Return whether there are runs and none can progress, within `NEAR_TIMEOUT`, without a user's intervention.

    Call this once everything that may start has started: a task that is still ready although nothing runs will never
    have room.
    """
    return bool(runs) and not any(
        _is_near(run.over_at, now) or any(_goes_on(task, now) for task in run.all_instances()) for run in runs
    )


def _goes_on(task: ActiveTask, now: datetime) -> bool:
    if task.state is State.AWAITING_INPUT:
        return _is_near(task.next_try_at, now)
    return task.state in _GOING_ON


def _is_near(timeout_at: datetime | None, now: datetime) -> bool:
    return timeout_at is not None and timeout_at - now <= NEAR_TIMEOUT
