"""`…/taskInstances/{task_id}` and `/clearTaskInstances`: marks, notes and clears task instances."""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, cast

import msgspec
from anyio.to_thread import run_sync
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.dag_versions import read_structure
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging, Range, utc
from asynsched.queries.run_actions import clear_tasks, names_of, preview_clear
from asynsched.queries.run_edits import Clear, preview
from asynsched.queries.runs import RunFilter, get_run
from asynsched.queries.task_actions import Mark, mark_tasks, runs_of_dates
from asynsched.queries.task_instances import (
    TaskInstanceFilter,
    TaskInstanceInfo,
    get_task_instance,
    list_task_instances,
    no_such_instance,
    task_instances_of,
)
from asynsched.scheduling.requests.run_requests import ChangedTask
from asynsched.store.runs.requests import ClearTasks, MarkedTaskState, MarkTasks
from asynsched.web.access import Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, Names, is_meant
from asynsched.web.airflow_api.dag_runs import RUN
from asynsched.web.airflow_api.run_changes import Note
from asynsched.web.airflow_api.task_instances import (
    BASE,
    OF_INDEX,
    TaskInstanceCollectionResponse,
    instance_response,
    tasks_of_known_group,
)
from asynsched.web.endpoint import Call, Invalid

Marker = str | tuple[str, int]
"""A task, or one instance of a mapped one."""
GROUP = f"{RUN}/taskGroupInstances/{{group_id}}"


class PatchTaskInstanceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of task instances; an empty note removes it."""

    new_state: str | UnsetType = UNSET
    note: Note | UnsetType | None = UNSET
    include_upstream: bool = False
    include_downstream: bool = False
    include_future: bool = False
    include_past: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.new_state, str):
            # In either case, as in Airflow.
            force_setattr(self, "new_state", msgspec.convert(self.new_state.lower(), MarkedTaskState))


class ClearTaskInstancesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which task instances are cleared: of one run, or of the runs between two logical dates."""

    dry_run: bool = True
    start_date: datetime | None = None
    end_date: datetime | None = None
    only_failed: bool | UnsetType = UNSET
    only_running: bool = False
    reset_dag_runs: bool = True
    task_ids: Annotated[tuple[Marker, ...], Meta(min_length=1, max_length=MOST_ROWS)] | None = None
    dag_run_id: str | None = None
    include_upstream: bool = False
    include_downstream: bool = False
    include_future: bool = False
    include_past: bool = False
    run_on_latest_version: bool | None = None
    prevent_running_task: bool = False
    note: Note | None = None


@AIRFLOW_API.endpoint(
    "PATCH", OF_INDEX, permission=Permission.OPERATE, errors=(404, 409), name="patch_task_instance_by_map_index"
)
@AIRFLOW_API.endpoint("PATCH", f"{BASE}/{{task_id}}", permission=Permission.OPERATE, errors=(404, 409))
async def patch_task_instance(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    body: PatchTaskInstanceBody,
    map_index: MapIndex | None = None,
    update_mask: Names | None = None,
) -> TaskInstanceCollectionResponse:
    """Mark or note the instances of a task; `map_index` names one of a mapped task."""
    return await patch_instances(call, DagRunKey(dag_id, dag_run_id), (task_id,), map_index, body, update_mask)


@AIRFLOW_API.endpoint(
    "PATCH",
    f"{OF_INDEX}/dry_run",
    permission=Permission.OPERATE,
    errors=(404,),
    name="patch_task_instance_dry_run_by_map_index",
)
@AIRFLOW_API.endpoint("PATCH", f"{BASE}/{{task_id}}/dry_run", permission=Permission.OPERATE, errors=(404,))
async def patch_task_instance_dry_run(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    body: PatchTaskInstanceBody,
    map_index: MapIndex | None = None,
    update_mask: Names | None = None,
) -> TaskInstanceCollectionResponse:
    """Show the task instances that a mark would concern."""
    return await _preview(call, DagRunKey(dag_id, dag_run_id), (task_id,), map_index, body, update_mask)


