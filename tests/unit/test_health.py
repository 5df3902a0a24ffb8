"""Health names stuck loops, tells them from those that wait for the database, and answers during a step."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import StoreUnavailable
from asynsched.health import Health, Vitals
from asynsched.service import Pulse, Service
from asynsched.simulation.simulation import run_virtual

LONGEST_STEP = 60.0


class Stepping(Service):
    """Steps that take these times; those that are None find no database."""

    interval = timedelta(seconds=30)

    def __init__(self, clock: VirtualClock, name: str, steps: list[float | None]) -> None:
        super().__init__(clock)
        self.name = name
        self._steps = iter(steps)

    async def tick(self, now: datetime) -> None:
        seconds = next(self._steps, 0.0)
        if seconds is None:
            raise StoreUnavailable("away")
        await self.clock.sleep(timedelta(seconds=seconds))


def health_after(seconds: float, **steps: list[float | None]) -> Health:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    vitals = Vitals(clock, "me", LONGEST_STEP)

    async def live() -> Health:
        async with anyio.create_task_group() as group:
            services = [Stepping(clock, name, of_each) for name, of_each in steps.items()]
            for service in services:
                vitals.watch(service.name, service.pulse, lambda: Stepping.interval)
                await group.start(service.run)
            await clock.sleep(timedelta(seconds=seconds))
            health = vitals.health()
            group.cancel_scope.cancel()
        assert vitals.health().loops == (), "loops that have ended are not listed"
        return health

    return run_virtual(live, clock)


def test_a_scheduler_at_rest_is_healthy_and_each_loop_has_its_age():
    health = health_after(35, first=[10.0], second=[])
    assert (health.status, health.oldest_step, health.stuck_loops) == ("healthy", None, ())
    assert {loop.name: loop.age_seconds for loop in health.loops} == {"first": 25.0, "second": 5.0}


def test_the_oldest_unfinished_step_is_named_and_is_stuck_after_too_long():
    steps = {"slow": [500.0], "slower": [0.0, 500.0], "idle": []}
    early = health_after(50, **steps)
    assert (early.status, early.oldest_step, early.oldest_step_seconds) == ("healthy", "slow", 50.0)
    late = health_after(75, **steps)
    assert (late.status, late.oldest_step, late.stuck_loops) == ("stuck", "slow", ("slow",))


def test_a_loop_that_waits_for_the_database_is_not_stuck():
    health = health_after(300, away=[None] * 1000, well=[])
    assert (health.status, health.stuck_loops) == ("waiting", ())
    assert [loop.name for loop in health.loops if loop.waits_for_database] == ["away"]
    assert health_after(300, back=[None, None]).status == "healthy"


@pytest.mark.parametrize(("seconds", "status"), [(60.4, "healthy"), (61.0, "stuck")])
def test_a_loop_that_should_have_gone_round_long_ago_is_stuck(seconds, status):
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    vitals, pulse = Vitals(clock, "me", LONGEST_STEP), Pulse(clock)
    vitals.watch("event loop", pulse, lambda: timedelta(seconds=0.5))
    with pulse.running():
        clock.leap(seconds)
        assert vitals.health().status == status
