"""Blocking calls in threads of their own."""

import sys

import pytest
from anyio import CapacityLimiter

from asynsched.executors.own_threads import in_own_thread


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: 1 / 0, ZeroDivisionError, "^division by zero$"),
        (lambda: sys.exit("enough"), RuntimeError, "^SystemExit: enough$"),
        (lambda: next(iter(())), RuntimeError, "^StopIteration: $"),
    ],
)
async def test_whatever_a_call_raises_its_caller_gets_an_error_and_the_next_call_its_turn(call, error, text):
    limiter = CapacityLimiter(1)
    with pytest.raises(error, match=text):
        await in_own_thread(call, limiter, "test")
    assert await in_own_thread(lambda: 7, limiter, "test") == 7
