"""An answer that many ask for is computed once in a while."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.queries.place import Place
from asynsched.settings import Settings

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
LASTS = timedelta(seconds=10)


@pytest.fixture
def place(tmp_path):
    return Place(None, tmp_path, Settings(), VirtualClock(NOON))


async def test_those_who_ask_together_get_one_answer_until_it_is_old(place):
    begun = []

    async def question(place):
        begun.append(place.clock.now())
        await anyio.lowlevel.checkpoint()
        return len(begun)

    found = []

    async def ask():
        found.append(await place.recent.get(question, place, lasts=LASTS))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert found == [1] * 5
    place.clock.leap(9)
    assert await place.recent.get(question, place, lasts=LASTS) == 1
    place.clock.leap(1)
    assert await place.recent.get(question, place, lasts=LASTS) == 2
    place.clock.leap(1)
    assert place.recent.last(question, place, within=timedelta(seconds=1)) == 2
    assert place.recent.last(question, place, within=timedelta(seconds=0.5)) is None


async def test_a_slow_answer_lasts_longer_and_a_failed_one_is_not_tried_again_at_once(place):
    begun = []

    async def slow(place):
        begun.append(slow)
        place.clock.leap(2)

    async def failing(place):
        begun.append(failing)
        raise OSError("gone")

    await place.recent.get(slow, place, lasts=LASTS)
    place.clock.leap(37)
    await place.recent.get(slow, place, lasts=LASTS)
    assert begun == [slow], "2 s of work are 5 % of 40 s"
    with pytest.raises(OSError, match="gone"):
        await place.recent.get(failing, place, lasts=LASTS)
    assert await place.recent.get(failing, place, lasts=LASTS) is None
    assert begun == [slow, failing]
