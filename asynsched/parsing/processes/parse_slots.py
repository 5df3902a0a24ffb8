"""How many parses may run at once: `parse.processes`, for first and second parses alike."""

from collections.abc import Callable


class ParseSlots:
    """Counts the parses that may still begin.

    Args:
        n: Parses that may run at once.
        freed: Called whenever one more may begin.
    """

    def __init__(self, n: int, freed: Callable[[], None]) -> None:
        self._n_free = n
        self._freed = freed

    @property
    def n_free(self) -> int:
        """How many may begin."""
        return self._n_free

    def take(self) -> bool:
        """Take a slot for a parse, if one is free; say whether it was."""
        if not self._n_free:
            return False
        self._n_free -= 1
        return True

    def give_back(self) -> None:
        """Give a slot back: its parse has ended."""
        self._n_free += 1
        self._freed()
