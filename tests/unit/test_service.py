"""The contract of every long-lived task: its behaviour while the database is away."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.service import FIRST_BACKOFF, LONGEST_BACKOFF, Service

OUTAGES = [9, 3]
"""Steps without a database; after each of these outages there is one with it."""


class Stepping(Clock):
    """Notes how long it is to sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[timedelta] = []

    async def sleep(self, duration: timedelta) -> None:
        self.slept.append(duration)

    async def wait(self, event: anyio.Event, at_most: timedelta | None = None) -> bool:
        return False


class Needy(Service):
    """Has no database in the steps of the outages."""

    name = "needy"

    def __init__(self, clock: Stepping, stop: anyio.CancelScope) -> None:
        super().__init__(clock)
        self._stop = stop
        self._answers = iter([is_there for n in OUTAGES for is_there in (*[False] * n, True)])

    async def tick(self, now: datetime) -> None:
        assert now.tzinfo is UTC
        is_there = next(self._answers, None)
        if is_there is None:
            self._stop.cancel()
            await anyio.lowlevel.checkpoint()
        if not is_there:
            raise StoreUnavailable("away")


async def pauses(monkeypatch: pytest.MonkeyPatch, chance: float) -> list[float]:
    """Return how many seconds it has paused after each failure, where chance draws that of 0 to 1."""
    monkeypatch.setattr("random.random", lambda: chance)
    clock = Stepping()
    with anyio.CancelScope() as stop:
        await Needy(clock, stop).run()
    return [pause.total_seconds() for pause in clock.slept]


async def test_pauses_grow_to_a_limit_with_jitter_and_restart_after_each_outage(monkeypatch):
    grown = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.1, 0.2, 0.4]
    assert (FIRST_BACKOFF.total_seconds(), LONGEST_BACKOFF.total_seconds()) == (0.1, 10.0)
    assert await pauses(monkeypatch, 0.0) == pytest.approx(grown)
    assert await pauses(monkeypatch, 0.5) == pytest.approx([1.5 * pause for pause in grown])