@AIRFLOW_API.endpoint("PATCH", GROUP, permission=Permission.OPERATE, errors=(404, 409))
async def patch_task_group_instances(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    group_id: str,
    body: PatchTaskInstanceBody,
    update_mask: Names | None = None,
) -> TaskInstanceCollectionResponse:
    """Mark or note the instances of the tasks of a group."""
    key = DagRunKey(dag_id, dag_run_id)
    return await patch_instances(call, key, await _tasks_of(call, key, group_id), None, body, update_mask)


@AIRFLOW_API.endpoint("PATCH", f"{GROUP}/dry_run", permission=Permission.OPERATE, errors=(404,))
async def patch_task_group_instances_dry_run(
    call: Call, dag_id: str, dag_run_id: str, group_id: str, body: PatchTaskInstanceBody
) -> TaskInstanceCollectionResponse:
    """Show the task instances that a mark of a group would concern."""
    key = DagRunKey(dag_id, dag_run_id)
    return await _preview(call, key, await _tasks_of(call, key, group_id), None, body, None)


@AIRFLOW_API.endpoint("POST", "/dags/{dag_id}/clearTaskInstances", permission=Permission.OPERATE, errors=(404, 409))
async def post_clear_task_instances(
    call: Call, dag_id: str, body: ClearTaskInstancesBody
) -> TaskInstanceCollectionResponse:
    """Run task instances again, of a run or of several; with `dry_run`, which is the default, only show them."""
    _check(body)
    found: list[TaskInstanceInfo] = []
    total = 0
    for key in await _runs_to_clear(call, dag_id, body):
        changed: list[Sequence[ChangedTask]] = []
        for wanted in _requests(body):
            if body.dry_run:
                changed.append(await call.context.ask(preview_clear, key, wanted.request, now=call.context.clock.now()))
            else:
                changed.append((await clear_tasks(call.context, call.who.name, key, wanted)).instances)
        names = await run_sync(names_of, chain.from_iterable(changed))
        total += len(names)
        found += await call.context.ask(task_instances_of, *key, names[: MOST_ROWS - len(found)])
    return _collection(found, total)


def _check(body: ClearTaskInstancesBody) -> None:
    """Raise Invalid for a body that contradicts itself."""
    if body.only_failed is True and body.only_running:
        raise Invalid(("body",), "Give only_failed or only_running, not both.")
    if body.start_date and body.end_date and utc(body.start_date) > utc(body.end_date):
        raise Invalid(("body",), "end_date is before start_date.")
    if body.dag_run_id is not None and (body.start_date or body.end_date):
        raise Invalid(("body",), "Give dag_run_id, or start_date and end_date, not both.")
    if not body.reset_dag_runs:
        raise BadRequest("reset_dag_runs cannot be false: tasks that are cleared run again, and so does their run.")


def _requests(body: ClearTaskInstancesBody) -> list[Clear]:
    """Return the requests that a body stands for: one for all whole tasks, and one for each instance that it names."""
    only_failed = True if body.only_failed is UNSET else body.only_failed
    whole = tuple(one for one in body.task_ids or () if isinstance(one, str))
    of_instances = [one for one in body.task_ids or () if not isinstance(one, str) and one[0] not in whole]
    chosen: list[tuple[Names, int | None]] = [((task_id,), index) for task_id, index in of_instances]
    if whole or not chosen:
        chosen.insert(0, (whole, None))
    return [
        Clear(
            request=ClearTasks(
                task_ids, body.include_upstream, body.include_downstream, only_failed, body.only_running,
                map_index, bool(body.run_on_latest_version),
            ),
            note=body.note, prevent_running=body.prevent_running_task,
        )
        for task_ids, map_index in chosen
    ]  # fmt: skip


async def _runs_to_clear(call: Call, dag_id: str, body: ClearTaskInstancesBody) -> Sequence[DagRunKey]:
    if body.dag_run_id is None:
        await read_structure(call.context, dag_id)
        start, end = body.start_date, body.end_date
        dates = Range(gte=None if body.include_past else start, lte=None if body.include_future else end)
        return await call.context.ask(runs_of_dates, dag_id, dates)
    return await _runs(call, DagRunKey(dag_id, body.dag_run_id), past=body.include_past, future=body.include_future)


