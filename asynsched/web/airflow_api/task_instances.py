"""`/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances`: task instances, of a run or of all (`~`), and their tries."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.convertors import Convertor, register_url_convertor

from asynsched.errors import NotFound
from asynsched.keys import TaskInstanceKey
from asynsched.queries.dag_versions import read_structure
from asynsched.queries.dags import get_dag
from asynsched.queries.paging import Offset
from asynsched.queries.runs import RunFilter, get_run
from asynsched.queries.task_actions import tasks_of_group
from asynsched.queries.task_instances import (
    TaskInstanceFilter,
    TaskInstanceInfo,
    TryInfo,
    count_task_instances,
    fields_of_try,
    get_task_instance,
    list_task_instances,
    list_tries,
)
from asynsched.queries.why import list_dependencies
from asynsched.states import TaskInstanceState
from asynsched.store.rows import in_common
from asynsched.web.airflow_api.api import (
    AIRFLOW_API,
    CursorCollection,
    CursorQuery,
    Limit,
    MapIndex,
    Names,
    Number,
    Numbers,
    OrderBy,
    PageQuery,
    listed_by_cursor,
    paging,
)
from asynsched.web.airflow_api.dag_runs import RUN
from asynsched.web.airflow_api.dag_versions import DagVersionResponse, uuid_of, version_response
from asynsched.web.airflow_api.filters import Changes, Dates, bounds, pattern, states, unless_all
from asynsched.web.endpoint import Call

NAMES = {"start_date": "started_at", "end_date": "ended_at", "duration": "duration_seconds", "operator": "task_id"}
"""Only versions know the classes of tasks: sorted by task_id, the instances of one task stand together."""


class TaskInstanceHistoryResponse(Struct, frozen=True, kw_only=True):
    """A try of a task instance."""

    task_id: str
    dag_id: str
    dag_run_id: str
    map_index: int
    start_date: datetime | None
    end_date: datetime | None
    duration: float | None
    state: TaskInstanceState | None
    try_number: int
    max_tries: int
    task_display_name: str
    dag_display_name: str
    hostname: str | None = ""
    unixname: str | None = None
    pool: str
    pool_slots: int
    queue: str | None
    priority_weight: int | None
    operator: str | None
    operator_name: str | None
    queued_when: datetime | None
    scheduled_when: datetime | None
    pid: int | None = None
    executor: str | None
    executor_config: str = "{}"
    dag_version: DagVersionResponse | None


class TaskInstanceResponse(TaskInstanceHistoryResponse, frozen=True, kw_only=True):
    """A task instance."""

    id: UUID
    logical_date: datetime | None
    run_after: datetime
    note: str | None
    rendered_map_index: str | None
    rendered_fields: dict[str, Any] = {}
    trigger: dict[str, Any] | None = None
    triggerer_job: dict[str, Any] | None = None


class TaskInstanceCollectionResponse(CursorCollection, frozen=True, kw_only=True):
    """A page of task instances."""

    task_instances: tuple[TaskInstanceResponse, ...]


class MappedQuery(Struct, frozen=True, kw_only=True):
    """The filters of task instances."""

    state: Names = ()
    pool: Names = ()
    pool_name_pattern: str | None = None
    pool_name_prefix_pattern: str | None = None
    queue: Names = ()
    queue_name_pattern: str | None = None
    queue_name_prefix_pattern: str | None = None
    executor: Names = ()
    version_number: Numbers = ()
    try_number: Numbers = ()
    operator: Names = ()
    operator_name_pattern: str | None = None
    operator_name_prefix_pattern: str | None = None
    map_index: Numbers = ()
    rendered_map_index_pattern: str | None = None
    rendered_map_index_prefix_pattern: str | None = None


class TaskInstanceQuery(MappedQuery, frozen=True, kw_only=True):
    """The filters of task instances of any tasks."""

    task_id: str | None = None
    task_display_name_pattern: str | None = None
    task_display_name_prefix_pattern: str | None = None
    task_group_id: str | None = None
    dag_id_pattern: str | None = None
    dag_id_prefix_pattern: str | None = None
    run_id_pattern: str | None = None
    run_id_prefix_pattern: str | None = None


class TaskInstancesBatchBody(Dates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters and the page of a list of task instances."""

    dag_ids: Names | None = None
    dag_run_ids: Names | None = None
    task_ids: Names | None = None
    state: tuple[TaskInstanceState | None, ...] | None = None
    pool: Names | None = None
    queue: Names | None = None
    executor: Names | None = None
    page_offset: Offset = 0
    page_limit: Limit = 100
    order_by: str | None = None


class TaskDependencyResponse(Struct, frozen=True):
    """What a task instance waits for."""

    name: str
    reason: str


class TaskDependencyCollectionResponse(Struct, frozen=True):
    """Everything that a task instance waits for."""

    dependencies: tuple[TaskDependencyResponse, ...]


BASE = f"{RUN}/taskInstances"


class _IndexConvertor(Convertor[int]):
    """Takes a map index, also -1, from a path."""

    regex = "-?[0-9]{1,10}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("index", _IndexConvertor())
