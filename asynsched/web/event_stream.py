"""Events as a stream that browsers read (server-sent events): each has its number as id, so a reader can go on.

A reader that comes back gives the last number as `Last-Event-ID`; the stream begins with the number before its first
event. An event `missed` says that changes are left out, and its id is where the reader goes on; its data has the
number. A reader for whom there is no event for a while gets the number up to which there is none.
"""

from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Annotated

import anyio
import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse

from asynsched.errors import StoreUnavailable
from asynsched.queries.events import Change, EventReader, Missed, NoEvents
from asynsched.web.access import Permission
from asynsched.web.endpoint import Api, Call, Example

PAUSE_SECONDS = 15.0
"""Longest silence of a stream: proxies close connections that say nothing, and a reader learns that it is cut off."""
N_ENCODED = 1000
"""Events whose bytes are kept for a while: the streams that send an event share them."""
Since = Annotated[int, Meta(ge=0, description="Begin after the event with this number; 0: with the oldest stored one.")]
EXAMPLE = Example({"since": 41, "dag_id": "etl"})


def add_events(api: Api) -> None:
    """Add the stream of events to an API."""

    @api.endpoint("GET", "/events", example=EXAMPLE)
    async def events(
        call: Call, since: Since | None = None, dag_id: str | None = None, run_id: str | None = None
    ) -> StreamingResponse:
        """Stream the changes of runs and task instances, each once it is stored (text/event-stream).

        The header Last-Event-ID, which browsers send when they come back, counts before `since`. Without both, the
        stream begins with the present.
        """
        if call.context.feed is None:
            raise NoEvents
        last = last_event_id(call)
        reader = call.context.feed.read(since if last is None else last, dag_id=dag_id, run_id=run_id)
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(_lines(call, reader), media_type="text/event-stream", headers=headers)


def last_event_id(call: Call) -> int | None:
    """Return the number at which a reader that comes back goes on; None: it comes for the first time."""
    text = call.request.headers.get("last-event-id", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None


async def _lines(call: Call, reader: EventReader) -> AsyncIterator[bytes]:
    yield b": events of asynsched\n\n"
    clock, who = call.context.clock, call.who
    silent_since = clock.monotonic()
    async with reader:
        if reader.go_on_at is not None:
            yield b"id: %d\n\n" % reader.go_on_at  # a reader that is cut off before the first event comes back here
        while True:
            events: list[Change | Missed] = []
            try:
                with anyio.move_on_after(PAUSE_SECONDS):
                    events = [await anext(reader), *reader.take_waiting()]
            except (StopAsyncIteration, StoreUnavailable):
                return  # the reader comes back
            if who.of_dags is None:  # they may view all, or would have been refused
                shown = events
            else:
                shown = [each for each in events if isinstance(each, Missed) or who.may(Permission.VIEW, each.dag_id)]
            if shown:
                yield b"".join(map(encoded, shown))
            elif not events or clock.monotonic() >= silent_since + PAUSE_SECONDS:
                yield b"id: %d\n\n" % (reader.go_on_at or 0)
            else:
                continue
            silent_since = clock.monotonic()
            await clock.sleep(call.streams.pause)


@lru_cache(maxsize=N_ENCODED)
def encoded(event: Change | Missed) -> bytes:
    """Return an event as the stream has it."""
    name, number = ("missed", event.go_on_at) if isinstance(event, Missed) else ("change", event.number)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode(), msgspec.json.encode(event))
