"""A Litestar service with a scheduler inside: POST starts a run and answers 202 with its key, GET tells its state.

The service's lifespan starts and stops the scheduler, which runs the DAGs in `dags/` beside this file and keeps its
state in `.asynsched` in the working directory.

Needs:   pip install litestar uvicorn
Runs:    python examples/embed_litestar.py             (the port is $PORT, else 8000; Ctrl-C stops it)
Prints:  curl -X POST 'localhost:8000/orders?amount=50' answers at once, with the key:
             {"order": "manual__2026-01-01T08:00:00+00:00"}
         curl localhost:8000/orders/manual__2026-01-01T08:00:00+00:00
             {"state": "success", "tasks": {"how_large": "success", "check_by_hand": "skipped", ...}}
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from litestar import Litestar, Request, Response, get, post

from asynsched import Scheduler
from asynsched.errors import AlreadyExists, AsynschedError, DagError, NotFound, NotServing, StoreUnavailable

DAG_ID = "branching"
STATUSES = {NotFound: 404, DagError: 422, AlreadyExists: 409, NotServing: 503, StoreUnavailable: 503}

scheduler = Scheduler(dags=Path(__file__).parent / "dags")
client = scheduler.client()  # may be used while the scheduler serves


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    async with scheduler:  # ready when the block begins; running tasks get some seconds when it ends
        yield


@post("/orders", status_code=202)
async def start_order(amount: int) -> dict[str, str]:
    key = await client.trigger(DAG_ID, {"amount": amount})
    return {"order": key.run_id}


@get("/orders/{run_id:str}")
async def show_order(run_id: str) -> dict[str, Any]:
    run = await client.get_run((DAG_ID, run_id))
    tasks = await client.list_tasks(DAG_ID, run_id)
    return {"state": run.state, "tasks": {task.task_id: task.state for task in tasks.items}}


def refuse(request: Request[Any, Any, Any], exc: AsynschedError) -> Response[dict[str, str]]:
    status = next((status for kind, status in STATUSES.items() if isinstance(exc, kind)), 409)
    return Response({"error": str(exc)}, status_code=status)


app = Litestar([start_order, show_order], lifespan=[lifespan], exception_handlers={AsynschedError: refuse})

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=10)