OF_INDEX = f"{BASE}/{{task_id}}/{{map_index:index}}"
"""Of an instance of a mapped task, or with -1 of another one."""


@AIRFLOW_API.endpoint("GET", BASE, errors=(404,))
async def get_task_instances(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    dates: Dates,
    changes: Changes,
    query: TaskInstanceQuery,
    page: CursorQuery,
    order_by: OrderBy = ("map_index",),
) -> TaskInstanceCollectionResponse:
    """List the task instances of a run, of all runs of a DAG, or of all DAGs (`~`)."""
    await _check_names(call, dag_id, dag_run_id, query.task_group_id)
    run = RunFilter(
        call.who.dag_ids, unless_all(dag_id), unless_all(dag_run_id), version_numbers=query.version_number or None,
        dag_id=pattern(query, "dag_id"), run_id=pattern(query, "run_id"), **dates.of_runs,
    )  # fmt: skip
    wanted = _filter(
        call.context.clock.now(), run, query, dates, changes,
        task_ids=None if query.task_id is None else (query.task_id,),
        display_name=pattern(query, "task_display_name"),
        groups=None if query.task_group_id is None else (query.task_group_id,),
    )  # fmt: skip
    return await _listed(call, wanted, page, order_by)


@AIRFLOW_API.endpoint("POST", f"{BASE}/list", errors=(404,))
async def get_task_instances_batch(
    call: Call,
    dag_id: Literal["~"],  # noqa: ARG001 - the path has it
    dag_run_id: Literal["~"],  # noqa: ARG001 - as above
    body: TaskInstancesBatchBody,
) -> TaskInstanceCollectionResponse:
    """List task instances of several runs."""
    run = RunFilter(call.who.dag_ids, body.dag_ids or None, body.dag_run_ids or None, **body.of_runs)
    wanted = TaskInstanceFilter(
        run, body.task_ids or None, body.state or None, body.pool or None, body.queue or None, body.executor or None,
        **body.of_times(),
    )  # fmt: skip
    page = CursorQuery(limit=body.page_limit, offset=body.page_offset)
    return await _listed(call, wanted, page, (body.order_by,) if body.order_by else ("id",))


async def _listed(
    call: Call, wanted: TaskInstanceFilter, page: CursorQuery, order_by: OrderBy
) -> TaskInstanceCollectionResponse:
    questions, asked = (list_task_instances, count_task_instances), paging(page, order_by, NAMES)
    shown, about = await listed_by_cursor(call, questions, wanted, page, asked, instance_response)
    return TaskInstanceCollectionResponse(task_instances=shown, **about)


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}", errors=(404,))
async def get_one_task_instance(call: Call, dag_id: str, dag_run_id: str, task_id: str) -> TaskInstanceResponse:
    """Show a task instance of a task that is not mapped."""
    return await _whole(call, TaskInstanceKey(dag_id, dag_run_id, task_id))


@AIRFLOW_API.endpoint("GET", OF_INDEX, errors=(404,))
async def get_mapped_task_instance(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex
) -> TaskInstanceResponse:
    """Show an instance of a mapped task."""
    key = TaskInstanceKey(dag_id, dag_run_id, task_id, map_index)
    return await _whole(call, key)


@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/listMapped", errors=(404,))
async def get_mapped_task_instances(
    call: Call,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    dates: Dates,
    changes: Changes,
    query: MappedQuery,
    page: PageQuery,
    order_by: OrderBy = ("map_index",),
) -> TaskInstanceCollectionResponse:
    """List the instances of a mapped task."""
    run = RunFilter(
        dag_ids=(dag_id,), run_ids=(dag_run_id,), version_numbers=query.version_number or None, **dates.of_runs
    )
    wanted = _filter(call.context.clock.now(), run, query, dates, changes, task_ids=(task_id,), is_mapped=True)
    found = await _listed(call, wanted, CursorQuery(limit=page.limit, offset=page.offset), order_by)
    if not found.task_instances:
        await _check_mapped(call, dag_id, dag_run_id, task_id)
    return found


async def _check_names(call: Call, dag_id: str, run_id: str, group_id: str | None) -> None:
    """Raise NotFound for a DAG, a run or a group of a DAG that does not exist."""
    if dag_id == "~":
        return
    number = None
    if run_id == "~":
        await call.context.ask(get_dag, dag_id, active=False)
    else:
        number = (await call.context.ask(get_run, dag_id, run_id)).version_number
    if group_id is not None:
        await tasks_of_known_group(call, dag_id, number, group_id)


async def tasks_of_known_group(call: Call, dag_id: str, version_number: int | None, group_id: str) -> Names:
    """Return the tasks of a group of a version of a DAG. Raises NotFound."""
    dag = (await read_structure(call.context, dag_id, version_number)).dag
    found = tasks_of_group(dag, group_id)
    if not found:
        raise NotFound("task group", group_id, where=f"the DAG {dag_id!r}")
    return found


