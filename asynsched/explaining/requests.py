"""What people have asked for, and no scheduler has done yet: it comes before whatever else is decided about a run."""

from collections.abc import Sequence

import msgspec

from asynsched.explaining.reason import Explanation, Reason
from asynsched.store.runs.requests import CancelRun, ClearTasks, ForceTask, MarkRun, RunRequest, WaitingRequest


def with_requests(found: Explanation, requests: Sequence[WaitingRequest], *, is_served: bool) -> Explanation:
    """Return an explanation that also tells what is asked for and not done, oldest first.

    Args:
        found: Of a run, or of one of its task instances.
        requests: Those that concern the run.
        is_served: Whether there is a scheduler that will do them.
    """
    if not requests:
        return found
    release = "the scheduler has done it" if is_served else "a scheduler is started: `asynsched up`"
    asked = tuple(
        Reason("request", f"{wish(waiting.request)} was asked for{_by(waiting)}", release) for waiting in requests
    )
    answer = f"{found.answer} Before that: {', '.join(wish(waiting.request) for waiting in requests)}."
    n_first = 0 if is_served else 1
    reasons = (*found.reasons[:n_first], *asked, *found.reasons[n_first:])
    return msgspec.structs.replace(found, answer=answer, reasons=reasons)


def wish(request: RunRequest) -> str:
    """Return what a request asks for, in a few words."""
    match request:
        case CancelRun():
            return "cancelling the run"
        case MarkRun():
            return f"marking the run as {request.state}"
        case ForceTask():
            return f"starting task {request.task_id}"
        case ClearTasks(task_ids=()):
            return "clearing the run"
        case ClearTasks():
            return f"clearing {_named(request.task_ids)}"
    return f"marking {_named(request.task_ids)} as {request.state}"


def _named(task_ids: Sequence[str]) -> str:
    return f"task{'s' if len(task_ids) > 1 else ''} {', '.join(task_ids)}"


def _by(waiting: WaitingRequest) -> str:
    return f" by {waiting.actor} at {waiting.created_at.isoformat(sep=' ', timespec='seconds')}"
