"""Turns of expensive work in an event loop: little of it is done at once, and little more waits."""

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from asynsched.errors import AsynschedError

MOST_WAITING = 10
"""Pieces of work of one kind that wait for their turn; further ones are refused."""
_limiters: RunVar[dict[str, CapacityLimiter]] = RunVar("turns")


def turns(work: str, at_once: int) -> CapacityLimiter:
    """Return the limiter of one kind of work. Raises AsynschedError if many callers wait for it already.

    Args:
        work: Its name, in the plural.
        at_once: How many pieces are done at once.
    """
    try:
        limiters = _limiters.get()
    except LookupError:
        _limiters.set(limiters := {})
    limiter = limiters.setdefault(work, CapacityLimiter(at_once))
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise AsynschedError(f"Too many {work} are waiting for their turn. Try again later.")
    return limiter
