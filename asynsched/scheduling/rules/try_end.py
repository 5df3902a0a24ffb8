"""The consequences of the end of a try: the task instance's state, and whether and when it is retried."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha1
from math import ceil

from asynsched.protocol.messages import Ended
from asynsched.serialization.schema import CallbackEvent, SerializedTask
from asynsched.states import PAUSED_TASK_STATES
from asynsched.states import TaskInstanceState as State

LONGEST_DELAY = timedelta(days=1)
"""Airflow's bound on a growing delay without `max_retry_delay`."""
LONGEST_WANTED_DELAY = timedelta(days=365)
"""Bound on the delay that a retry policy, which is user code, may choose."""
FIRST_MACHINE_DELAY = timedelta(seconds=1)
LONGEST_MACHINE_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class TryOutcome:
    """The task instance's state after a try, and the other consequences.

    Attributes:
        state: The next state.
        reason: Why, for a person.
        next_try_at: When a retry or the next poke is due, or a deferral times out.
        counts: Whether the try used up its number; a try that was interrupted, rescheduled or deferred did not.
        by_machine: The machine ended it, so the task gets a retry beside its own.
        callback: The event of the callback that is due, if the task has one.
        is_retry: The try goes to the history.
    """

    state: State
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
    jitter_seed: str,
    try_number: int,
    max_tries: int,
    machine_kills: int,
    max_machine_kills: int,
) -> TryOutcome:
    """Decide the outcome of a try.

    Args:
        jitter_seed: The result of `retry_jitter_seed`.
        try_number: Number of this try, from 1.
        max_tries: Retries that the task instance has in all, including those for kills by the machine; grows when the
            task instance is cleared.
        max_machine_kills: How many kills by the machine another try makes up for.
    """
    if ended.cause == "interrupted":
        return TryOutcome(State.SCHEDULED, _interruption(ended, try_number), counts=False)
    if ended.state == "success":
        return TryOutcome(State.SUCCESS, ended.reason, callback="on_success")
    if ended.state == "skipped":
        # As in Airflow, only a task that skips itself calls back, not one that is skipped from outside.
        return TryOutcome(State.SKIPPED, ended.reason, callback="on_skipped" if ended.cause == "task" else None)
    if ended.state == "up_for_reschedule":
        return TryOutcome(State.UP_FOR_RESCHEDULE, ended.reason, next_try_at=ended.reschedule_at, counts=False)
    if ended.state == "deferred" and ended.deferral is not None:
        timeout = ended.deferral.timeout
        times_out_at = None if timeout is None else ended.ended_at + timedelta(seconds=timeout)
        state = State.DEFERRED if ended.deferral.input is None else State.AWAITING_INPUT
        return TryOutcome(state, ended.reason, next_try_at=times_out_at, counts=False)
    by_machine = ended.cause == "machine" and machine_kills < max_machine_kills
    if by_machine:
        delay = machine_retry_delay(machine_kills)
    elif not ended.retry or try_number > max_tries:
        return TryOutcome(State.FAILED, ended.reason, callback="on_failure")
    elif ended.retry_delay is not None:
        delay = timedelta(seconds=min(max(ended.retry_delay, 0.0), LONGEST_WANTED_DELAY.total_seconds()))
    else:
        delay = retry_delay(task, jitter_seed=jitter_seed, try_number=try_number, n_failures=try_number - machine_kills)
    return TryOutcome(
        State.UP_FOR_RETRY,
        ended.reason,
        next_try_at=ended.ended_at + delay,
        by_machine=by_machine,
        callback="on_retry",
        is_retry=True,
    )


def tries_at_end(state: State | None, try_number: int, started_at: datetime | None) -> int:
    """Return the number of tries of a task instance that ends without a process, such as by a cancellation.

    A try that had begun, and waited to go on or to begin again, had not used up a number: the end gives it one.

    Args:
        state: The state until now.
        try_number: The last number that was used up.
        started_at: When a try that has not used up its number began.
    """
    waits_to_go_on = state in PAUSED_TASK_STATES or (state in (None, State.SCHEDULED) and started_at is not None)
    return try_number + waits_to_go_on


_INTERRUPTED = "was interrupted at"
EMPTY_TASK = "an empty task"
"""The reason of a task that succeeds without a process."""


def _interruption(ended: Ended, try_number: int) -> str:
    """Return why a task waits whose try was handed back."""
    reason = ended.reason or "the scheduler stopped"
    if ended.started_at is None:
        return reason
    at = ended.ended_at.isoformat(sep=" ", timespec="seconds")
    return f"try {try_number} {_INTERRUPTED} {at}: {reason}; it begins again"


def was_interrupted(state: str | None, reason: str) -> bool:
    """Return whether a task instance of this state and reason waits because a try of it was interrupted."""
    return state == State.SCHEDULED and _INTERRUPTED in reason


def retry_jitter_seed(dag_id: str, task_id: str, logical_date: datetime | None) -> str:
    """Return the seed, in Airflow's form, of the jitter that spreads the growing delays of task instances."""
    return f"{dag_id}#{task_id}#{logical_date}"


def retry_delay(task: SerializedTask, *, jitter_seed: str, try_number: int, n_failures: int) -> timedelta:
    """Return the delay after a failed try: `retry_delay`, or longer each time.

    `retry_exponential_backoff` multiplies the delay after each failure, rounded up to whole seconds. The delay then
    grows by a fraction of itself, so that instances that failed together are not retried together. The fraction
    depends only on the seed and the try, not on chance.

    Args:
        task: Its retry settings; `max_retry_delay` bounds growing delays only.
        jitter_seed: The result of `retry_jitter_seed`.
        try_number: Number of the try that failed, from 1.
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
    digest = sha1(f"{jitter_seed}#{try_number}".encode(), usedforsecurity=False).digest()
    delay = min(least + int.from_bytes(digest, "big") % least, longest)
    return timedelta(seconds=delay if task.max_retry_delay is None else min(delay, task.max_retry_delay))


def machine_retry_delay(machine_kills: int) -> timedelta:
    """Return the delay after a kill by the machine: 1 s, doubled for each earlier kill.

    The cause of one kill, such as a lack of memory, would also kill a try that follows immediately.
    """
    return min(FIRST_MACHINE_DELAY * (1 << min(machine_kills, 16)), LONGEST_MACHINE_DELAY)
