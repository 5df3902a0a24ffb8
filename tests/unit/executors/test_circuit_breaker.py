"""Calls of a service that may be away."""

from datetime import UTC, datetime

import pytest

from asynsched.clock import VirtualClock
from asynsched.executors.engines.circuit_breaker import OPEN_SECONDS, CircuitBreaker


async def test_a_service_that_has_not_answered_is_not_called_again_for_a_while():
    clock, calls = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), []

    async def call() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        return "answer"

    breaker = CircuitBreaker(clock, "Slurm", 30.0)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="Slurm has not answered for 30 s"):
            await breaker.call(call)
    assert len(calls) == 1
    clock.leap(OPEN_SECONDS)
    assert await breaker.call(call) == "answer"


async def test_other_errors_do_not_keep_a_service_from_being_called():
    breaker = CircuitBreaker(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), "Slurm", 30.0)

    async def fail() -> None:
        raise ConnectionRefusedError("no")

    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await breaker.call(fail)
