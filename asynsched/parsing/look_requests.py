"""Which files are to be looked at, and which must wait because they are being parsed."""

from asynsched.parsing.examination import shown
from asynsched.parsing.freshness import LookRequest

MOST_LOOKS = 500
"""Files that are looked at together."""


class LookRequests:
    """One request a file. A file is busy from the start of its parse until its outcome is stored.

    What is asked about a busy file is kept, and asked again when it is no longer busy: so no file is parsed twice at
    once, and one that changes during its parse is parsed once more.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, LookRequest] = {}
        self._held_back: dict[str, LookRequest] = {}
        self._busy: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked and nothing is busy."""
        return not (self._waiting or self._held_back or self._busy)

    @property
    def are_waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._waiting)

    @property
    def hurried(self) -> list[str]:
        """The busy files that have changed since."""
        return [path for path, request in self._held_back.items() if request.is_urgent]

    def add(self, request: LookRequest) -> None:
        """Ask for a look at a file; joined with an earlier request for the same file."""
        path = shown(request.path)
        requests = self._held_back if path in self._busy else self._waiting
        requests[path] = requests[path].merged_with(request) if path in requests else request

    def take(self) -> list[LookRequest]:
        """Take out the oldest requests about files that are not busy."""
        return [self._waiting.pop(path) for path in list(self._waiting)[:MOST_LOOKS]]

    def is_busy(self, path: str) -> bool:
        """Whether the file is being parsed, or its outcome is not stored yet."""
        return path in self._busy

    def begin(self, path: str) -> None:
        """Make a file busy."""
        self._busy.add(path)
        if path in self._waiting:
            self._held_back[path] = self._waiting.pop(path)

    def end(self, path: str) -> None:
        """Let a file be asked about again."""
        self._busy.discard(path)
        if path in self._held_back:
            self.add(self._held_back.pop(path))
