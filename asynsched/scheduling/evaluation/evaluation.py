"""What happens next to the active runs, in memory: events in, one batch of changes out. No I/O, no clock.

The evaluator feeds it and stores what it gives. Work follows change: an event touches its task, that one's direct
downstream tasks, and the limits it gives back; nothing is ever looked through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

from asynsched.keys import DagRunKey
from asynsched.protocol.messages import Ended, Started, TriggerOutcome
from asynsched.scheduling.evaluation.batch import PendingBatch, TryResult
from asynsched.scheduling.evaluation.deferral import after_end, timeout_of
from asynsched.scheduling.evaluation.examination import Examination
from asynsched.scheduling.evaluation.expansion import first_instances
from asynsched.scheduling.evaluation.leaving_tries import LeavingTries
from asynsched.scheduling.evaluation.left_out import skip_left_out
from asynsched.scheduling.evaluation.past import PastLinks, instances_with_past
from asynsched.scheduling.evaluation.ready import ReadyQueues, RunLimits
from asynsched.scheduling.evaluation.restarts import restart, take_span
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.scheduling.evaluation.run_stopping import fail_fast
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.run_stop import RunStop, stopped_try, timed_out
from asynsched.scheduling.rules.try_end import TryOutcome, after_try, instance_name
from asynsched.settings import Settings
from asynsched.states import SLOT_TASK_STATES, TIMED_TASK_STATES, DagRunState, TaskInstanceState

State = TaskInstanceState


class Evaluation:
    """The active runs of one scheduler.

    Args:
        queues: Where ready tasks wait for room.
        limits: What limits the tasks of a run beside pools and parallelism.
        pending: Takes every change.
        new_token: Gives an attempt token.
        max_machine_kills: How often a try that the machine killed is made up for.
        at_once: How many task instances are decided about before `is_unsettled` asks for a pause.
    """

    def __init__(
        self,
        *,
        queues: ReadyQueues,
        limits: RunLimits,
        pending: PendingBatch,
        new_token: Callable[[], str],
        max_machine_kills: int,
        at_once: int = sys.maxsize,
    ) -> None:
        self.runs: dict[DagRunKey, ActiveRun] = {}
        self.queues = queues
        self.limits = limits
        self.pending = pending
        self._new_token = new_token
        self._max_machine_kills = max_machine_kills
        self._past = PastLinks(self.runs)
        self.leaving = LeavingTries()
        self._changes = StateChanges(
            queues=queues, limits=limits, pending=pending, past=self._past, leaving=self.leaving
        )
        self._examination = Examination(self._changes, self.runs, self.leaving, at_once)
        self._timers = self._changes.timers
        self.obstacle = self._changes.obstacle

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
            settings: Their `parallelism` is not looked at: the executor may have another one.
            pending: Takes every change.
            parallelism: How many tasks may run at once.
            executors: How many of them in each of several executors, by the names that tasks give.
            new_token: Gives an attempt token.
            at_once: How many task instances it decides about before it asks for a pause.
        """
        return cls(
            queues=ReadyQueues(parallelism, settings.keep_slots),
            limits=RunLimits(settings.max_active_tasks_per_dag, executors),
            pending=pending,
            new_token=new_token,
            max_machine_kills=settings.max_machine_kills,
            at_once=at_once,
        )

    @property
    def tries(self) -> Mapping[str, ActiveTask]:
        """The task instances that are queued or running, by their tokens."""
        return self._changes.by_token

    # What may happen

    def start_run(self, run: ActiveRun, now: datetime) -> None:
        """Begin a queued run: all its task instances are new, and made here unless it has them already."""
        self.runs[run.key] = run
        run.started_at = now
        self._changes.set_run_state(run, DagRunState.RUNNING, "")
        if not run.instances:
            run.add_tasks(first_instances(run))
        for task in run.all_instances():
            self.pending.touch(task)
        self._past.add(run)
        self._arm_timeout(run)
        self._examine(run, run.all_instances(), now)

    def resume_run(self, run: ActiveRun, tasks: list[ActiveTask], now: datetime, stop: RunStop | None = None) -> None:
        """Take up a begun run, with its task instances as stored; those it lacks are new. Stop it first, if wanted."""
        self.runs[run.key] = run
        stored = {task.task_id for task in tasks}
        if not run.instances:
            run.add_tasks([*tasks, *first_instances(run, stored)])
        run.to_be_remapped = {task_id for task_id, n_expanded in run.n_expanded.items() if n_expanded}
        for task in run.all_instances():
            if task.task_id not in stored:
                self.pending.touch(task)
        self._past.add(run)
        self._arm_timeout(run)
        for task in tasks:
            if task.state in SLOT_TASK_STATES:
                self._changes.resume(task)
            elif task.state is State.SCHEDULED:
                self.queues.add(task, self.limits.of(task))
            elif task.state in TIMED_TASK_STATES:
                self._timers.arm(task.next_try_at or now, task.key)
            elif task.state is State.DEFERRED:
                self._wait_for_trigger(task)
        if stop is not None:
            self._examination.stop(run, stop, now)
        self._examine(run, run.all_instances(), now)

    def drop_run(self, key: DagRunKey) -> list[str]:
        """Forget a run without a change: its rows were changed by somebody else. Returns the tokens of its tries."""
        if (run := self.runs.pop(key, None)) is None:
            return []
        tokens = [task.token for task in run.all_instances() if task.token and task.state in SLOT_TASK_STATES]
        for task in run.all_instances():
            self._changes.forget(task)
        self._examination.forget(run)
        self._timers.disarm(key)
        self._past.remove(run)
        self.queues.forget(self.limits.forget(run))
        return tokens + self.leaving.forget(key)

    def try_started(self, event: Started, now: datetime) -> None:
        """User code of a try has begun."""
        task = self._changes.by_token.get(event.token)
        if task is None or task.state is not State.QUEUED:
            self.pending.count_stale()
            return
        task.started_at = task.started_at or event.started_at
        self._changes.set_state(task, State.RUNNING, "", now)

    def try_ended(self, event: Ended, now: datetime) -> None:
        """A try has ended, or was lost."""
        self.try_gone(event.token, now)
        task = self._changes.try_ended(event.token)
        self.pending.ends.append((event, task))
        if task is None:
            self.pending.count_stale()
        elif task.state is State.RESTARTING and task.run.stop is None:
            restart(self._changes, task, event, now)
            self._examine(task.run, [task], now)
        else:
            self._take_end(task, event, now)

    def try_gone(self, token: str, now: datetime) -> None:
        """No process is left of a try: its run may end if that has waited for it."""
        if (left := self.leaving.gone(token)) in self.runs:
            self._examine(self.runs[left], (), now)

    def trigger_fired(self, outcome: TriggerOutcome, now: datetime) -> None:
        """A trigger came to something: its task goes on in a process, or ends without one."""
        task = self._changes.deferred.get(outcome.id)
        if task is None:
            self.pending.count_stale()
        elif (ended := self._changes.deferred.settle(task, outcome, now)) is None:
            self._changes.make_ready(task, now)
        else:
            self._take_end(task, ended, now)

    def stop_run(self, key: DagRunKey, stop: RunStop, now: datetime) -> None:
        """End a run: what runs is killed, what waits is skipped."""
        if (run := self.runs.get(key)) is not None:
            self._end_early(run, stop, now)

    def past_read(self, run: ActiveRun, now: datetime) -> None:
        """What is stored of the run before was read anew into `run.past`."""
        self._examination.examine(run, instances_with_past(run), now)

    def time_passed(self, now: datetime) -> None:
        """Act on every timer that is due: retries, pokes, deferrals that take too long, run timeouts."""
        for subject in self._timers.due(now):
            if isinstance(subject, DagRunKey):
                self._run_is_due(self.runs.get(subject), now)
            elif (run := self.runs.get(subject.run)) is not None:
                self._task_is_due(run.instances.get(subject.task_id, {}).get(subject.map_index), now)

    def _run_is_due(self, run: ActiveRun | None, now: datetime) -> None:
        if run is not None and run.state is DagRunState.RUNNING and run.started_at is not None:
            timeout = timedelta(seconds=run.structure.dag.dagrun_timeout or 0)
            # Where all tasks have ended in time, what the run still waits for makes it no failed one.
            if timeout and run.n_unfinished and run.started_at + timeout <= now:
                self._end_early(run, timed_out(timeout), now)

    def _task_is_due(self, task: ActiveTask | None, now: datetime) -> None:
        if task is None:
            return
        if task.state is State.DEFERRED:
            if (fired := timeout_of(task, now)) is not None:
                self.trigger_fired(fired, now)
        elif task.state in TIMED_TASK_STATES and (task.next_try_at or now) <= now:
            self._changes.make_ready(task, now)

    @property
    def is_unsettled(self) -> bool:
        """Whether something is left to decide that follows from what has happened: `go_on`, after a pause."""
        return self._examination.is_unfinished

    def go_on(self, now: datetime) -> None:
        """Decide more of it. What else happens meanwhile is taken up as well, and a crash forgets nothing stored."""
        self._examination.go_on(now)
        self._follow_past(now)

    @property
    def next_timer(self) -> datetime | None:
        """When the earliest timer is due."""
        return self._timers.next_at

    def grant(self, now: datetime) -> None:
        """Let every ready task go for which all its limits have room, best first."""
        while (task := self.queues.grant(now)) is not None:
            self._changes.queue(task, self._new_token(), now)

    def take_back(self, tasks: Iterable[ActiveTask]) -> None:
        """Let task instances wait again that were granted what others have."""
        for task in tasks:
            self._changes.unqueue(task)

    # What follows from it

    def _take_end(self, task: ActiveTask, event: Ended, now: datetime) -> None:
        if task.run.stop is not None:
            has_begun = task.state is State.RUNNING or event.started_at is not None
            event = stopped_try(task.run.stop, task.task, event, has_begun=has_begun)
        outcome = after_try(
            task.task,
            event,
            instance=instance_name(task.run.key.dag_id, task.task_id, task.run.logical_date),
            try_number=task.try_number,
            max_tries=task.max_tries,
            machine_kills=task.machine_kills,
            max_machine_kills=self._max_machine_kills,
        )
        self._take_outcome(task, event, outcome, now)
        # All at once: a run that is looked at with half of it done may seem deadlocked.
        settled = skip_left_out(self._changes, task, event, now)
        if (stop := fail_fast(task)) is not None:
            self._examination.stop(task.run, stop, now)
        self._examination.examine_dependents([task, *settled], now)
        self._follow_past(now)

    def _take_outcome(self, task: ActiveTask, event: Ended, outcome: TryOutcome, now: datetime) -> None:
        self.pending.results.append(TryResult(task, task.try_number, event, outcome))
        take_span(task, event)
        task.rendered_map_index = event.rendered_map_index or task.rendered_map_index
        task.next_try_at = outcome.next_try_at
        task.deferral = after_end(task.deferral, event)
        task.machine_kills += outcome.by_machine
        task.max_tries += outcome.by_machine
        if outcome.is_retry:
            self.pending.keep_try(task, outcome.reason)
        if event.return_value and outcome.state is State.SUCCESS:
            task.result_length = -1 if event.result_length is None else event.result_length
            self.pending.xcom(task, "return_value", bytes(event.return_value).decode(), now)
        if task.task.outlets and outcome.state is State.SUCCESS:
            self.pending.update_assets(task, event.outlet_events, now)
        self._changes.set_state(task, outcome.state, outcome.reason, now)
        if outcome.callback in task.task.callbacks:
            self.pending.callback(task, outcome.callback, now, event.exception)
        if not outcome.counts:
            task.try_number -= 1
        if outcome.state is State.SCHEDULED:
            self.queues.add(task, self.limits.of(task))
        elif outcome.state in TIMED_TASK_STATES:
            self._timers.arm(task.next_try_at or now, task.key)
        elif outcome.state is State.DEFERRED:
            self._wait_for_trigger(task)

    def _wait_for_trigger(self, task: ActiveTask) -> None:
        self._changes.deferred.add(task)
        if task.next_try_at is not None:
            self._timers.arm(task.next_try_at, task.key)

    def _end_early(self, run: ActiveRun, stop: RunStop, now: datetime) -> None:
        self._examination.stop(run, stop, now)
        self._examine(run, (), now)

    def _examine(self, run: ActiveRun, tasks: Iterable[ActiveTask], now: datetime) -> None:
        self._examination.examine(run, tasks, now)
        self._follow_past(now)

    def _follow_past(self, now: datetime) -> None:
        """Look at the tasks of later runs whose past has changed, and at those of runs after these."""
        while changed := self._past.take_changed():
            for run, tasks in changed:
                self._examination.examine(run, tasks, now)

    def _arm_timeout(self, run: ActiveRun) -> None:
        if run.structure.dag.dagrun_timeout is not None and run.started_at is not None:
            self._timers.arm(run.started_at + timedelta(seconds=run.structure.dag.dagrun_timeout), run.key)


_GOING_ON = SLOT_TASK_STATES | {
    TaskInstanceState.UP_FOR_RETRY,
    TaskInstanceState.UP_FOR_RESCHEDULE,
    TaskInstanceState.DEFERRED,
}


def stand_still(runs: Collection[ActiveRun]) -> bool:
    """Return whether there are runs, and nothing happens to any of them unless somebody does something.

    Ask it when all that may start has been started: what is ready then, though nothing runs, never has room.
    """
    return bool(runs) and not any(_goes_on(run) for run in runs)


def _goes_on(run: ActiveRun) -> bool:
    will_time_out = run.structure.dag.dagrun_timeout is not None
    return will_time_out or any(task.state in _GOING_ON for task in run.all_instances())
