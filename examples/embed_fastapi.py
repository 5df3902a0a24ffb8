"""A FastAPI service with a scheduler inside: POST starts a run and answers 202 with its key, GET tells its state.

The service's lifespan starts and stops the scheduler, which runs the DAGs in `dags/` beside this file and keeps its
state in `.asynsched` in the working directory. Its page and REST APIs are below `/asynsched`, for the users that
`asynsched users create` makes.

Needs:   pip install fastapi uvicorn
Runs:    python examples/embed_fastapi.py              (the port is $PORT, else 8000; Ctrl-C stops it)
Prints:  curl -i -X POST 'localhost:8000/orders?amount=50' answers at once, and says where to ask:
             HTTP/1.1 202 Accepted
             location: /orders/manual__2026-01-01T08:00:00+00:00
         curl localhost:8000/orders/manual__2026-01-01T08:00:00+00:00
             {"state": "success", "tasks": {"how_large": "success", "check_by_hand": "skipped", ...}}
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from asynsched import Scheduler
from asynsched.errors import AlreadyExists, AsynschedError, DagError, NotFound, NotServing, StoreUnavailable

DAG_ID = "branching"
STATUSES = {NotFound: 404, DagError: 422, AlreadyExists: 409, NotServing: 503, StoreUnavailable: 503}

scheduler = Scheduler(dags=Path(__file__).parent / "dags")
client = scheduler.client()  # may be used while the scheduler serves


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with scheduler:  # ready when the block begins; running tasks get some seconds when it ends
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/asynsched", scheduler.web())


@app.post("/orders", status_code=202)
async def start_order(amount: int, response: Response) -> dict[str, str]:
    key = await client.trigger(DAG_ID, {"amount": amount})
    response.headers["location"] = f"/orders/{key.run_id}"
    return {"order": key.run_id}


@app.get("/orders/{run_id}")
async def show_order(run_id: str) -> dict[str, Any]:
    run = await client.get_run((DAG_ID, run_id))
    tasks = await client.list_tasks(DAG_ID, run_id)
    return {"state": run.state, "tasks": {task.task_id: task.state for task in tasks.items}}


@app.get("/orders/{run_id}/why")
async def explain_order(run_id: str) -> dict[str, str]:
    return {"answer": (await client.why(DAG_ID, run_id)).answer}


@app.exception_handler(AsynschedError)
async def refuse(request: Request, exc: AsynschedError) -> JSONResponse:
    status = next((status for kind, status in STATUSES.items() if isinstance(exc, kind)), 409)
    return JSONResponse({"error": str(exc)}, status)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=10)
