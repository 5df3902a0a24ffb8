"""The deferred task instances of the active runs, by the token of the try that deferred them."""

from datetime import datetime

import msgspec

from asynsched.channels import TriggerUnwanted, TriggerWanted
from asynsched.protocol.messages import Ended, TriggerOutcome
from asynsched.scheduling.evaluation.batch import PendingBatch
from asynsched.scheduling.evaluation.deferral import StoredDeferral, end_of, trigger_of
from asynsched.scheduling.evaluation.ready import ReadyQueues
from asynsched.scheduling.evaluation.run import ActiveTask


class DeferredTasks:
    """Says which triggers are to run, and counts who waits for them in the pools that count deferred tasks."""

    def __init__(self, pending: PendingBatch, queues: ReadyQueues) -> None:
        self._pending = pending
        self._queues = queues
        self._by_token: dict[str, ActiveTask] = {}

    def get(self, token: str) -> ActiveTask | None:
        """Return the task instance that waits for this trigger."""
        return self._by_token.get(token)

    def add(self, task: ActiveTask) -> None:
        """Take up a task instance that is deferred now; one that was put there by hand waits for no trigger."""
        if task.deferral is None or task.token is None:
            return
        spec = trigger_of(task, task.deferral.deferral, task.token)
        self._by_token[spec.id] = task
        self._queues.pool(task.task.pool).deferred += task.task.pool_slots
        self._pending.triggers.append(TriggerWanted(spec, task.run.code))

    def settle(self, task: ActiveTask, outcome: TriggerOutcome, now: datetime) -> Ended | None:
        """Keep what a trigger came to. Returns the end of its task, or None when that goes on in a process."""
        assert task.deferral is not None
        ended = end_of(outcome, now)
        if ended is None:
            task.deferral = StoredDeferral(task.deferral.deferral, outcome)
            return None
        for key, value in outcome.xcoms.items():
            self._pending.xcom(task, key, msgspec.json.encode(value).decode(), now)
        # Its try ends with this, without the process that would have counted it.
        task.try_number += 1
        return ended

    def remove(self, task: ActiveTask) -> None:
        """Let go of a task instance that is deferred no more."""
        if task.token is not None and self._by_token.pop(task.token, None) is not None:
            self._queues.pool(task.task.pool).deferred -= task.task.pool_slots
            self._pending.triggers.append(TriggerUnwanted(task.token))
