"""When a keeper must end its tries: the scheduler's lease is over, and another may take the runs."""

from dataclasses import dataclass


@dataclass(slots=True)
class Fence:
    """A lease and what follows on it, in seconds on the machine's CLOCK_BOOTTIME.

    Attributes:
        valid_until: When the lease ends.
        grace: How much longer tries may go on, so that a scheduler that comes back finds them.
        kill_time: How long they have to end themselves then.
    """

    valid_until: float
    grace: float
    kill_time: float

    @property
    def closes_at(self) -> float:
        """From when on tries are ended."""
        return self.valid_until + self.grace

    @property
    def safe_until(self) -> float:
        """When no try may be left, whenever it was noticed that the fence has closed: others take the runs then."""
        return self.closes_at + self.kill_time

    def time_to_end(self, now: float) -> float:
        """Return how long tries may take from now on to end themselves."""
        return max(0.0, min(self.kill_time, self.safe_until - now))

    def is_closed(self, now: float) -> bool:
        """Return whether tries are to be ended."""
        return now >= self.closes_at
