"""What becomes of a task instance when one of its tries has ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from asynsched.protocol.messages import Ended
from asynsched.scheduling.rules.retry import after_failure, machine_retry_delay
from asynsched.serialization.schema import CallbackEvent, SerializedTask
from asynsched.states import TaskInstanceState

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
