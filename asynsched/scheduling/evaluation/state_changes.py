"""How a task instance of an active run changes in memory: its state, the run's counters, the queues, the batch."""

from datetime import datetime

from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.deferred_tasks import DeferredTasks
from asynsched.scheduling.evaluation.leaving_tries import LeavingTries
from asynsched.scheduling.evaluation.past import PastLinks
from asynsched.scheduling.evaluation.ready import ReadyQueues, RunLimits
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from asynsched.states import (
    FINISHED_RUN_STATES,
    SLOT_TASK_STATES,
    TIMED_TASK_STATES,
    DagRunState,
    TaskInstanceState,
    check_run_transition,
    check_task_transition,
)
from asynsched.timers import Timers

State = TaskInstanceState


class StateChanges:
    """The one place where an active run's states change.

    Args:
        queues: Where ready tasks wait for room.
        limits: What limits the tasks of a run beside pools and parallelism.
        pending: Takes every change.
        past: Passes changes on to the runs that come after.
        leaving: Takes the tries that no task instance waits for any more.
    """

    def __init__(
        self,
        *,
        queues: ReadyQueues,
        limits: RunLimits,
        pending: PendingBatch,
        past: PastLinks,
        leaving: LeavingTries,
    ) -> None:
        self.queues = queues
        self.limits = limits
        self.pending = pending
        self.past = past
        self.leaving = leaving
        self.deferred = DeferredTasks(pending, queues)
        self.timers: Timers[datetime, TaskInstanceKey | DagRunKey] = Timers()
        """When the next try of a task instance, the timeout of a deferral, or that of a run is due."""
        self.by_token: dict[str, ActiveTask] = {}
        """The tries that are queued or running."""

    def set_state(self, task: ActiveTask, state: State | None, reason: str, now: datetime) -> None:
        """Put a task instance into a state. Raises InvalidTransition when it cannot go there from where it is."""
        check_task_transition(task.state, state)
        self.pending.touch(task)
        before, task.state, task.reason = task.state, state, reason
        if state is State.SCHEDULED:
            task.scheduled_at = now
        if before in SLOT_TASK_STATES and state not in SLOT_TASK_STATES:
            self._let_go(task, reason, now)
            self.queues.release(task, self.limits.of(task))
        elif before is State.SCHEDULED and state is not State.QUEUED:
            self.queues.withdrawn(task, self.limits.of(task))
        elif before is State.DEFERRED:
            self.deferred.remove(task)
            self.timers.disarm(task.key)
        elif before in TIMED_TASK_STATES:
            self.timers.disarm(task.key)
        if task.is_finished:
            task.ended_at = task.ended_at or now
        task.run.count_change(task, before)
        self.past.note(task)

    def try_ended(self, token: str) -> ActiveTask | None:
        """Return the task instance that waits for the end of a try, which has come; None if none does."""
        return self.by_token.pop(token, None)

    def _let_go(self, task: ActiveTask, reason: str, now: datetime) -> None:
        """Have the try ended of a task instance that goes on without it, unless it has ended."""
        if task.token is not None and self.by_token.pop(task.token, None) is not None:
            self.pending.unwanted.append((task.token, reason))
            self.leaving.add(task.run.key, [task.token], now)

    def make_ready(self, task: ActiveTask, now: datetime) -> None:
        """Let a task instance wait for room."""
        if task.state is State.UP_FOR_RETRY:
            task.started_at = None
        self.set_state(task, State.SCHEDULED, self.obstacle(task), now)
        self.queues.add(task, self.limits.of(task))

    def obstacle(self, task: ActiveTask) -> str:
        """Return why a task can never start as pools and executors are; empty if it can."""
        return self.queues.obstacle(task) or self.limits.obstacle(task)

    def queue(self, task: ActiveTask, token: str, now: datetime) -> None:
        """Begin a try of a task instance that was granted its slots."""
        task.try_number += 1
        task.token = token
        task.queued_at = now
        task.ended_at = None
        task.next_try_at = None
        self.by_token[token] = task
        self.set_state(task, State.QUEUED, "", now)
        self.pending.granted.append(task)

    def resume(self, task: ActiveTask) -> None:
        """Take up a task instance that is queued or running as it is stored."""
        self.queues.occupy(task, self.limits.of(task))
        if task.token is not None:
            self.by_token[task.token] = task

    def forget(self, task: ActiveTask) -> None:
        """Know nothing of a task instance any more, which is changed by that in memory only."""
        if task.state in SLOT_TASK_STATES:
            self.queues.release(task, self.limits.of(task))
        self.by_token.pop(task.token or "", None)
        self.deferred.remove(task)
        self.timers.disarm(task.key)
        task.state = None

    def unqueue(self, task: ActiveTask) -> None:
        """Let a task instance wait again whose try was not stored: others have taken the slots that it was to have."""
        self.by_token.pop(task.token or "", None)
        task.try_number -= 1
        task.token = task.queued_at = None
        task.state = State.SCHEDULED
        self.queues.release(task, self.limits.of(task))
        self.queues.add(task, self.limits.of(task))

    def set_run_state(self, run: ActiveRun, state: DagRunState, reason: str) -> None:
        """Put a run into a state. Raises InvalidTransition when it cannot go there from where it is."""
        check_run_transition(run.state, state)
        self.pending.touch_run(run)
        run.state, run.reason = state, reason
        if run.state in FINISHED_RUN_STATES:
            self.timers.disarm(run.key)
