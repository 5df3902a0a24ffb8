"""What becomes of a try that failed, and when the next one is due."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha1
from math import ceil

from asynsched.serialization.schema import SerializedTask
from asynsched.states import TaskInstanceState

LONGEST_DELAY = timedelta(days=1)
"""Airflow's bound on a growing delay that has no `max_retry_delay`."""
LONGEST_WANTED_DELAY = timedelta(days=365)
"""Bound on what a retry policy may ask for: user code chose it."""
FIRST_MACHINE_DELAY = timedelta(seconds=1)
LONGEST_MACHINE_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """What follows a failed try: `up_for_retry` at `next_try_at`, or `failed`."""

    state: TaskInstanceState
    next_try_at: datetime | None = None


def after_failure(
    task: SerializedTask,
    *,
    instance: str,
    try_number: int,
    max_tries: int,
    machine_kills: int,
    ended_at: datetime,
    wants_retry: bool,
    wanted_delay: float | None = None,
) -> AfterFailure:
    """Decide about a try that failed by its own fault.

    Args:
        task: Its retry settings.
        instance: What `instance_name` returns.
        try_number: Of the try that failed; the first is 1.
        max_tries: How many retries the task instance has; grows when it is cleared.
        machine_kills: How many of the tries the machine has ended.
        ended_at: When the try ended.
        wants_retry: False when the task asked to fail without one.
        wanted_delay: What the task's retry policy chose for this failure, seconds; None: the settings decide.
    """
    if not wants_retry or try_number > max_tries:
        return AfterFailure(TaskInstanceState.FAILED)
    if wanted_delay is not None:
        delay = timedelta(seconds=min(max(wanted_delay, 0.0), LONGEST_WANTED_DELAY.total_seconds()))
    else:
        delay = retry_delay(task, instance=instance, try_number=try_number, n_failures=try_number - machine_kills)
    return AfterFailure(TaskInstanceState.UP_FOR_RETRY, ended_at + delay)


def instance_name(dag_id: str, task_id: str, logical_date: datetime | None) -> str:
    """Return what tells task instances apart when their growing delays are spread (Airflow's form of it)."""
    return f"{dag_id}#{task_id}#{logical_date}"


def retry_delay(task: SerializedTask, *, instance: str, try_number: int, n_failures: int) -> timedelta:
    """Return how long to wait after a failed try: `retry_delay`, or more each time.

    With `retry_exponential_backoff`, the delay is multiplied by it after each failure, rounded up to whole seconds, and
    then lengthened by up to as much again, so that instances which failed together do not come back together. By how
    much depends on the instance and the try alone, not on chance.

    Args:
        task: Its retry settings; `max_retry_delay` bounds growing delays only.
        instance: What `instance_name` returns.
        try_number: Of the try that failed; the first is 1.
        n_failures: How many tries have failed by their own fault, this one included.

    Source:
        Apache Airflow's `TaskInstance.next_retry_datetime`.
    """
    multiplier = task.retry_exponential_backoff
    if multiplier in (0, 1):
        return timedelta(seconds=task.retry_delay)
    longest = LONGEST_DELAY.total_seconds()
    try:
        grown = min(task.retry_delay * multiplier ** (n_failures - 1), longest)
    except OverflowError:
        grown = longest
    least = max(ceil(grown), 1)
    digest = sha1(f"{instance}#{try_number}".encode(), usedforsecurity=False).digest()
    delay = min(least + int.from_bytes(digest, "big") % least, longest)
    return timedelta(seconds=delay if task.max_retry_delay is None else min(delay, task.max_retry_delay))


def machine_retry_delay(machine_kills: int) -> timedelta:
    """Return how long to wait before a killed try is made up for: 1 s, then twice as long after each earlier kill.

    What kills one try, such as a lack of memory, kills the next as well when that follows at once.
    """
    return min(FIRST_MACHINE_DELAY * (1 << min(machine_kills, 16)), LONGEST_MACHINE_DELAY)