async def _runs(call: Call, key: DagRunKey, *, past: bool, future: bool) -> Sequence[DagRunKey]:
    """Return a run, with those of earlier or later logical dates if they are wanted. Raises NotFound and BadRequest."""
    run = await call.context.ask(get_run, *key)
    if not (past or future):
        return [key]
    if run.logical_date is None:
        raise BadRequest("A run without a logical date has neither past nor future.")
    dates = Range(gte=None if past else run.logical_date, lte=None if future else run.logical_date)
    return await call.context.ask(runs_of_dates, key.dag_id, dates)


async def _tasks_of(call: Call, key: DagRunKey, group_id: str) -> Names:
    run = await call.context.ask(get_run, *key)
    return await tasks_of_known_group(call, key.dag_id, run.version_number, group_id)


async def patch_instances(
    call: Call,
    key: DagRunKey,
    task_ids: Names,
    map_index: int | None,
    body: PatchTaskInstanceBody,
    update_mask: Names | None,
) -> TaskInstanceCollectionResponse:
    """Mark and note the instances of tasks of a run; `map_index` names one. Raises NotFound and AsynschedError."""
    named = await _named(call, key, task_ids, map_index)
    request = _mark(task_ids, map_index, body, update_mask)
    if request is not None:
        marked = 0
        for run in await _runs(call, key, past=body.include_past, future=body.include_future):
            marked += len((await mark_tasks(call.context, call.who.name, run, Mark(request))).instances)
        if not marked:
            raise AsynschedError(f"The task {task_ids[0]!r} is {request.state} already.")
    if isinstance(body.note, str) and is_meant("note", update_mask):
        noted = tuple((one.task_id, one.map_index) for one in named)
        await mark_tasks(call.context, call.who.name, key, Mark(noted=noted, note=body.note))
    return _collection(await _named(call, key, task_ids, map_index))


async def _preview(
    call: Call,
    key: DagRunKey,
    task_ids: Names,
    map_index: int | None,
    body: PatchTaskInstanceBody,
    update_mask: Names | None,
) -> TaskInstanceCollectionResponse:
    named = await _named(call, key, task_ids, map_index)
    request = _mark(task_ids, map_index, body, update_mask)
    if request is None:
        return _collection(named)
    found: list[TaskInstanceInfo] = []
    total = 0
    for run in await _runs(call, key, past=body.include_past, future=body.include_future):
        changed = await call.context.ask(preview, run, request, now=call.context.clock.now())
        names = names_of(changed[: MOST_ROWS - len(found)])
        found += await call.context.ask(task_instances_of, *run, names)
        total += len(changed)
    return _collection(found, total)


async def _named(call: Call, key: DagRunKey, task_ids: Names, map_index: int | None) -> Sequence[TaskInstanceInfo]:
    """Return the instances of tasks of a run. Raises NotFound if there are none."""
    if map_index is not None:
        return [await call.context.ask(get_task_instance, TaskInstanceKey(*key, task_ids[0], map_index))]
    run = RunFilter(dag_ids=(key.dag_id,), run_ids=(key.run_id,))
    wanted = TaskInstanceFilter(run, task_ids)
    page = await call.context.ask(
        list_task_instances, wanted, Paging(limit=MOST_ROWS, order_by=("task_id", "map_index"))
    )
    if not page.items:
        raise await call.context.ask(no_such_instance, TaskInstanceKey(*key, task_ids[0]))
    return page.items


def _mark(
    task_ids: Names, map_index: int | None, body: PatchTaskInstanceBody, update_mask: Names | None
) -> MarkTasks | None:
    if not isinstance(body.new_state, str) or not is_meant("new_state", update_mask):
        return None
    index = map_index if map_index is not None and map_index >= 0 else None
    return MarkTasks(
        task_ids, cast("MarkedTaskState", body.new_state), body.include_upstream, body.include_downstream, index
    )


def _collection(infos: Sequence[TaskInstanceInfo], total: int | None = None) -> TaskInstanceCollectionResponse:
    return TaskInstanceCollectionResponse(
        task_instances=tuple(map(instance_response, infos)), total_entries=len(infos) if total is None else total
    )
