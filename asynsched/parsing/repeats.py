"""When files that have not changed are parsed again, if that is asked for (Airflow: min_file_process_interval)."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from asynsched.store.dag_files import DagFileRow

LEAST_PAUSE = timedelta(seconds=1)
"""Least time between two looks for files that are due."""


class Repeats:
    """Says which files are due.

    Args:
        interval: Time between two parses of a file that has not changed; zero: none is ever due.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self.next_at: datetime | None = None

    def due(self, files: Iterable[DagFileRow], now: datetime) -> list[str]:
        """Return the files that are due, and note in `next_at` when to ask again at the latest."""
        if not self._interval or (self.next_at is not None and now < self.next_at):
            return []
        moments = {file.path: file.parsed_at + self._interval for file in files}
        self.next_at = max(
            min((at for at in moments.values() if at > now), default=now + self._interval), now + LEAST_PAUSE
        )
        return [path for path, at in moments.items() if at <= now]
