"""What happens next to the active runs, in memory: events in, one batch of changes out. No I/O, no clock.

The evaluator feeds it and stores what it gives. Work follows change: an event touches its task, that one's direct
downstream tasks, and the limits it gives back; nothing is ever looked through.
"""

import heapq
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from asynsched.keys import DagRunKey
from asynsched.scheduling.active_run import ActiveRun, ActiveTask
from asynsched.scheduling.pending import PendingBatch
from asynsched.scheduling.ready_queues import ReadyQueues
from asynsched.scheduling.rules.branching import skips_of
from asynsched.scheduling.rules.retry import instance_name
from asynsched.scheduling.rules.run_state import RunVerdict, decide_run_state
from asynsched.scheduling.rules.trigger_rule import evaluate
from asynsched.scheduling.rules.try_end import after_try
from asynsched.scheduling.run_limits import RunLimits
from asynsched.scheduling.timers import Timers
from asynsched.states import (
    SLOT_TASK_STATES,
    DagRunState,
    TaskInstanceState,
    check_run_transition,
    check_task_transition,
)
from sandbox.protocol import Ended, Started

State = TaskInstanceState
TIMED_STATES = frozenset({State.UP_FOR_RETRY, State.UP_FOR_RESCHEDULE})


class Evaluation:
    """The active runs of one scheduler.

    Args:
        queues: Where ready tasks wait for room.
        limits: What limits the tasks of a run beside pools and parallelism.
        pending: Takes every change.
        new_token: Gives an attempt token.
        max_machine_kills: How often a try that the machine killed is made up for.
    """

    def __init__(
        self,
        *,
        queues: ReadyQueues,
        limits: RunLimits,
        pending: PendingBatch,
        new_token: Callable[[], str],
        max_machine_kills: int,
    ) -> None:
        self.runs: dict[DagRunKey, ActiveRun] = {}
        self.queues = queues
        self.limits = limits
        self.pending = pending
        self._new_token = new_token
        self._max_machine_kills = max_machine_kills
        self._by_token: dict[str, ActiveTask] = {}
        self._timers: Timers[ActiveTask | ActiveRun] = Timers()

    # What may happen

    def start_run(self, run: ActiveRun, now: datetime) -> None:
        """Begin a queued run: all its task instances are new."""
        self.runs[run.key] = run
        tasks = [ActiveTask(run, task, max_tries=task.retries) for task in run.structure.dag.tasks]
        run.started_at = now
        self._set_run_state(run, DagRunState.RUNNING, "")
        run.add_tasks(tasks)
        for task in tasks:
            self.pending.touch(task)
        self._arm_timeout(run)
        self._examine(run, tasks, now)

    def resume_run(self, run: ActiveRun, tasks: list[ActiveTask], now: datetime) -> None:
        """Take up a run that an earlier scheduler began, with its task instances as stored."""
        self.runs[run.key] = run
        run.add_tasks(tasks)
        self._arm_timeout(run)
        for task in tasks:
            if task.state in SLOT_TASK_STATES:
                self.queues.occupy(task, self.limits.of(task))
                if task.token is not None:
                    self._by_token[task.token] = task
            elif task.state is State.SCHEDULED:
                self.queues.add(task, self.limits.of(task))
            elif task.state in TIMED_STATES:
                self._timers.arm(task.next_try_at or now, task)
        self._examine(run, tasks, now)

    def drop_run(self, key: DagRunKey) -> None:
        """Forget a run without a change: its rows were changed by somebody else."""
        run = self.runs.pop(key, None)
        if run is None:
            return
        for task in run.tasks.values():
            if task.state in SLOT_TASK_STATES:
                self.queues.release(task, self.limits.of(task))
            self._by_token.pop(task.token or "", None)
            task.state = None
        self.queues.forget(self.limits.forget(run))

    def try_started(self, event: Started, now: datetime) -> None:
        """User code of a try has begun."""
        task = self._by_token.get(event.token)
        if task is None or task.state is not State.QUEUED:
            self.pending.count_stale()
            return
        task.started_at = task.started_at or event.started_at
        self._set_state(task, State.RUNNING, "", now)

    def try_ended(self, event: Ended, now: datetime) -> None:
        """A try has ended, or was lost."""
        task = self._by_token.get(event.token)
        self.pending.stored_tokens.append(event.token)
        if task is None or task.state not in SLOT_TASK_STATES:
            self.pending.count_stale()
            return
        if task.run.cancel_reason and event.state not in ("success", "skipped"):
            event = Ended(event.token, "failed", event.ended_at, event.started_at, task.run.cancel_reason, retry=False)
        outcome = after_try(
            task.task,
            event,
            instance=instance_name(task.run.key.dag_id, task.task_id, task.run.logical_date),
            try_number=task.try_number,
            max_tries=task.max_tries,
            machine_kills=task.machine_kills,
            max_machine_kills=self._max_machine_kills,
        )
        task.started_at = task.started_at or event.started_at
        task.ended_at = event.ended_at
        task.rendered_map_index = event.rendered_map_index or task.rendered_map_index
        task.next_try_at = outcome.next_try_at
        task.machine_kills += outcome.by_machine
        task.max_tries += outcome.by_machine
        if outcome.is_retry:
            self.pending.keep_try(task, outcome.reason)
        if event.return_value and outcome.state is State.SUCCESS:
            self.pending.xcom(task, "return_value", bytes(event.return_value).decode(), now)
        self._set_state(task, outcome.state, outcome.reason, now)
        if outcome.callback in task.task.callbacks:
            self.pending.callback(task, outcome.callback, now)
        if not outcome.counts:
            task.try_number -= 1
        if outcome.state is State.SCHEDULED:
            self.queues.add(task, self.limits.of(task))
        elif outcome.state in TIMED_STATES:
            self._timers.arm(task.next_try_at or now, task)
        # All at once: a run that is looked at with half of it done may seem deadlocked.
        self._examine_downstream([task, *self._apply_decision(task, event, now)], now)

    def cancel_run(self, key: DagRunKey, reason: str, now: datetime) -> None:
        """End a run: what runs is killed, what waits is skipped."""
        run = self.runs.get(key)
        if run is None or run.cancel_reason:
            return
        run.cancel_reason = reason
        for task in run.tasks.values():
            if task.state in SLOT_TASK_STATES:
                self.pending.unwanted.append((task.token or "", reason))
            elif not task.is_finished:
                self._skip(task, reason, now)
        self._end_run_if_over(run, now)

    def time_passed(self, now: datetime) -> None:
        """Act on every timer that is due: retries, pokes, run timeouts."""
        for subject in self._timers.due(now):
            if isinstance(subject, ActiveRun):
                if subject.state is DagRunState.RUNNING and subject.key in self.runs:
                    timeout = timedelta(seconds=subject.structure.dag.dagrun_timeout or 0)
                    self.cancel_run(subject.key, f"the run took longer than its dagrun_timeout of {timeout}", now)
            elif subject.state in TIMED_STATES and (subject.next_try_at or now) <= now and subject.run.key in self.runs:
                self._make_ready(subject, now)

    @property
    def next_timer(self) -> datetime | None:
        """When the earliest timer is due."""
        return self._timers.next_at

    def grant(self, now: datetime) -> None:
        """Let every ready task go for which all its limits have room, best first."""
        while (task := self.queues.grant()) is not None:
            task.try_number += 1
            task.token = self._new_token()
            task.queued_at = now
            task.ended_at = None
            task.next_try_at = None
            self._by_token[task.token] = task
            self._set_state(task, State.QUEUED, "", now)
            self.pending.granted.append(task)

    # What follows from it

    def _set_state(self, task: ActiveTask, state: State, reason: str, now: datetime) -> None:
        check_task_transition(task.state, state)
        self.pending.touch(task)
        before, task.state, task.reason = task.state, state, reason
        if state is State.SCHEDULED:
            task.scheduled_at = now
        if before in SLOT_TASK_STATES and state not in SLOT_TASK_STATES:
            self._by_token.pop(task.token or "", None)
            self.queues.release(task, self.limits.of(task))
        if task.is_finished:
            task.ended_at = task.ended_at or now
        task.run.count_change(task, before)

    def _examine(self, run: ActiveRun, tasks: Iterable[ActiveTask], now: datetime) -> None:
        """Decide about tasks whose upstream has changed, and about those that follow from that.

        In topological order: what one event settles is all settled before a task that depends on it is looked at.
        """
        position = run.structure.position
        queue = sorted((position[task.task_id], task.task_id) for task in tasks)
        while queue:
            task = run.tasks[heapq.heappop(queue)[1]]
            if task.state is None and self._settle(task, now):
                for task_id in task.task.downstream_task_ids:
                    heapq.heappush(queue, (position[task_id], task_id))
        self._end_run_if_over(run, now)

    def _settle(self, task: ActiveTask, now: datetime) -> bool:
        """Make a task ready, or finish it where nothing is to be run; return whether it is finished."""
        verdict = evaluate(task.task.trigger_rule, task.upstream, map_index=task.map_index)
        if verdict.settle_as is not None:
            self._set_state(task, verdict.settle_as, verdict.reason, now)
            return True
        if verdict.met and task.task.is_empty:
            task.started_at = task.ended_at = task.scheduled_at = now
            self._set_state(task, State.SUCCESS, "an empty task", now)
            return True
        if verdict.met:
            self._make_ready(task, now)
        return False

    def _examine_downstream(self, tasks: list[ActiveTask], now: datetime) -> None:
        run = tasks[0].run
        task_ids = {task_id for task in tasks for task_id in task.task.downstream_task_ids}
        self._examine(run, [run.tasks[task_id] for task_id in task_ids], now)

    def _make_ready(self, task: ActiveTask, now: datetime) -> None:
        if task.state is State.UP_FOR_RETRY:
            task.started_at = None
        self._set_state(task, State.SCHEDULED, self.queues.obstacle(task), now)
        self.queues.add(task, self.limits.of(task))

    def _apply_decision(self, task: ActiveTask, event: Ended, now: datetime) -> list[ActiveTask]:
        """Skip what a branch or a short circuit leaves out, and return that."""
        if event.decision is None:
            return []
        run = task.run
        skips = skips_of(event.decision, task.task_id, run.structure.downstream, run.structure.teardowns)
        self.pending.skips(task, sorted(skips.task_ids), now)
        targets = [run.tasks[task_id] for task_id in sorted(skips.task_ids)]
        for target in targets:
            if not target.is_finished and target.state not in SLOT_TASK_STATES:
                self._skip(target, skips.reason, now)
        return targets

    def _skip(self, task: ActiveTask, reason: str, now: datetime) -> None:
        was_ready = task.state is State.SCHEDULED
        self._set_state(task, State.SKIPPED, reason, now)
        if was_ready:
            self.queues.withdrawn(task, self.limits.of(task))

    def _end_run_if_over(self, run: ActiveRun, now: datetime) -> None:
        if run.state is not DagRunState.RUNNING or not run.may_have_ended:
            return
        verdict = decide_run_state(run.ends())
        if verdict is None:
            return
        if run.cancel_reason:
            verdict = RunVerdict(DagRunState.FAILED, run.cancel_reason)
        run.ended_at = now
        self._set_run_state(run, verdict.state, verdict.reason)
        event = "on_success" if verdict.state is DagRunState.SUCCESS else "on_failure"
        if event in run.structure.dag.callbacks:
            self.pending.run_callback(run, event, now)
        del self.runs[run.key]
        self.queues.forget(self.limits.forget(run))
        self.pending.ended_runs.append(run)

    def _set_run_state(self, run: ActiveRun, state: DagRunState, reason: str) -> None:
        check_run_transition(run.state, state)
        self.pending.touch_run(run)
        run.state, run.reason = state, reason

    def _arm_timeout(self, run: ActiveRun) -> None:
        if run.structure.dag.dagrun_timeout is not None and run.started_at is not None:
            self._timers.arm(run.started_at + timedelta(seconds=run.structure.dag.dagrun_timeout), run)
