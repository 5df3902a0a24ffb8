"""What a try came to: from what its code returned or raised, or from how its process died."""

import os
import signal
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from asynsched.authoring.exceptions import (
    AsynschedFailException,
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferred,
)
from asynsched.authoring.mapping.mapped_sequences import is_mappable
from asynsched.authoring.running.execution import TaskResult
from asynsched.authoring.running.tracebacks import one_line
from asynsched.authoring.transport import to_transport
from asynsched.protocol.messages import (
    BranchDecision,
    Deferral,
    Ended,
    FailureCause,
    OutletEvent,
    ShortCircuitDecision,
    class_name,
)
from sandbox.running.raised_exceptions import described
from sandbox.running.scheduler_link import json_of

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS})
"""Signals that a process brings on itself."""


class Span(NamedTuple):
    """When user code ran: aware UTC, stamped in its own process."""

    started_at: datetime
    ended_at: datetime


class TaskTerminated(BaseException):
    """Raised in user code when the try is ended from outside; no `except Exception` hides it."""


def of_result(token: str, span: Span, result: TaskResult, rendered_map_index: str | None = None) -> Ended:
    """Return the end of a try whose code returned.

    Raises:
        ValueError: What it returned holds a text that JSON does not have.
    """
    decision: BranchDecision | ShortCircuitDecision | None = None
    if result.follow is not None:
        decision = BranchDecision(tuple(result.follow))
    elif result.short_circuit is not None:
        decision = ShortCircuitDecision(ignore_downstream_trigger_rules=result.short_circuit)
    return Ended(
        token,
        "success",
        span.ended_at,
        started_at=span.started_at,
        return_value=msgspec.UNSET if result.written is None else json_of(result.written),
        decision=decision,
        rendered_map_index=rendered_map_index,
        result_length=_length(result.value),
        outlet_events=tuple(msgspec.json.decode(json_of(told), type=OutletEvent) for told in result.outlet_events),
    )


def _length(value: Any) -> int | None:
    """Return how many values `expand` would map over; -1 for what it cannot map over, None where there is nothing."""
    if value is None:
        return None
    return len(value) if is_mappable(value) else -1


def of_exception(token: str, span: Span, exc: BaseException, rendered_map_index: str | None = None) -> Ended:
    """Return the end of a try whose code raised."""
    end = partial(Ended, token, ended_at=span.ended_at, started_at=span.started_at)
    if isinstance(exc, TaskDeferred):
        try:
            deferral = _deferral(exc)
        except Exception as wrong:  # noqa: BLE001 - a trigger's own code may raise anything
            exc = wrong
        else:
            reason = f"waits for the trigger {class_name(deferral.classpath)}"
            return end("deferred", reason=reason, deferral=deferral)
    if isinstance(exc, AsynschedSkipException):
        return end("skipped", reason=one_line(exc), rendered_map_index=rendered_map_index)
    if isinstance(exc, AsynschedRescheduleException):
        return end("up_for_reschedule", reason=str(exc), reschedule_at=exc.reschedule_date)
    return end(
        "failed",
        reason=_reason(exc),
        rendered_map_index=rendered_map_index,
        retry=not isinstance(exc, AsynschedFailException),
        cause="machine" if isinstance(exc, TaskTerminated) else "task",
        exception=None if isinstance(exc, TaskTerminated) else described(exc),
    )


def _deferral(exc: TaskDeferred) -> Deferral:
    """Return what a task waits for. Raises TypeError for what cannot be passed on."""
    classpath, kwargs = exc.trigger.serialize()
    return Deferral(
        classpath=classpath,
        trigger_kwargs={key: to_transport(value, f"trigger argument {key!r}") for key, value in kwargs.items()},
        method_name=exc.method_name,
        method_kwargs={
            key: to_transport(value, f"defer() argument {key!r}") for key, value in (exc.kwargs or {}).items()
        },
        timeout=None if exc.timeout is None else exc.timeout.total_seconds(),
    )


def of_status(status: int) -> tuple[str, FailureCause]:
    """Return why a process that said nothing has died, and whose fault that is, from its wait status.

    A signal from outside is the machine's doing (out of memory, an operator's kill); one that the code's own crash
    raises, and an exit code, are the task's.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = ", possibly out of memory" if number == signal.SIGKILL else ""
        return f"killed by {_signal_name(number)}{hint}", "task" if number in CRASHES else "machine"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)} before the task returned", "task"


def _reason(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return f"sys.exit({exc.code!r}) was called"
    if isinstance(exc, (AsynschedTaskTimeout, TaskTerminated)):
        return str(exc)
    return one_line(exc)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
