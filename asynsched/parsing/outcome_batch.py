"""Outcomes of parses on their way to the database: while more files are waiting, some share a transaction."""

from datetime import datetime, timedelta

from asynsched.store.dags.parse_results import Outcome

COMPANY = timedelta(milliseconds=100)
"""How long an outcome waits for others while there are files to be parsed. The last one of all never waits."""
ENOUGH = 20
"""Outcomes that wait no longer: more in one transaction would cost as much for each."""
MOST_STORED = 100
"""Outcomes that share a transaction."""


class OutcomeBatch:
    """Gathers outcomes, in the order of their arrival."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        self._arrivals: list[datetime] = []

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, outcome: Outcome, now: datetime) -> None:
        """Take in an outcome."""
        self._outcomes.append(outcome)
        self._arrivals.append(now)

    @property
    def due_at(self) -> datetime | None:
        """When they are to be stored, whatever comes; None without any."""
        return self._arrivals[0] + COMPANY if self._arrivals else None

    def is_ready(self, now: datetime, *, more_to_come: bool) -> bool:
        """Whether they are to be stored now. `more_to_come`: files wait to be parsed."""
        if self.due_at is None:
            return False
        return not more_to_come or len(self._outcomes) >= ENOUGH or now >= self.due_at

    def first(self) -> list[Outcome]:
        """Return those that go into the next transaction; they stay here until they are `stored`."""
        return self._outcomes[:MOST_STORED]

    def stored(self, n: int) -> None:
        """Forget the first `n`. What has arrived meanwhile waits for company of its own."""
        del self._outcomes[:n], self._arrivals[:n]
