"""The stored deferral of a task instance: the trigger that it waits for, and then the trigger's outcome.

The task instance keeps it until the try ends, so that a try that is handed back after resuming resumes again.
"""

from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from asynsched.authoring.triggers.base import FAIL_METHOD, TRIGGER_FAILURE, TRIGGER_TIMEOUT
from asynsched.protocol.messages import Deferral, Ended, Resume, TriggerOutcome, TriggerSpec, class_name
from asynsched.scheduling.evaluation.run import ActiveTask


class StoredDeferral(Struct, frozen=True, omit_defaults=True):
    """A deferral and the outcome of its trigger; None until there is one."""

    deferral: Deferral
    outcome: TriggerOutcome | None = None


def encoded(stored: StoredDeferral | None) -> str | None:
    """Return a deferral as the text stored in its task instance's row."""
    return None if stored is None else msgspec.json.encode(stored).decode()


def decoded(text: str | None) -> StoredDeferral | None:
    """Return the deferral stored as text in a task instance's row."""
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
        # A deferral uses up no try number: the try continues when its trigger has fired.
        try_number=task.try_number + 1,
    )


def resumption(stored: StoredDeferral | None) -> Resume | None:
    """Return the resumption of a task instance; None for one that begins."""
    if stored is None or stored.outcome is None:
        return None
    outcome, deferral = stored.outcome, stored.deferral
    if outcome.kind == "event":
        return Resume(deferral.method_name, {**deferral.method_kwargs, "event": outcome.payload})
    error = TRIGGER_TIMEOUT if outcome.kind == "timeout" else TRIGGER_FAILURE
    return Resume(FAIL_METHOD, {"error": error, "detail": outcome.detail, "traceback": list(outcome.traceback)})


def after_end(stored: StoredDeferral | None, ended: Ended) -> StoredDeferral | None:
    """Return the deferral to keep after a try: a new one; the same if the try was only handed back; else None."""
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
