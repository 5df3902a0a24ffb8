"""`…/taskInstances/{task_id}/tries`: the tries of a task instance."""

from msgspec import Struct
from msgspec.structs import replace

from asynsched.errors import NotFound
from asynsched.keys import TaskInstanceKey
from asynsched.queries.task_instances import TaskInstanceInfo, TryInfo, list_tries
from asynsched.web.airflow_api.api import AIRFLOW_API, GONE, MapIndex, Number
from asynsched.web.airflow_api.task_instances import BASE, OF_INDEX, TaskInstanceHistoryResponse, instance_response
from asynsched.web.endpoint import Call


class TaskInstanceHistoryCollectionResponse(Struct, frozen=True):
    """The tries of a task instance."""

    task_instances: tuple[TaskInstanceHistoryResponse, ...]
    total_entries: int


@AIRFLOW_API.endpoint("GET", f"{OF_INDEX}/tries", errors=GONE, name="get_mapped_task_instance_tries")
@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/tries", errors=GONE)
async def get_task_instance_tries(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex = -1
) -> TaskInstanceHistoryCollectionResponse:
    """List the tries of a task instance."""
    found = await call.place.ask(list_tries, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    shown = tuple(_response(found.of, one) for one in found.tries)
    return TaskInstanceHistoryCollectionResponse(shown, len(shown))


@AIRFLOW_API.endpoint(
    "GET", f"{OF_INDEX}/tries/{{task_try_number}}", errors=GONE, name="get_mapped_task_instance_try_details"
)
@AIRFLOW_API.endpoint("GET", f"{BASE}/{{task_id}}/tries/{{task_try_number}}", errors=GONE)
async def get_task_instance_try_details(
    call: Call, dag_id: str, dag_run_id: str, task_id: str, task_try_number: Number, map_index: MapIndex = -1
) -> TaskInstanceHistoryResponse:
    """Show a try of a task instance."""
    found = await call.place.ask(list_tries, TaskInstanceKey(dag_id, dag_run_id, task_id, map_index))
    for one in found.tries:
        if one.try_number == task_try_number:
            return _response(found.of, one)
    raise NotFound("try", str(task_try_number), where=f"the task instance {task_id!r} of the run {dag_run_id!r}")


def _response(info: TaskInstanceInfo, one: TryInfo) -> TaskInstanceHistoryResponse:
    """Return a try: the task instance, with the state and the times that it had then."""
    then = {name: getattr(one, name) for name in TryInfo.__struct_fields__} | {"duration_seconds": one.duration_seconds}
    shown = instance_response(replace(info, **then))
    names = TaskInstanceHistoryResponse.__struct_fields__
    return TaskInstanceHistoryResponse(**{name: getattr(shown, name) for name in names})
