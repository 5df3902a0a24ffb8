"""`…/taskInstances/{task_id}/xcomEntries`: XComs of a task instance, or of all (`~`)."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from anyio.to_thread import run_sync
from msgspec import Meta, Struct
from starlette.responses import Response

from asynsched.authoring.transport import readable
from asynsched.errors import NotFound
from asynsched.keys import TaskInstanceKey
from asynsched.queries.runs import RunFilter
from asynsched.queries.task_instances import get_task_instance
from asynsched.queries.xcoms import (
    XComFilter,
    XComInfo,
    XComValue,
    count_xcoms,
    delete_xcom,
    get_xcom,
    list_links,
    list_xcoms,
    put_xcom,
)
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, Number, OrderBy, PageQuery, listed, paging
from asynsched.web.airflow_api.filters import RunDates, pattern, unless_all
from asynsched.web.airflow_api.task_instances import BASE
from asynsched.web.endpoint import JSON, Call

NAMES = {"timestamp": "created_at"}
USUAL_ORDER = ("dag_id", "task_id", "run_id", "map_index", "key")
Key = Annotated[str, Meta(min_length=1, max_length=512)]


class XComResponse(Struct, frozen=True, kw_only=True):
    """An XCom without its value."""

    key: str
    timestamp: datetime
    logical_date: datetime | None
    map_index: int
    task_id: str
    dag_id: str
    run_id: str
    dag_display_name: str
    task_display_name: str
    run_after: datetime


class XComResponseNative(XComResponse, frozen=True, kw_only=True):
    """An XCom with its value; a text if the request asks for one."""

    value: Any


class XComCollectionResponse(Struct, frozen=True):
    """A page of XComs."""

    xcom_entries: tuple[XComResponse, ...]
    total_entries: int


class XComCreateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """An XCom to create."""

    key: Key
    value: Any
    map_index: MapIndex = -1


class XComUpdateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Another value of an XCom."""

    value: Any
    map_index: MapIndex = -1


class XComQuery(Struct, frozen=True, kw_only=True):
    """The filters of XComs."""

    xcom_key: str | None = None
    map_index: MapIndex | None = None
    xcom_key_pattern: str | None = None
    xcom_key_prefix_pattern: str | None = None
    dag_display_name_pattern: str | None = None
    dag_display_name_prefix_pattern: str | None = None
    run_id_pattern: str | None = None
    run_id_prefix_pattern: str | None = None
    task_id_pattern: str | None = None
    task_id_prefix_pattern: str | None = None
    map_index_filter: MapIndex | None = None


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/xcomEntries", errors=(404,))
async def get_xcom_entries(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    dates: RunDates,
    query: XComQuery,
    page: PageQuery,
    order_by: OrderBy = USUAL_ORDER,
) -> XComCollectionResponse:
    """List XComs, without their values, of a task instance or of all (`~` for the DAG, the run and the task)."""
    run = RunFilter(
        call.who.dag_ids, unless_all(dag_id), unless_all(dag_run_id), run_id=pattern(query, "run_id"), **dates.of_runs
    )
    indexes = {index for index in (query.map_index, query.map_index_filter) if index is not None}
    if len(indexes) > 1:
        return XComCollectionResponse((), 0)
    wanted = XComFilter(
        run, unless_all(task_id), tuple(indexes) or None, None if query.xcom_key is None else (query.xcom_key,),
        dag_name=pattern(query, "dag_display_name"), task_id=pattern(query, "task_id"),
        key=pattern(query, "xcom_key"),
    )  # fmt: skip
    questions, asked = (list_xcoms, count_xcoms), paging(page, order_by, NAMES)
    return XComCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_listed))


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/xcomEntries/{{xcom_key:path}}", errors=(404,))
async def get_xcom_entry(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    xcom_key: str,
    map_index: MapIndex = -1,
    deserialize: bool = False,
    stringify: bool = False,
) -> XComResponseNative | Response:
    """Show an XCom with its value, as it is stored.

    `deserialize` shows values of types that JSON lacks in a form for people; `stringify` makes the value a text.
    """
    found = await get_xcom(call.context, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index), xcom_key)
    return Response(await run_sync(_encoded, found, deserialize, stringify), media_type=JSON)


class ExtraLinkCollectionResponse(Struct, frozen=True):
    """The addresses of a task instance's work in other systems."""

    extra_links: dict[str, str | None]
    total_entries: int


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/links", errors=(404,))
async def get_extra_links(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex = -1, try_number: Number | None = None
) -> ExtraLinkCollectionResponse:
    """List the extra links of a task instance, which are those of its newest try."""
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, map_index)
    found = await list_links(call.context, key)
    if try_number is not None and try_number != (await call.context.ask(get_task_instance, key)).try_number:
        raise NotFound("link", str(try_number), where=f"the tries of the task instance {task_id!r} before the newest")
    return ExtraLinkCollectionResponse(found, len(found))


@AIRFLOW_API.endpoint(
    "POST", f"{BASE}/{{task_id}}/xcomEntries", permission=Permission.OPERATE, status=201, errors=(404, 409)
)
async def create_xcom_entry(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, body: XComCreateBody
) -> XComResponseNative:
    """Create an XCom of a task instance."""
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, body.map_index)
    return await _put(call, key, body.key, body.value, is_new=True)


@AIRFLOW_API.endpoint(
    "PATCH", f"{BASE}/{{task_id}}/xcomEntries/{{xcom_key:path}}", permission=Permission.OPERATE, errors=(404,)
)
async def update_xcom_entry(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, xcom_key: str, body: XComUpdateBody
) -> XComResponseNative:
    """Replace the value of an XCom."""
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, body.map_index)
    return await _put(call, key, xcom_key, body.value, is_new=False)


@AIRFLOW_API.endpoint(
    "DELETE",
    f"{BASE}/{{task_id}}/xcomEntries/{{xcom_key:path}}",
    permission=Permission.OPERATE,
    status=204,
    errors=(404,),
)
async def delete_xcom_entry(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, xcom_key: str, map_index: MapIndex = -1
) -> None:
    """Delete an XCom."""
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, map_index)
    await call.context.act(call.who.name, delete_xcom, key, xcom_key)


async def _put(call: Call, key: TaskInstanceKey, name: str, value: Any, *, is_new: bool) -> XComResponseNative:
    now = call.context.clock.now()
    info = await call.context.act(call.who.name, put_xcom, key, name, value, is_new=is_new, now=now)
    return XComResponseNative(**_fields(info), value=value)


def _encoded(found: XComValue, deserialize: bool, stringify: bool) -> bytes:
    """Return the JSON of an XCom. Its value may be large: for a thread."""
    value = readable(found.value) if deserialize else found.value
    if stringify and not isinstance(value, str | None):
        value = str(value)
    return msgspec.json.encode(XComResponseNative(**_fields(found.info), value=value))


def _listed(info: XComInfo) -> XComResponse:
    return XComResponse(**_fields(info))


def _fields(info: XComInfo) -> dict[str, Any]:
    return {
        "key": info.key, "timestamp": info.created_at, "logical_date": info.logical_date, "map_index": info.map_index,
        "task_id": info.task_id, "dag_id": info.dag_id, "run_id": info.run_id,
        "dag_display_name": info.dag_display_name, "task_display_name": info.task_display_name,
        "run_after": info.run_after,
    }  # fmt: skip
