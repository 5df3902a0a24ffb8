"""The end of a try, from the return value or exception of its code, or from the death of its process.

A retry policy may decide about a failure, within a limit of time. An exception travels to the process of a callback as
a description, never as a pickle.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from asynsched.authoring.exceptions import (
    AsynschedException,
    AsynschedFailException,
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferred,
)
from asynsched.authoring.mapped_results import is_mappable
from asynsched.authoring.retry_policy import RetryAction, RetryPolicy, ask
from asynsched.authoring.running.context import Context
from asynsched.authoring.running.execution import TaskResult
from asynsched.authoring.running.tracebacks import one_line, text_of
from asynsched.authoring.transport import to_transport
from asynsched.protocol.messages import (
    BranchDecision,
    Deferral,
    Ended,
    FailureCause,
    OutletEvent,
    RaisedException,
    ShortCircuitDecision,
    class_name,
)
from sandbox.running.scheduler_link import json_of

log = logging.getLogger("asynsched.task")
LIMIT_SECONDS = 30.0
"""Longest that a retry policy may think: the task holds its slot meanwhile."""
MAX_REASON = 500
LONGEST_MESSAGE = 10_000
_PLAIN = (str, int, float, bool, type(None))
_NOTE = "raised in the task's own process; the traceback is in the log of its try"
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
        ValueError: The return value contains a text that JSON cannot express.
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
    """Return the number of values that `expand` would map over; -1 if it cannot map over this one, None for None."""
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
    """Return the deferral of a task. Raises TypeError for arguments that cannot be passed on."""
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
    """Return the reason and the cause of the death of a process that reported no end, from its wait status.

    A signal from outside (out of memory, an operator's kill) is the machine's fault; a signal that the code's own crash
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


def described(exc: BaseException) -> RaisedException:
    """Return the description of an exception, for callbacks in another process."""
    cls = type(exc)
    message = text_of(exc)
    raised = RaisedException(str(cls.__module__), cls.__qualname__, message[:LONGEST_MESSAGE])
    if len(message) > LONGEST_MESSAGE or not all(type(argument) in _PLAIN for argument in exc.args):
        return raised
    with_arguments = msgspec.structs.replace(raised, arguments=tuple(exc.args))
    try:
        msgspec.json.encode(with_arguments)
    except (ValueError, OverflowError):
        return raised
    return with_arguments


def rebuilt(raised: RaisedException | None, reason: str) -> BaseException:
    """Return an exception like the one that was raised: of its class, with its words, without its traceback.

    The class must be loaded already, and is made without its `__init__`, whose other arguments are unknown. Where that
    fails, and for a try that did not end by an exception, the result is an AsynschedException.

    Args:
        raised: Its description; None for a try that was ended from outside.
        reason: Why the try ended, in one line.
    """
    if raised is None:
        return AsynschedException(reason)
    cls = _loaded_class(raised)
    if cls is not None:
        for arguments in (raised.arguments, (raised.message,)):
            exc = _made(cls, arguments)
            if exc is not None and text_of(exc) == raised.message:
                exc.add_note(_NOTE)
                return exc
    return AsynschedException(f"{raised.qualname}: {raised.message}")


def _loaded_class(raised: RaisedException) -> type[BaseException] | None:
    found: object = sys.modules.get(raised.module)
    for name in raised.qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _made(cls: type[BaseException], arguments: tuple[object, ...]) -> BaseException | None:
    try:
        exc = cls.__new__(cls, *arguments)
        exc.args = arguments
    except Exception:  # noqa: BLE001 - it is user code
        return None
    return exc


class _TookTooLong(BaseException):
    """Raised in a policy when its time is over."""


def decided_by_policy(ended: Ended, policy: RetryPolicy | None, exc: BaseException, context: Context) -> Ended:
    """Return the end of a try with the decision of the task's policy about its failure.

    The policy decides about no failure that asked for no retry, and about no try that was ended from outside.
    """
    if policy is None or ended.state != "failed" or not ended.retry or isinstance(exc, TaskTerminated):
        return ended
    try:
        with interrupted_after(LIMIT_SECONDS, _TookTooLong()):
            decision = ask(policy, exc, context)
    except _TookTooLong:
        log.exception("The retry policy took longer than %g s; the task's own settings decide", LIMIT_SECONDS)
        return ended
    if decision.action == RetryAction.DEFAULT:
        return ended
    log.info("The retry policy decided: %s", decision)
    reason = ended.reason
    if decision.reason:
        reason = f"{reason} ({' '.join(str(decision.reason).split())[:MAX_REASON]})"
    if decision.action == RetryAction.FAIL:
        return msgspec.structs.replace(ended, retry=False, reason=reason)
    delay = None if decision.retry_delay is None else decision.retry_delay.total_seconds()
    return msgspec.structs.replace(ended, retry_delay=delay, reason=reason)


@contextmanager
def interrupted_after(seconds: float, exc: BaseException) -> Iterator[None]:
    """Within, raise this exception after a time. Only in the main thread, which alone receives signals."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise exc

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