async def _check_mapped(call: Call, dag_id: str, run_id: str, task_id: str) -> None:
    """Raise NotFound if a run has no such mapped task. One that expanded to nothing has no instances."""
    run = await call.context.ask(get_run, dag_id, run_id)
    dag = (await read_structure(call.context, dag_id, run.version_number)).dag
    if task_id not in {task.task_id for task in dag.tasks if task.map_length is not None or task.group_id is not None}:
        raise NotFound("mapped task", task_id, where=f"the DAG {dag_id!r}")


@AIRFLOW_API.endpoint(
    "GET", f"{OF_INDEX}/dependencies", errors=(404,), name="get_task_instance_dependencies_by_map_index"
)
@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/dependencies", errors=(404,))
async def get_task_instance_dependencies(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex = -1
) -> TaskDependencyCollectionResponse:
    """Show the reasons why a task instance is not queued."""
    found = await list_dependencies(call.context, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    return TaskDependencyCollectionResponse(tuple(TaskDependencyResponse(one.name, one.reason) for one in found))


def _filter(
    now: datetime, run: RunFilter, query: MappedQuery, dates: Dates, changes: Changes, **more: Any
) -> TaskInstanceFilter:
    return TaskInstanceFilter(
        run, states=states(query.state, TaskInstanceState), pools=query.pool or None, queues=query.queue or None,
        executors=query.executor or None, operators=query.operator or None, try_numbers=query.try_number or None,
        map_indexes=query.map_index or None, pool=pattern(query, "pool_name"), queue=pattern(query, "queue_name"),
        operator_name=pattern(query, "operator_name"), rendered_map_index=pattern(query, "rendered_map_index"),
        updated_at=bounds(changes, "updated_at"), **dates.of_times(now), **more,
    )  # fmt: skip


async def _whole(call: Call, key: TaskInstanceKey) -> TaskInstanceResponse:
    """Return a task instance with its rendered fields, which lists leave out. Raises NotFound."""
    info = await call.context.ask(get_task_instance, key)
    fields = await call.context.ask(fields_of_try, info.id, info.try_number)
    return replace(instance_response(info), rendered_fields=fields)


def instance_response(info: TaskInstanceInfo) -> TaskInstanceResponse:
    """Return a task instance in Airflow's form."""
    rendered = info.rendered_map_index
    if rendered is None and info.map_index >= 0:
        rendered = str(info.map_index)
    return TaskInstanceResponse(
        id=uuid_of(info.id), task_id=info.task_id, dag_id=info.dag_id, dag_run_id=info.run_id,
        map_index=info.map_index, logical_date=info.logical_date, run_after=info.run_after, start_date=info.started_at,
        end_date=info.ended_at, duration=info.duration_seconds,
        state=None if info.state is None else TaskInstanceState(info.state), try_number=info.try_number,
        max_tries=info.max_tries, task_display_name=info.task_display_name, dag_display_name=info.dag_display_name,
        pool=info.pool, pool_slots=info.pool_slots, queue=info.queue, priority_weight=info.priority_weight,
        operator=info.operator, operator_name=info.operator_name, queued_when=info.queued_at,
        scheduled_when=info.scheduled_at, executor=info.executor, note=info.note, rendered_map_index=rendered,
        dag_version=None if info.version is None else version_response(info.version),
    )  # fmt: skip


class TaskInstanceHistoryCollectionResponse(Struct, frozen=True):
    """The tries of a task instance."""

    task_instances: tuple[TaskInstanceHistoryResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", f"{OF_INDEX}/tries", errors=(404,), name="get_mapped_task_instance_tries")
@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/tries", errors=(404,))
async def get_task_instance_tries(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex = -1
) -> TaskInstanceHistoryCollectionResponse:
    """List the tries of a task instance."""
    found = await call.context.ask(list_tries, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    shown = tuple(_try_response(found.of, one) for one in found.tries)
    return TaskInstanceHistoryCollectionResponse(shown, len(shown))


@AIRFLOW_API.endpoint(
    "GET", f"{OF_INDEX}/tries/{{task_try_number}}", errors=(404,), name="get_mapped_task_instance_try_details"
)
@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/tries/{{task_try_number}}", errors=(404,))
async def get_task_instance_try_details(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, task_try_number: Number, map_index: MapIndex = -1
) -> TaskInstanceHistoryResponse:
    """Show a try of a task instance."""
    found = await call.context.ask(list_tries, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    for one in found.tries:
        if one.try_number == task_try_number:
            return _try_response(found.of, one)
    raise NotFound("try", str(task_try_number), where=f"the task instance {task_id!r} of the run {dag_run_id!r}")


def _try_response(info: TaskInstanceInfo, one: TryInfo) -> TaskInstanceHistoryResponse:
    """Return a try: the task instance, with the state, the times and the route that it had then."""
    values = asdict(one)
    if one.pool is None:
        values |= {name: getattr(info, name) for name in ("pool", "pool_slots", "queue", "executor", "priority_weight")}
    then = replace(info, **values, duration_seconds=one.duration_seconds)
    return TaskInstanceHistoryResponse(**in_common(TaskInstanceHistoryResponse, instance_response(then)))
