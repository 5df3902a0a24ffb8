"""When a keeper must end its tries: the scheduler's lease is over, and another may take the runs."""

from dataclasses import dataclass


@dataclass(slots=True)
class Fence:
    """A lease and its grace, in seconds on the machine's CLOCK_BOOTTIME.

    Attributes:
        valid_until: When the lease ends.
        grace: How much longer tries may go on, so that a scheduler that comes back finds them.
    """

    valid_until: float
    grace: float

    @property
    def closes_at(self) -> float:
        """From when on no try may run. Another scheduler adopts their runs only later than this."""
        return self.valid_until + self.grace

    def is_closed(self, now: float) -> bool:
        """Return whether no try may run any more."""
        return now >= self.closes_at
