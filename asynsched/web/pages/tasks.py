"""`/dags/{dag_id}/runs/{run_id}/tasks/{task_id}`: a task instance: its log, its tries, its XComs."""

from starlette.responses import Response

from asynsched.keys import TaskInstanceKey
from asynsched.queries.dag_versions import read_structure
from asynsched.queries.runs import RunFilter
from asynsched.queries.task_instances import TaskInstanceFilter, count_task_instances, fields_of_try, list_tries
from asynsched.queries.try_logs import newest_try, read_log_end
from asynsched.queries.xcoms import list_readable
from asynsched.web.endpoint import Call
from asynsched.web.pages.logs import Byte, Number
from asynsched.web.pages.page import PAGE, MapIndex, show

SHOWN_BYTES = 32 * 1024
"""Of the end of a log: some screens, so that the view is drawn soon. Scripts fetch more as one scrolls up."""
MOST_TRIES = 200
MOST_XCOMS = 200


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}")
async def task(
    call: Call,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    try_number: Number | None = None,
    until: Byte | None = None,
) -> Response:
    """Show a task instance with the log of a try: the newest, unless another one is asked for.

    `until`: show the part of the log before this byte, instead of its end.
    """
    context, key = call.context, TaskInstanceKey(dag_id, run_id, task_id, map_index)
    found = await context.ask(list_tries, key, at_most=MOST_TRIES)
    newest = await newest_try(context, found.of)
    number = newest if try_number is None else try_number
    part = await read_log_end(context, key, number, n_bytes=SHOWN_BYTES, until=until)
    of_task = TaskInstanceFilter(RunFilter(dag_ids=(dag_id,), run_ids=(run_id,)), task_ids=(task_id,))
    return await show(
        call, "task.html", task=found.of, tries=found.tries, key=key, number=number, part=part,
        numbers=sorted({one.try_number for one in found.tries if one.try_number} | ({newest} if newest else set())),
        rendered=await context.ask(fields_of_try, found.of.id, number),
        xcoms=await list_readable(context, key, at_most=MOST_XCOMS), doc=await _doc(call, dag_id, task_id),
        n_instances=await context.ask(count_task_instances, of_task),
        is_live=number == newest > 0 and found.of.ended_at is None and found.of.state is not None,
    )  # fmt: skip


async def _doc(call: Call, dag_id: str, task_id: str) -> str | None:
    tasks = (await read_structure(call.context, dag_id)).dag.tasks
    return next((task.doc_md for task in tasks if task.task_id == task_id), None)
