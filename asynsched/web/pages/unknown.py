"""Every other address: a page that says which part of it is unknown."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import Response

from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.dags import get_dag
from asynsched.queries.runs import check_run_exists
from asynsched.queries.task_instances import has_task
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call, check
from asynsched.web.errors import detail
from asynsched.web.pages.page import PAGE


@PAGE.endpoint("GET", "/{path:path}")
async def unknown(call: Call, path: str) -> Response:
    """Say which part of an address is unknown: to a person on a page, and to a program as the APIs do."""
    if "text/html" not in call.request.headers.get("accept", ""):
        return detail(HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND.phrase)
    what = ""
    match path.split("/"):
        case ["dags", dag_id, *more]:
            check(call.who, Permission.VIEW, dag_id)
            what = await _known(call, dag_id, more)
    raise HTTPException(HTTPStatus.NOT_FOUND, f"There is no view {path[:200]!r}{what}.")


async def _known(call: Call, dag_id: str, more: list[str]) -> str:
    """Return the longest part of an address of a DAG that exists. Raises NotFound for the first that does not."""
    context = call.context
    match more:
        case ["runs", run_id, "tasks", task_id, *_]:
            await context.ask(has_task, TaskInstanceKey(dag_id, run_id, task_id))
            return f" of the task {task_id!r}"
        case ["runs", run_id, *_] if run_id:
            await context.ask(check_run_exists, *DagRunKey(dag_id, run_id))
            return f" of the run {run_id!r}"
    await context.ask(get_dag, dag_id, active=False)
    return f" of the DAG {dag_id!r}"
