"""`…/taskInstances/{task_id}/logs`: the log of a try, in parts."""

import base64
import binascii
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

import msgspec
from anyio.to_thread import run_sync
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response, StreamingResponse

from asynsched.keys import TaskInstanceKey
from asynsched.queries.paging import BadRequest
from asynsched.queries.task_instances import get_task_instance
from asynsched.queries.try_logs import LogPart, read_log
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex
from asynsched.web.airflow_api.task_instances import BASE
from asynsched.web.endpoint import JSON, Call

NDJSON = "application/x-ndjson"
TOKEN_HEADER = "Airflow-Continuation-Token"  # noqa: S105 - the name of a header
NO_LOG = (
    "There is no log here: the try has written nothing yet, it has no process, or only another home has its log so far."
)
FIRST_BYTE = Annotated[int, Meta(ge=0)]


class StructuredLogMessage(Struct, frozen=True, omit_defaults=True):
    """A line of a log."""

    event: str
    timestamp: datetime | UnsetType = UNSET


class TaskInstancesLogResponse(Struct, frozen=True):
    """A part of a log; with the token, the next part can be asked for. null: the log ends here."""

    content: tuple[StructuredLogMessage, ...]
    continuation_token: str | None


class ExternalLogUrlResponse(Struct, frozen=True):
    """Where a log is shown elsewhere."""

    url: str


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/logs/{{try_number}}", errors=(404,))
async def get_log(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    try_number: Annotated[int, Meta(ge=0, le=2**31 - 1)],
    full_content: bool = False,
    map_index: MapIndex = -1,
    token: str | None = None,
) -> TaskInstancesLogResponse | Response:
    """Show a part of the log of a try: a mebibyte at most, then from where the token says.

    A request that accepts `application/x-ndjson` gets lines of JSON; with `full_content`, up to the end of the log.
    """
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, map_index)
    part = await read_log(call.context, key, try_number, start=0 if token is None else _read(token))
    if NDJSON in call.request.headers.get("accept", ""):
        headers = {} if part.is_last or full_content else {TOKEN_HEADER: _token(part)}
        stream = _whole(call, key, try_number, part) if full_content else _once(part)
        return StreamingResponse(stream, media_type=NDJSON, headers=headers)
    return Response(await run_sync(_encoded, part), media_type=JSON)


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/externalLogUrl/{{try_number}}", errors=(404,))
async def get_external_log_url(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    try_number: Annotated[int, Meta(gt=0, le=2**31 - 1)],  # noqa: ARG001 - the path has it
    map_index: MapIndex = -1,
) -> ExternalLogUrlResponse:
    """Logs have no address of their own: this is always refused, as Airflow does then."""
    await call.context.ask(get_task_instance, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    raise BadRequest("Logs have no address elsewhere: read them here.")


def _encoded(part: LogPart) -> bytes:
    """Return the JSON of a part of a log. It may have many lines: for a thread."""
    answer = TaskInstancesLogResponse(tuple(_lines(part)), None if part.is_last else _token(part))
    return msgspec.json.encode(answer)


def _lines(part: LogPart) -> list[StructuredLogMessage]:
    if not part.exists:
        return [StructuredLogMessage(NO_LOG)]
    return [StructuredLogMessage(line) for line in part.text.splitlines()]


async def _once(part: LogPart) -> AsyncIterator[bytes]:
    yield await run_sync(_as_ndjson, part)


async def _whole(call: Call, key: TaskInstanceKey, try_number: int, part: LogPart) -> AsyncIterator[bytes]:
    """Yield a log from a part to its present end, a part at a time."""
    yield await run_sync(_as_ndjson, part)
    while not part.is_last and part.end > part.start:
        part = await read_log(call.context, key, try_number, start=part.end)
        yield await run_sync(_as_ndjson, part)


def _as_ndjson(part: LogPart) -> bytes:
    return msgspec.json.Encoder().encode_lines(_lines(part))


def _token(part: LogPart) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(part.end)).decode().rstrip("=")


def _read(token: str) -> int:
    try:
        data = base64.urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}")
        return msgspec.json.decode(data, type=FIRST_BYTE)
    except (ValueError, binascii.Error) as exc:
        raise BadRequest("This is not a token of a log: use those that the answers have.") from exc
