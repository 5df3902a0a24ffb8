"""Answers without an end of their own, such as streams of events: how many there are, and until when one may go on.

Such an answer outlives the moment at which its reader was asked who they are. A session that ends, a token that is
revoked and a role that is lowered cause no event in this process, so the reader is looked up again from time to time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from asynsched.errors import AsynschedError, StoreUnavailable
from asynsched.web.access import NotSignedIn

if TYPE_CHECKING:
    from asynsched.web.endpoint import Call

RENEWAL = timedelta(seconds=10)
"""From one look at the rights of a stream's reader to the next one."""
LOOK = timedelta(seconds=5)
"""How long a look may take. A stream goes on for at most both together, 15 s, after its reader has lost a right."""
RETRY = timedelta(seconds=1)
"""Until the next attempt, while the database is not available."""
SHORTEST_PAUSE = timedelta(milliseconds=20)
MESSAGES_A_SECOND = 1000
"""Of all streams together, about: each costs about 0.15 ms of CPU time, and wakes its reader."""
END = {"type": "http.response.body", "body": b"", "more_body": False}


class TooManyStreams(AsynschedError):
    """All streams that there may be are open."""

    def __init__(self) -> None:
        super().__init__("Too many streams are open: half of web.max_connections. Try again later.")


class Streams:
    """The streams of an application.

    Args:
        max_streams: Streams at once; a further one is refused, so that there is always room for requests.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._n_open = 0

    def supervised(self, call: "Call", answer: StreamingResponse) -> "SupervisedStream":
        """Return an answer that ends when its reader's rights change. Raises TooManyStreams."""
        if self._n_open >= self._max_streams:
            raise TooManyStreams
        return SupervisedStream(self, call, answer)

    @property
    def pause(self) -> timedelta:
        """How long a stream collects what it is to send after a message: the longer, the more streams there are."""
        return max(SHORTEST_PAUSE, timedelta(seconds=self._n_open / MESSAGES_A_SECOND))

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Count a stream while it is open."""
        self._n_open += 1
        try:
            yield
        finally:
            self._n_open -= 1


class SupervisedStream(StreamingResponse):
    """A stream that ends soon after its reader has lost a right; a reader that comes back is told why."""

    def __init__(self, streams: Streams, call: "Call", answer: StreamingResponse) -> None:
        super().__init__(answer.body_iterator, answer.status_code)
        self.raw_headers = answer.raw_headers
        self._streams = streams
        self._caller = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._streams.one():
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the parts of the answer."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervise, tasks.cancel_scope)
            await super().stream_response(send)
            tasks.cancel_scope.cancel()
            return
        await send(END)  # only if the rights have changed, or cannot be read

    async def _supervise(self, stream: anyio.CancelScope) -> None:
        """Cancel the stream when its reader is no longer the one of its beginning, with the same rights."""
        clock = self._caller.context.clock
        while True:
            next_look = clock.monotonic() + RENEWAL.total_seconds()
            if not await self._has_same_reader():
                stream.cancel()
                return
            await clock.sleep(timedelta(seconds=next_look - clock.monotonic()))

    async def _has_same_reader(self) -> bool:
        """Return whether the rights are those of the beginning; False also if they cannot be read in time."""
        call = self._caller
        with anyio.move_on_after(LOOK.total_seconds()):
            while True:
                try:
                    return await call.access.identify(call.request) == call.who
                except NotSignedIn:
                    return False
                except StoreUnavailable:
                    await call.context.clock.sleep(RETRY)
        return False
