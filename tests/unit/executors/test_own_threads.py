"""Blocking calls in threads of their own."""

import sys

import pytest
from anyio import CapacityLimiter

from asynsched.executors.own_threads import in_own_thread


async def test_whatever_a_call_raises_its_caller_gets_an_error_and_the_next_call_its_turn():
    limiter = CapacityLimiter(1)
    for raised in (lambda: 1 / 0, lambda: sys.exit("enough"), lambda: next(iter(()))):
        with pytest.raises((ZeroDivisionError, RuntimeError), match=r"division|SystemExit: enough|StopIteration"):
            await in_own_thread(raised, limiter, "test")
    assert await in_own_thread(lambda: 7, limiter, "test") == 7
