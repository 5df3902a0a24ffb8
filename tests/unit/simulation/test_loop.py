"""Virtual time: it leaps from timer to timer, never while something runs, and never goes wrong over years."""

import asyncio
from datetime import UTC, datetime, timedelta

import anyio
import anyio.to_thread
import pytest

from asynsched.clock import VirtualClock
from asynsched.errors import SimulationStalled
from asynsched.simulation.simulation import run_virtual

START = datetime(2026, 3, 1, tzinfo=UTC)


def test_ten_years_of_waiting_take_no_time_and_end_at_the_exact_instants():
    clock = VirtualClock(START)
    heard: list[tuple[str, datetime]] = []

    async def wait_for(name: str, step: timedelta, n: int) -> None:
        for _ in range(n):
            await clock.sleep(step)
            heard.append((name, clock.now()))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for, "year", timedelta(days=365), 10)
            group.start_soon(wait_for, "odd", timedelta(days=1000, microseconds=1), 3)

    run_virtual(main, clock)
    assert heard == sorted(heard, key=lambda item: item[1])
    assert [at - START for name, at in heard if name == "year"] == [timedelta(days=365) * n for n in range(1, 11)]
    assert [at - START for name, at in heard if name == "odd"] == [
        timedelta(days=1000, microseconds=1) * n for n in range(1, 4)
    ]


def test_an_event_is_heard_at_its_instant_and_a_wait_gives_up_at_its_own():
    clock = VirtualClock(START)

    async def main() -> tuple[bool, bool, datetime]:
        event = anyio.Event()
        asyncio.get_running_loop().call_later(90, event.set)
        gave_up = await clock.wait(event, at_most=timedelta(minutes=1))
        heard = await clock.wait(event, at_most=timedelta(minutes=1))
        return gave_up, heard, clock.now()

    assert run_virtual(main, clock) == (False, True, START + timedelta(seconds=90))


@pytest.mark.parametrize("in_thread", [asyncio.to_thread, anyio.to_thread.run_sync])
def test_time_stands_still_while_a_thread_works(in_thread):
    clock = VirtualClock(START)

    async def main() -> datetime:
        timer = asyncio.ensure_future(clock.sleep(timedelta(hours=1)))
        await in_thread(sum, range(2_000_000))  # long enough for the loop to have nothing else to do
        landed_at = clock.now()
        await timer
        return landed_at

    assert run_virtual(main, clock) == START
    assert clock.now() == START + timedelta(hours=1)


def test_a_deadlock_is_an_error_not_a_hang():
    with pytest.raises(SimulationStalled):
        run_virtual(anyio.Event().wait, VirtualClock(START))
