"""Whether anybody schedules at all: without a scheduler nothing goes on, whatever else is to be said."""

from collections.abc import Sequence
from datetime import datetime

from asynsched.explaining.reason import Reason

RULE = "scheduler"
START = "`asynsched up`"


def no_scheduler(last_served_at: datetime | None, stopping: Sequence[str] = ()) -> Reason:
    """Return the reason that comes before all others where no scheduler serves.

    Args:
        last_served_at: When the last one stopped, or was last alive; None: there never was one.
        stopping: The ids of those that let end what runs, and begin nothing.
    """
    if stopping:
        told = f"no scheduler is serving: {', '.join(stopping)} is stopping, and has to end first"
        return Reason(RULE, told, f"one is started: {START}")
    since = "; none has yet"
    if last_served_at is not None:
        since = f" since {last_served_at.isoformat(sep=' ', timespec='seconds')}"
    return Reason(RULE, f"no scheduler is serving{since}", f"one is started: {START}")


def with_service(reasons: Sequence[Reason], *lacks: Reason | None) -> tuple[Reason, ...]:
    """Return reasons, after those for which nothing is done at all, if there are any."""
    return (*(lack for lack in lacks if lack is not None), *reasons)
