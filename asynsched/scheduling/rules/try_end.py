"""What becomes of a task instance when one of its tries has ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha1
from math import ceil

from asynsched.protocol.messages import Ended
from asynsched.serialization.schema import CallbackEvent, SerializedTask
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


State = TaskInstanceState


@dataclass(frozen=True, slots=True)
class TryOutcome:
    """The task instance's state after a try, and what else follows.

    Attributes:
        state: The next state.
        reason: Why, for a person.
        next_try_at: When a retry or the next poke is due, or a deferral times out.
        counts: Whether the try used up its number; one that was interrupted, or only looked, did not.
        by_machine: The machine ended it: one more retry, not of the task's own.
        callback: Which of the task's callbacks is due, if it has it.
        is_retry: The try goes to the history.
    """

    state: TaskInstanceState
    reason: str = ""
    next_try_at: datetime | None = None
    counts: bool = True
    by_machine: bool = False
    callback: CallbackEvent | None = None
    is_retry: bool = False


def after_try(
    task: SerializedTask,
    ended: Ended,
    *,
    instance: str,
    try_number: int,
    max_tries: int,
    machine_kills: int,
    max_machine_kills: int,
) -> TryOutcome:
    """Decide what follows the end of a try.

    Args:
        task: Its retry settings.
        ended: What the executor reported.
        instance: What `rules.retry.instance_name` returns.
        try_number: Of this try, from 1.
        max_tries: Retries that the task instance has in all, those for the machine's kills included.
        machine_kills: How often the machine has killed it before.
        max_machine_kills: How often that is made up for by another try.
    """
    if ended.cause == "interrupted":
        return TryOutcome(State.SCHEDULED, ended.reason or "interrupted by a stop of the scheduler", counts=False)
    if ended.state == "success":
        return TryOutcome(State.SUCCESS, ended.reason, callback="on_success")
    if ended.state == "skipped":
        # Only a task that has skipped itself calls back, as in Airflow; not one that was skipped from outside.
        return TryOutcome(State.SKIPPED, ended.reason, callback="on_skipped" if ended.cause == "task" else None)
    if ended.state == "up_for_reschedule":
        return TryOutcome(State.UP_FOR_RESCHEDULE, ended.reason, next_try_at=ended.reschedule_at, counts=False)
    if ended.state == "deferred" and ended.deferral is not None:
        timeout = ended.deferral.timeout
        times_out_at = None if timeout is None else ended.ended_at + timedelta(seconds=timeout)
        return TryOutcome(State.DEFERRED, ended.reason, next_try_at=times_out_at, counts=False)
    if ended.cause == "machine" and machine_kills < max_machine_kills:
        return TryOutcome(
            State.UP_FOR_RETRY,
            ended.reason,
            next_try_at=ended.ended_at + machine_retry_delay(machine_kills),
            by_machine=True,
            callback="on_retry",
            is_retry=True,
        )
    failure = after_failure(
        task,
        instance=instance,
        try_number=try_number,
        max_tries=max_tries,
        machine_kills=machine_kills,
        ended_at=ended.ended_at,
        wants_retry=ended.retry,
        wanted_delay=ended.retry_delay,
    )
    if failure.state is State.FAILED:
        return TryOutcome(State.FAILED, ended.reason, callback="on_failure")
    return TryOutcome(
        State.UP_FOR_RETRY, ended.reason, next_try_at=failure.next_try_at, callback="on_retry", is_retry=True
    )
