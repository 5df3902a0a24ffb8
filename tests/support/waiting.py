"""Waiting for a condition, with a deadline: the only place where a test waits for something that causes no event."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
from sqlalchemy import Connection

from asynsched.store.database import Database

T = TypeVar("T")
PAUSE_SECONDS = 0.02
PAUSE_FACTOR = 2.0
"""How many times as long as a check the pause after it is, between `PAUSE_SECONDS` and `LONGEST_PAUSE_SECONDS`: a check
may be a command, and must not take the processor from what the test waits for."""
LONGEST_PAUSE_SECONDS = 0.5
DEADLINE_SECONDS = 60.0
"""Long, for the machine may be busy with other things: only a test that fails waits for so long."""


def until(
    check: Callable[[], T],
    what: str,
    *,
    seconds: float = DEADLINE_SECONDS,
    describe: Callable[[], str] = str,
    longest_pause: float = LONGEST_PAUSE_SECONDS,
) -> T:
    """Return the first truthy answer of `check`; fail with `what` and `describe()` when none comes in time.

    Args:
        longest_pause: Seconds between two checks at most; a benchmark has a short one, as the pause counts in a figure.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        asked_at = time.monotonic()
        answer = check()
        if answer:
            return answer
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last answer: {answer!r}\n{describe()}")
        pause.wait(max(PAUSE_SECONDS, min(PAUSE_FACTOR * (now - asked_at), longest_pause)))


async def eventually(check: Callable[[], T], what: str, *, seconds: float = DEADLINE_SECONDS) -> T:
    """Do as `until`, and let the event loop go on meanwhile."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; last answer: {answer!r}"
        await anyio.sleep(PAUSE_SECONDS)
    return answer


async def eventually_true(database: Database, query: Callable[[Connection], T]) -> T:
    """Return the first truthy answer of a query, and let the event loop go on meanwhile."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := await database.read(query)):
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {query}; last answer: {answer!r}"
        await anyio.sleep(PAUSE_SECONDS)
    return answer
