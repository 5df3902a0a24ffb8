"""Waiting for a condition, with a deadline: the only place where a test waits for what it cannot be told of."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_SECONDS = 0.02


def until(check: Callable[[], T], what: str, *, seconds: float = 30, describe: Callable[[], str] = str) -> T:
    """Return the first truthy answer of `check`; fail with `what` and `describe()` when none comes in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}; last answer: {answer!r}\n{describe()}")
        pause.wait(PAUSE_SECONDS)
