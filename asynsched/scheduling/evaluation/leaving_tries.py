"""Tries that are being ended, and that no task instance waits for: what they were of was marked or removed meanwhile.

Their runs do not end before they are gone. A run that has ended may be cleared, and begun again by another scheduler,
whose keeper knows nothing of processes that are left here.
"""

from collections.abc import Iterable
from datetime import datetime

from asynsched.keys import DagRunKey


class LeavingTries:
    """Knows them by their tokens."""

    def __init__(self) -> None:
        self._run_of: dict[str, DagRunKey] = {}
        self._tokens_of: dict[DagRunKey, set[str]] = {}
        self._since: dict[DagRunKey, datetime] = {}
        """Since when the last of a run's is one of these, until that was told."""

    def __bool__(self) -> bool:
        return bool(self._run_of)

    def add(self, run: DagRunKey, tokens: Iterable[str], now: datetime) -> None:
        """Take note of tries of a run that are still to be gone."""
        for token in tokens:
            self._since[run] = now
            self._run_of[token] = run
            self._tokens_of.setdefault(run, set()).add(token)

    def are_left(self, run: DagRunKey) -> bool:
        """Return whether a run has such tries."""
        return run in self._tokens_of

    def of(self, run: DagRunKey) -> frozenset[str]:
        """Return the tokens of such tries of a run."""
        return frozenset(self._tokens_of.get(run, ()))

    def gone(self, token: str) -> DagRunKey | None:
        """Take note that a try has ended; return its run if it was one of these."""
        run = self._run_of.pop(token, None)
        if run is not None:
            self._tokens_of[run].discard(token)
            if not self._tokens_of[run]:
                self.forget(run)
        return run

    def take_lingering(self, before: datetime) -> list[tuple[DagRunKey, list[str]]]:
        """Return the runs, each once, whose tries are such since before a moment, with the tokens."""
        found = [run for run, since in self._since.items() if since < before]
        for run in found:
            del self._since[run]
        return [(run, sorted(self._tokens_of[run])) for run in found]

    def forget(self, run: DagRunKey) -> list[str]:
        """Forget the tries of a run, and return their tokens."""
        self._since.pop(run, None)
        tokens = sorted(self._tokens_of.pop(run, ()))
        for token in tokens:
            del self._run_of[token]
        return tokens
