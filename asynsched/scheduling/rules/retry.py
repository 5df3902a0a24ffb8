"""What becomes of a try that failed, and when the next one is due."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from asynsched.serialization.schema import SerializedTask
from asynsched.states import TaskInstanceState

LONGEST_DELAY = timedelta(days=1)
"""Airflow's bound on a growing delay that has no `max_retry_delay`."""
FIRST_MACHINE_DELAY = timedelta(seconds=1)
LONGEST_MACHINE_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """What follows a failed try: `up_for_retry` at `next_try_at`, or `failed`."""

    state: TaskInstanceState
    next_try_at: datetime | None = None


def after_failure(
    task: SerializedTask, *, try_number: int, max_tries: int, ended_at: datetime, wants_retry: bool
) -> AfterFailure:
    """Decide about a try that failed by its own fault.

    Args:
        task: Its retry settings.
        try_number: Of the try that failed; the first is 1.
        max_tries: How many retries the task instance has; grows when it is cleared.
        ended_at: When the try ended.
        wants_retry: False when the task asked to fail without one.
    """
    if not wants_retry or try_number > max_tries:
        return AfterFailure(TaskInstanceState.FAILED)
    return AfterFailure(TaskInstanceState.UP_FOR_RETRY, ended_at + retry_delay(task, try_number))


def retry_delay(task: SerializedTask, try_number: int) -> timedelta:
    """Return how long to wait after a failed try: fixed, or growing by `retry_exponential_backoff` each time."""
    delay = task.retry_delay
    if task.retry_exponential_backoff > 1:
        exponent = min(try_number - 1, 64)
        delay = min(delay * task.retry_exponential_backoff**exponent, LONGEST_DELAY.total_seconds())
    if task.max_retry_delay is not None:
        delay = min(delay, task.max_retry_delay)
    return timedelta(seconds=delay)


def machine_retry_delay(machine_kills: int) -> timedelta:
    """Return how long to wait before a killed try is made up for: 1 s, then twice as long after each earlier kill.

    What kills one try, such as a lack of memory, kills the next as well when that follows at once.
    """
    return min(FIRST_MACHINE_DELAY * (1 << min(machine_kills, 16)), LONGEST_MACHINE_DELAY)
