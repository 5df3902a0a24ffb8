"""A task instance that was cleared while it ran: it waits again once its process is gone."""

from datetime import datetime

from asynsched.scheduling.evaluation.active_task import ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges
from sandbox.protocol import Ended


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
