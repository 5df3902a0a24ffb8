"""`/dags/{dag_id}/tasks`: the tasks of a DAG's newest version."""

from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct, field
from starlette.responses import Response

from asynsched.errors import NotFound
from asynsched.queries.dag_versions import read_structure
from asynsched.queries.paging import BadRequest
from asynsched.serialization.schema import SerializedDag, SerializedTask
from asynsched.store.rows import near_names
from asynsched.web.airflow_api.api import AIRFLOW_API
from asynsched.web.airflow_api.dags import params_of
from asynsched.web.endpoint import JSON, Call


class TimeDelta(Struct, frozen=True):
    """A length of time."""

    days: int
    seconds: int
    microseconds: int
    kind: str = field(default="TimeDelta", name="__type")


class TaskResponse(Struct, frozen=True, kw_only=True):
    """A task."""

    task_id: str | None
    task_display_name: str | None
    owner: str | None
    start_date: datetime | None
    end_date: datetime | None
    trigger_rule: str | None
    depends_on_past: bool
    wait_for_downstream: bool
    retries: float | None
    queue: str | None
    pool: str | None
    pool_slots: float | None
    execution_timeout: TimeDelta | None
    retry_delay: TimeDelta | None
    retry_exponential_backoff: float
    priority_weight: float | None
    weight_rule: str | None
    ui_color: str | None = "#fff"
    ui_fgcolor: str | None = "#000"
    template_fields: tuple[str, ...] | None
    downstream_task_ids: tuple[str, ...] | None
    doc_md: str | None
    operator_name: str | None
    params: dict[str, Any] | None
    class_ref: dict[str, str | None] | None
    is_mapped: bool | None
    extra_links: tuple[str, ...]


class TaskCollectionResponse(Struct, frozen=True):
    """The tasks of a DAG."""

    tasks: tuple[TaskResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/tasks", errors=(404,))
async def get_tasks(call: Call, dag_id: str, order_by: str = "task_id") -> TaskCollectionResponse | Response:
    """List the tasks of a DAG."""
    name = order_by.removeprefix("-")
    if name not in TaskResponse.__struct_fields__:
        raise BadRequest(f"Tasks cannot be sorted by {name!r}.")
    dag = (await read_structure(call.context, dag_id)).dag
    return Response(await run_sync(_encoded, dag, name, order_by.startswith("-")), media_type=JSON)


def _encoded(dag: SerializedDag, name: str, is_reversed: bool) -> bytes:
    """Return the JSON of the tasks of a DAG. It may have thousands: for a thread. Raises BadRequest."""
    shown = [task_response(dag, task) for task in dag.tasks]
    try:
        shown.sort(key=attrgetter(name), reverse=is_reversed)
    except TypeError as exc:
        raise BadRequest(f"Tasks cannot be sorted by {name!r}: not every task has one.") from exc
    return msgspec.json.encode(TaskCollectionResponse(tuple(shown), len(shown)))


@AIRFLOW_API.endpoint("GET", "/dags/{dag_id}/tasks/{task_id}", errors=(404,))
async def get_task(call: Call, dag_id: str, task_id: str) -> TaskResponse:
    """Show a task of a DAG."""
    dag = (await read_structure(call.context, dag_id)).dag
    for task in dag.tasks:
        if task.task_id == task_id:
            return task_response(dag, task)
    near = near_names(task_id, [task.task_id for task in dag.tasks])
    raise NotFound("task", task_id, near, where=f"the DAG {dag_id!r}")


def task_response(dag: SerializedDag, task: SerializedTask) -> TaskResponse:
    """Return a task in Airflow's form."""
    return TaskResponse(
        task_id=task.task_id, task_display_name=task.display_name or task.task_id, owner=task.owner,
        start_date=task.start_date or dag.start_date, end_date=task.end_date or dag.end_date,
        trigger_rule=task.trigger_rule, depends_on_past=task.depends_on_past,
        wait_for_downstream=task.wait_for_downstream, retries=task.retries, queue=task.queue, pool=task.pool,
        pool_slots=task.pool_slots, execution_timeout=_length(task.execution_timeout),
        retry_delay=_length(task.retry_delay), retry_exponential_backoff=task.retry_exponential_backoff,
        priority_weight=task.priority_weight, weight_rule=task.weight_rule, template_fields=task.template_fields,
        downstream_task_ids=tuple(sorted(task.downstream_task_ids)), doc_md=task.doc_md,
        operator_name=task.operator_name or task.task_type,
        params=params_of(dag), class_ref={"module_path": None, "class_name": task.task_type},
        is_mapped=task.map_length is not None, extra_links=tuple(task.extra_links),
    )  # fmt: skip


def _length(seconds: float | None) -> TimeDelta | None:
    if seconds is None:
        return None
    length = timedelta(seconds=seconds)
    return TimeDelta(length.days, length.seconds, length.microseconds)
