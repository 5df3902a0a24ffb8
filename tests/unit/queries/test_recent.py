"""An answer that many ask for is computed once in a while."""

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from asynsched.clock import VirtualClock
from asynsched.queries.context import QueryContext
from asynsched.settings import Settings

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
LASTS = timedelta(seconds=10)


@pytest.fixture
def context(tmp_path):
    return QueryContext(None, tmp_path, Settings(), VirtualClock(NOON))


async def test_those_who_ask_together_get_one_answer_until_it_is_old(context):
    begun = []

    async def question(context):
        begun.append(context.clock.now())
        await anyio.lowlevel.checkpoint()
        return len(begun)

    found = []

    async def ask():
        found.append(await context.recent.get(question, context, lasts=LASTS))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
    assert found == [1] * 5
    context.clock.leap(9)
    assert await context.recent.get(question, context, lasts=LASTS) == 1
    context.clock.leap(1)
    assert await context.recent.get(question, context, lasts=LASTS) == 2
    context.clock.leap(1)
    assert context.recent.last(question, context, within=timedelta(seconds=1)) == 2
    assert context.recent.last(question, context, within=timedelta(seconds=0.5)) is None


async def test_a_slow_answer_lasts_longer_and_a_failed_one_is_not_tried_again_at_once(context):
    begun = []

    async def slow(context):
        begun.append(slow)
        context.clock.leap(2)

    async def failing(context):
        begun.append(failing)
        raise OSError("gone")

    await context.recent.get(slow, context, lasts=LASTS)
    context.clock.leap(37)
    await context.recent.get(slow, context, lasts=LASTS)
    assert begun == [slow], "2 s of work are 5 % of 40 s"
    with pytest.raises(OSError, match="gone"):
        await context.recent.get(failing, context, lasts=LASTS)
    assert await context.recent.get(failing, context, lasts=LASTS) is None
    assert begun == [slow, failing]
