"""The pause of streams: how often they send."""

from contextlib import AsyncExitStack

from asynsched.web.streams import MESSAGES_A_SECOND, SHORTEST_PAUSE, Streams


async def test_streams_pause_for_longer_the_more_of_them_there_are() -> None:
    streams = Streams(1000)
    async with AsyncExitStack() as stack:
        for n_open in range(1, 401):
            await stack.enter_async_context(streams.one())
            assert streams.pause >= SHORTEST_PAUSE
            assert round(n_open / streams.pause.total_seconds()) <= MESSAGES_A_SECOND
    assert streams.pause == SHORTEST_PAUSE
