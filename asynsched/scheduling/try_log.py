"""What the log says of tries: each that has failed, as long as these are few; each start and end where that is wanted.

To write a line takes as long as a task takes to be decided about, so that a thousand failures at once must not each be
a line: beyond MOST_LINES, they are counted.
"""

from datetime import datetime, timedelta
from typing import Any

import structlog

from asynsched.scheduling.announcements import is_stale
from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.pending import PendingBatch, TryResult
from asynsched.states import TaskInstanceState
from asynsched.store.runs.changes import Stale

log = structlog.get_logger(__name__)

SPAN = timedelta(seconds=10)
MOST_LINES = 20
"""Failed tries that are told of one by one within a SPAN."""
FAILED_STATES = frozenset({TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY})


class TryLog:
    """Logs `try.failed` and `tries.failed`, and `try.started` and `try.ended` if it `tells_all`."""

    def __init__(self, *, tells_all: bool) -> None:
        self._tells_all = tells_all
        self._n_told = 0
        self._n_untold = 0
        self._span_ends_at: datetime | None = None

    @property
    def due_at(self) -> datetime | None:
        """When to call `time_passed`: the failures that were only counted are then told of."""
        return self._span_ends_at if self._n_untold else None

    def stored(self, pending: PendingBatch, stale: Stale, now: datetime) -> None:
        """Tell of a batch that was stored, less what was stale. Call it before `mark_stored`."""
        self.time_passed(now)
        if self._tells_all:
            for task in pending.tasks.values():
                before = task.stored_state
                if task.state is TaskInstanceState.RUNNING and before is not task.state and not is_stale(task, stale):
                    log.debug("try.started", **_names(task, task.try_number))
        for result in pending.results:
            if not is_stale(result.task, stale):
                self._ended(result, now)

    def time_passed(self, now: datetime) -> None:
        """Begin to tell one by one again, if it is time."""
        if self._span_ends_at is not None and now >= self._span_ends_at:
            self.flush()

    def flush(self) -> None:
        """Tell how many failures were only counted."""
        if self._n_untold:
            seconds = int(SPAN.total_seconds())
            log.warning("tries.failed", n_more=self._n_untold, beside=f"the {self._n_told} of the same {seconds} s")
        self._n_told = self._n_untold = 0
        self._span_ends_at = None

    def _ended(self, result: TryResult, now: datetime) -> None:
        if result.outcome.state in FAILED_STATES:
            if self._span_ends_at is None:
                self._span_ends_at = now + SPAN
            if self._n_told < MOST_LINES or self._tells_all:
                self._n_told += 1
                log.warning("try.failed", **_facts(result))
            else:
                self._n_untold += 1
        elif self._tells_all:
            log.debug("try.ended", **_facts(result))


def _names(task: ActiveTask, try_number: int) -> dict[str, Any]:
    key = task.key
    index = {} if key.map_index < 0 else {"map_index": key.map_index}
    return {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, **index, "try_number": try_number}


def _facts(result: TryResult) -> dict[str, Any]:
    ended, outcome = result.ended, result.outcome
    facts = _names(result.task, result.try_number) | {"state": str(outcome.state)}
    if outcome.reason:
        facts["reason"] = outcome.reason
    if ended.started_at is not None:
        facts["seconds"] = round((ended.ended_at - ended.started_at).total_seconds(), 3)
    if outcome.state is TaskInstanceState.UP_FOR_RETRY and outcome.next_try_at is not None:
        facts["retry_at"] = outcome.next_try_at.isoformat(timespec="seconds")
    return facts
