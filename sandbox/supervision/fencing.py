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

    def time_to_end(self, now: float, kill_time: float) -> float:
        """Return how long tries may take from now on to end themselves.

        Another scheduler may run their tasks `kill_time` seconds after the fence has closed, whenever that was noticed.
        """
        return max(0.0, min(kill_time, self.closes_at + kill_time - now))

    def is_closed(self, now: float) -> bool:
        """Return whether no try may run any more."""
        return now >= self.closes_at
