"""Tries that are begun anew: of a task instance that was cleared while it ran, or that a stop has interrupted."""

from datetime import datetime

from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges


def take_span(task: ActiveTask, event: Ended) -> None:
    """Note when a try began and ended.

    One that a stop has interrupted has done neither: it is begun anew. What it had begun before stays its start: a
    sensor's first look, or what deferred it.
    """
    task.started_at = task.started_at or event.started_at
    task.ended_at = event.ended_at
    if event.cause != "interrupted":
        return
    task.ended_at = None
    begun_before = task.deferral is not None or _is_before(task.started_at, task.queued_at)
    if not begun_before:
        task.started_at = None


def _is_before(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and one < other


def restart(changes: StateChanges, task: ActiveTask, event: Ended, now: datetime) -> None:
    """Put the killed try into the history, and let the task instance wait as if it were new."""
    task.started_at = task.started_at or event.started_at
    task.ended_at = event.ended_at
    changes.pending.keep_try(task, task.reason)
    changes.pending.forget_xcoms(task)
    changes.set_state(task, None, "", now)
    task.token = task.scheduled_at = task.queued_at = task.started_at = task.ended_at = None
    task.next_try_at = task.rendered_map_index = task.result_length = task.deferral = None
    task.skips = frozenset()
