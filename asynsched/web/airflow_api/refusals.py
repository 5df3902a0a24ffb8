"""The paths of Airflow's API that asynsched does not serve: each answers 501 with a sentence that says why."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asynsched.web.airflow_api.task_instances import BASE
from asynsched.web.endpoint import Find

_DAG, _TASK = "/dags/{dag_id}", f"{BASE}/{{task_id}}"
_ASSET_STATE, _TASK_STATE = "/assets/{asset_id}/state-store", f"{_TASK}/state-store"


OF_ASSETS = "This API does not serve the state of assets: tasks read and write it."
OF_TASKS = "This API does not serve the state of tasks: they read and write it themselves."


class Refusal(NamedTuple):
    """Methods of a path that are not served, and why."""

    methods: tuple[str, ...]
    path: str
    sentence: str


REFUSALS: tuple[Refusal, ...] = (
    Refusal(("GET",), "/auth/login", "asynsched signs users in at /login, and programs at /auth/token."),
    Refusal(("GET",), "/auth/logout", "asynsched signs users out by the button of its page, a POST to /logout."),
    Refusal(("POST",), f"{_DAG}/favorite", "asynsched has no favourite DAGs."),
    Refusal(("POST",), f"{_DAG}/unfavorite", "asynsched has no favourite DAGs."),
    Refusal(("GET", "POST"), "/connections/enqueue-test", "asynsched does not test connections: a task can."),
    Refusal(
        ("GET",),
        f"{_TASK}/{{map_index}}/hitlDetails/tries/{{try_number}}",
        "asynsched keeps the question of a task instance's newest try only.",
    ),
    Refusal(("POST",), "/connections/defaults", "asynsched has no default connections."),
    Refusal(("GET", "DELETE"), _ASSET_STATE, OF_ASSETS),
    Refusal(("GET", "DELETE", "PUT"), f"{_ASSET_STATE}/{{key:path}}", OF_ASSETS),
    Refusal(("GET", "DELETE"), _TASK_STATE, OF_TASKS),
    Refusal(("GET", "DELETE", "PUT", "PATCH"), f"{_TASK_STATE}/{{key:path}}", OF_TASKS),
    Refusal(("POST",), f"{_DAG}/clearPartitions", "Clear the runs of partitions: POST /dags/{dag_id}/clearDagRuns."),
    Refusal(("DELETE",), _TASK, "Task instances go with their runs: DELETE /dags/{dag_id}/dagRuns/{dag_run_id}."),
)
"""Methods of paths that no endpoint serves."""


def routes_of(refusals: Iterable[Refusal], find: Find) -> list[Route]:
    """Return the routes of refusals. Only those who are signed in are told why."""
    return [_route(refusal, find) for refusal in refusals]


def _route(refusal: Refusal, find: Find) -> Route:
    async def refuse(request: Request) -> Response:
        await find(request)
        raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, refusal.sentence)

    return Route(refusal.path, refuse, methods=list(refusal.methods))
