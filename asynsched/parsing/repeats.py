"""When files that have not changed are parsed again.

After an interval, if that is asked for (Airflow: min_file_process_interval). And soon after a parse that was killed:
that may have been the machine's fault, and the next one may live.
"""

import heapq
from collections.abc import Iterable, Set
from datetime import datetime, timedelta

from asynsched.store.dags.files import DagFileRow

LEAST_PAUSE = timedelta(seconds=1)
"""Least time between two looks for files that are due."""
KILLED_KINDS = frozenset({"crash", "memory"})
"""Errors of a parse that ended without a word."""
SECOND_CHANCES = (timedelta(seconds=5), timedelta(seconds=30), timedelta(minutes=3))
"""After how long a text whose parse was killed is parsed again, each time; then it is left to whoever changes it."""


class Repeats:
    """Says which files are due.

    Args:
        interval: Time between two parses of a file that has not changed; zero: none is ever due by it.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._next_look_at: datetime | None = None
        self._chances: list[tuple[datetime, str]] = []
        self._n_kills: dict[str, tuple[str, int]] = {}
        """By path: the hash of the text whose parses were killed, and how often in a row."""

    @property
    def next_at(self) -> datetime | None:
        """When to ask again at the latest."""
        return min(filter(None, (self._next_look_at, self._chances[0][0] if self._chances else None)), default=None)

    def note_parsed(self, file: DagFileRow, kinds: Set[str], now: datetime) -> None:
        """Take note of a parse, and of the kinds of errors that it had."""
        text, n_kills = self._n_kills.pop(file.path, ("", 0))
        if kinds & KILLED_KINDS:
            n_kills = n_kills + 1 if text == file.content_hash else 1
            self._n_kills[file.path] = file.content_hash, n_kills
            if n_kills <= len(SECOND_CHANCES):
                heapq.heappush(self._chances, (now + SECOND_CHANCES[n_kills - 1], file.path))

    def due(self, files: Iterable[DagFileRow], now: datetime) -> list[str]:
        """Return the files that are due."""
        due = []
        while self._chances and self._chances[0][0] <= now:
            path = heapq.heappop(self._chances)[1]
            if path in self._n_kills:
                due.append(path)
        if not self._interval or (self._next_look_at is not None and now < self._next_look_at):
            return due
        moments = {file.path: file.parsed_at + self._interval for file in files}
        self._next_look_at = max(
            min((at for at in moments.values() if at > now), default=now + self._interval), now + LEAST_PAUSE
        )
        return due + [path for path, at in moments.items() if at <= now]
