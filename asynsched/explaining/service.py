"""Whether anybody schedules at all: without a scheduler nothing goes on, whatever else is to be said."""

from collections.abc import Sequence
from datetime import datetime

from asynsched.explaining.reason import Reason

RULE = "scheduler"
START = "`asynsched up`"
AFTER_STOP = f"it has ended, and another one is started: {START}"


def no_scheduler(last_served_at: datetime | None, stopping: Sequence[str] = ()) -> Reason:
    """Return the reason that comes before all others where no scheduler serves.

    Args:
        last_served_at: When the last one stopped, or was last alive; None: there never was one.
        stopping: The ids of those that let end what runs, and begin nothing.
    """
    if stopping:
        told = f"scheduler {stopping[0]} is stopping: it lets what runs end, and starts nothing more"
        return Reason(RULE, told, AFTER_STOP)
    since = "; none has yet"
    if last_served_at is not None:
        since = f" since {last_served_at.isoformat(sep=' ', timespec='seconds')}"
    return Reason(RULE, f"no scheduler is serving{since}", f"one is started: {START}")


def answer_of(unserved: Reason) -> str:
    """Return `no_scheduler`'s reason and what to do about it, in one or two sentences."""
    text = unserved.text[:1].upper() + unserved.text[1:]
    if unserved.release == AFTER_STOP:
        return f"{text}. Once it has ended, start another one: {START}."
    return f"{text}: start one with {START}."


def with_service(reasons: Sequence[Reason], *lacks: Reason | None) -> tuple[Reason, ...]:
    """Return reasons, after those for which nothing is done at all, if there are any."""
    return (*(lack for lack in lacks if lack is not None), *reasons)
