"""What a task's retry policy makes of a failed try: asked in the try's process, within a limit of time."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from asynsched.authoring.retry_policy import RetryAction, RetryPolicy, ask
from asynsched.authoring.running.context import Context
from asynsched.protocol.messages import Ended
from sandbox.running.try_outcome import TaskTerminated

LIMIT_SECONDS = 30.0
"""Longest that a policy may think: the task holds its slot meanwhile."""
MAX_REASON = 500
log = logging.getLogger("asynsched.task")


class _TookTooLong(BaseException):
    """Raised in a policy when its time is over."""


def decided_by_policy(ended: Ended, policy: RetryPolicy | None, exc: BaseException, context: Context) -> Ended:
    """Return the end of a try with what the task's policy decided about its failure.

    Only failures are brought before it: none that asked for no retry, and none that was ended from outside.
    """
    if policy is None or ended.state != "failed" or not ended.retry or isinstance(exc, TaskTerminated):
        return ended
    try:
        with _limited():
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
def _limited() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _TookTooLong

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
