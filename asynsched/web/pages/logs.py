"""`…/tasks/{task_id}/log`: parts of a log as plain text, its lines with a text, and a stream that follows it."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from asynsched.keys import TaskInstanceKey
from asynsched.queries.try_logs import find_in_log, follow_log, read_log, read_log_end
from asynsched.web.endpoint import Call
from asynsched.web.event_stream import last_event_id
from asynsched.web.pages.page import PAGE, MapIndex, show
from asynsched.web.pages.showing import plain

PART_BYTES = 256 * 1024
Number = Annotated[int, Meta(ge=0, le=10**6)]
Byte = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/log")
async def log(
    call: Call, dag_id: str, run_id: str, task_id: str, try_number: Number, map_index: MapIndex = -1,
    start: Byte | None = None, until: Byte | None = None,
) -> Response:  # fmt: skip
    """Send a part of a log as text: from a byte on, or until a byte. Headers tell which part it is."""
    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    if start is None:
        part = await read_log_end(call.context, key, try_number, n_bytes=PART_BYTES, until=until)
    else:
        part = await read_log(call.context, key, try_number, start=start, n_bytes=PART_BYTES)
    headers = {"X-Start": str(part.start), "X-End": str(part.end), "X-Size": str(part.size)}
    return Response(plain(part.text), 200, headers, media_type="text/plain")


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/log/find")
async def find(
    call: Call, dag_id: str, run_id: str, task_id: str, try_number: Number, q: str, map_index: MapIndex = -1
) -> Response:
    """Show the lines of a log that have a text."""
    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    found = await find_in_log(call.context, key, try_number, q) if q.strip() else []
    return await show(call, "log_find.html", key=key, number=try_number, q=q, found=found)


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/log/follow")
async def follow(
    call: Call, dag_id: str, run_id: str, task_id: str, try_number: Number, start: Byte, map_index: MapIndex = -1
) -> Response:
    """Send what is appended to a log as server-sent events, until the try has ended."""
    key = TaskInstanceKey(dag_id, run_id, task_id, map_index)
    last = last_event_id(call)
    begin = start if last is None else last
    await read_log(call.context, key, try_number, start=begin, n_bytes=1)  # raises NotFound
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_following(call, key, try_number, begin), 200, headers, "text/event-stream")


async def _following(call: Call, key: TaskInstanceKey, number: int, start: int) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    async with aclosing(follow_log(call.context, key, number, start=start, n_bytes=PART_BYTES)) as parts:
        async for part in parts:
            if part.text:
                yield _event("log", plain(part.text), part.end)
            if part.is_last:
                yield _event("end", "", part.end)


def _event(name: str, text: str, position: int) -> bytes:
    # As JSON, so that a text may have any line ends.
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), position, msgspec.json.encode(text))
