"""One task, run in this process until it ends: it waits for its triggers here, a timeout interrupts."""

import datetime as dt
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from asynsched.authoring.deferral import Resumption
from asynsched.authoring.exceptions import (
    AsynschedFailException,
    AsynschedRescheduleException,
    AsynschedSkipException,
    AsynschedTaskTimeout,
    TaskDeferred,
)
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.retry_policy import RetryAction, ask
from asynsched.authoring.running.context import Context
from asynsched.authoring.running.execution import TaskResult, execute
from asynsched.authoring.running.tracebacks import one_line, user_frames
from asynsched.authoring.supervisor import ask as ask_supervisor
from asynsched.authoring.transport import to_transport
from asynsched.authoring.triggers.base import BaseTaskEndEvent
from asynsched.foreground.environment import environment_of
from asynsched.foreground.trigger import wait_for_trigger
from asynsched.states import TaskInstanceState

log = logging.getLogger("asynsched.test")


@dataclass(frozen=True, slots=True)
class TryEnd:
    """How a try ended.

    `retry` is False when the task asked to fail without one, `again_at` is when a sensor wants to look again.
    """

    state: TaskInstanceState
    reason: str = ""
    retry: bool = True
    result: TaskResult | None = None
    exception: BaseException | None = None
    context: Context | None = None
    again_at: dt.datetime | None = None


def attempt(task: BaseOperator, make_context: Callable[[], Context]) -> TryEnd:
    """Run a task once, in this process.

    Args:
        task: The task.
        make_context: Returns its context.
    """
    with ExitStack() as environment:

        def make_known_context() -> Context:
            context = make_context()
            environment.enter_context(environment_of(context))  # until all is done that belongs to the try
            return context

        return _attempt(task, make_known_context)


def _attempt(task: BaseOperator, make_context: Callable[[], Context]) -> TryEnd:
    context: Context | None = None
    resumption: Resumption | None = None
    deferred: TaskDeferred | None = None
    while True:
        if deferred is not None:
            # Not where it was caught: what goes wrong here would be shown with the frames that led to the deferral.
            fired = wait_for_trigger(deferred)
            if isinstance(fired, BaseTaskEndEvent):
                return _ended_by(fired, context)
            resumption = fired
        try:
            context = make_context()
            with _interrupted_after(task.execution_timeout):
                return TryEnd(TaskInstanceState.SUCCESS, result=execute(task, context, resumption), context=context)
        except TaskDeferred as exc:
            log.info("task %s: %s", task.task_id, exc)
            deferred = exc
        except AsynschedRescheduleException as exc:
            log.info("task %s: %s", task.task_id, exc)
            state = TaskInstanceState.UP_FOR_RESCHEDULE
            return TryEnd(state, str(exc), context=context, again_at=exc.reschedule_date)
        except AsynschedSkipException as exc:
            return TryEnd(TaskInstanceState.SKIPPED, str(exc), exception=exc, context=context)
        except KeyboardInterrupt:
            if context is not None:
                _on_kill(context)
            raise
        except BaseException as exc:
            log.exception("task %s failed", task.task_id, exc_info=(type(exc), exc, user_frames(exc)))
            retry = not isinstance(exc, AsynschedFailException) and _policy_allows_retry(task, exc, context)
            return TryEnd(TaskInstanceState.FAILED, one_line(exc), retry, exception=exc, context=context)


def failed(end: TryEnd, exc: Exception) -> TryEnd:
    """Return the end of a try whose code returned, but whose result nobody can be told."""
    return TryEnd(TaskInstanceState.FAILED, one_line(exc), exception=exc, context=end.context)


def _on_kill(context: Context) -> None:
    """Let the operator end what it has started."""
    try:
        context["ti"].task.on_kill()
    except Exception:
        log.exception("on_kill failed")


def _ended_by(event: BaseTaskEndEvent, context: Context | None) -> TryEnd:
    for key, value in (event.xcoms or {}).items():
        ask_supervisor("xcom_push", key=key, value=to_transport(value, f"XCom {key!r} of the trigger's event"))
    state = TaskInstanceState(event.task_instance_state)
    return TryEnd(state, "its trigger has ended it", retry=False, context=context)


def _policy_allows_retry(task: BaseOperator, exc: BaseException, context: Context | None) -> bool:
    if task.retry_policy is None or context is None:
        return True
    return ask(task.retry_policy, exc, context).action != RetryAction.FAIL


@contextmanager
def _interrupted_after(limit: dt.timedelta | None) -> Iterator[None]:
    """Raise AsynschedTaskTimeout inside after that long. Signals reach the main thread only, so elsewhere it cannot."""
    if limit is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise AsynschedTaskTimeout(f"execution_timeout of {limit.total_seconds():g} s is over")

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit.total_seconds())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
