"""What is kept of a deferred task instance: what it waits for, and then what came of that.

It stays with the task instance until the try ends, so that a resumed process that is handed back is resumed again.
"""

from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from asynsched.authoring.deferral import FAIL_METHOD, TRIGGER_FAILURE, TRIGGER_TIMEOUT
from asynsched.protocol.messages import Deferral, Ended, Resume, TriggerOutcome, TriggerSpec, class_name
from asynsched.scheduling.evaluation.run import ActiveTask


class StoredDeferral(Struct, frozen=True, omit_defaults=True):
    """A deferral, and what its trigger came to; None while that is waited for."""

    deferral: Deferral
    outcome: TriggerOutcome | None = None


def encoded(stored: StoredDeferral | None) -> str | None:
    """Return what is written into the row of a task instance."""
    return None if stored is None else msgspec.json.encode(stored).decode()


def decoded(text: str | None) -> StoredDeferral | None:
    """Return what was written into the row of a task instance."""
    return None if text is None else msgspec.json.decode(text, type=StoredDeferral)


def trigger_of(task: ActiveTask, deferral: Deferral, token: str) -> TriggerSpec:
    """Return the trigger that a deferred task instance waits for, named by the token of the try that deferred."""
    return TriggerSpec(
        id=token,
        classpath=deferral.classpath,
        kwargs=deferral.trigger_kwargs,
        dag_id=task.run.key.dag_id,
        run_id=task.run.key.run_id,
        task_id=task.task_id,
        map_index=task.map_index,
        # A deferral does not use the number up: the try goes on when its trigger has fired.
        try_number=task.try_number + 1,
    )


def resumption(stored: StoredDeferral | None) -> Resume | None:
    """Return how a task instance goes on; None for one that begins."""
    if stored is None or stored.outcome is None:
        return None
    outcome, deferral = stored.outcome, stored.deferral
    if outcome.kind == "event":
        return Resume(deferral.method_name, {**deferral.method_kwargs, "event": outcome.payload})
    error = TRIGGER_TIMEOUT if outcome.kind == "timeout" else TRIGGER_FAILURE
    return Resume(FAIL_METHOD, {"error": error, "detail": outcome.detail, "traceback": list(outcome.traceback)})


def after_end(stored: StoredDeferral | None, ended: Ended) -> StoredDeferral | None:
    """Return what is kept after a try: a new deferral; the one it had, if it is only handed back; else nothing."""
    if ended.state == "deferred" and ended.deferral is not None:
        return StoredDeferral(ended.deferral)
    return stored if ended.cause == "interrupted" else None


def end_of(outcome: TriggerOutcome, now: datetime) -> Ended | None:
    """Return the end of a task instance that its trigger has ended; None when it goes on in a process."""
    reason = "its trigger has ended it"
    match outcome.kind:
        case "success" | "skipped" as state:
            return Ended(outcome.id, state, now, reason=reason)
        case "failed":
            return Ended(outcome.id, "failed", now, reason=reason, retry=False)
    return None


def timeout_of(task: ActiveTask, now: datetime) -> TriggerOutcome | None:
    """Return the outcome of a trigger that did not fire in time; None while there is time."""
    if task.deferral is None or task.next_try_at is None or task.next_try_at > now:
        return None
    timeout = timedelta(seconds=task.deferral.deferral.timeout or 0)
    detail = f"{class_name(task.deferral.deferral.classpath)} did not fire within {timeout}"
    return TriggerOutcome(task.token or "", "timeout", detail=detail)
