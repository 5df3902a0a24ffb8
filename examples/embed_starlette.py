"""A web service with a scheduler inside: one process, one event loop.

The service's lifespan starts and stops the scheduler. A request triggers a run of a DAG and waits for its end; when the
client disconnects, the run is cancelled. The scheduler runs the DAGs in `dags/` beside this file, and keeps its state
in `.asynsched` in the working directory.

Needs:   pip install starlette uvicorn
Runs:    python examples/embed_starlette.py            (the port is $PORT, else 8000; Ctrl-C stops it)
Prints:  curl -X POST 'localhost:8000/orders?amount=50' answers when the run has ended:
             {"state": "success", "tasks": {"how_large": "success", "check_by_hand": "skipped", ...}}
"""

import os
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from asynsched import Scheduler
from asynsched.errors import DagError, NotFound, NotServing

DAGS = Path(__file__).parent / "dags"


@asynccontextmanager
async def lifespan(app):
    async with Scheduler(dags=DAGS) as scheduler:  # ready when the block begins
        app.state.scheduler = scheduler
        yield  # at the end of the block, running tasks get some seconds to end


async def order(request):
    try:
        amount = int(request.query_params["amount"])
    except (KeyError, ValueError):
        return JSONResponse({"error": "say ?amount=NUMBER"}, status_code=400)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_when_client_goes, request, tasks.cancel_scope)
        response = await run_order(request.app.state.scheduler, amount)
        tasks.cancel_scope.cancel()
        return response
    return Response(status_code=499)  # the run was cancelled, and the client no longer reads the response


async def run_order(scheduler, amount):
    try:
        run = await scheduler.run("branching", conf={"amount": amount})
    except NotFound as exc:  # the DAG's file is gone, or never parsed
        return JSONResponse({"error": str(exc)}, status_code=404)
    except DagError as exc:  # the amount does not fit the DAG's params
        return JSONResponse({"error": str(exc)}, status_code=422)
    except NotServing as exc:  # the service is stopping
        return JSONResponse({"error": str(exc)}, status_code=503)
    return JSONResponse({"state": run.state, "tasks": {task.task_id: task.state for task in run.tasks}})


async def cancel_when_client_goes(request, scope):
    """Cancel a request's work when its client closes the connection: ASGI servers leave this to the application."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def health(request):
    return JSONResponse({"serving": request.app.state.scheduler.started.is_set()})


app = Starlette(
    routes=[Route("/orders", order, methods=["POST"]), Route("/health", health)],
    lifespan=lifespan,
)

if __name__ == "__main__":
    port = int(os.environ.get("PORT", "8000"))
    # Ten seconds after a stop, uvicorn cancels the requests that still wait, which cancels their runs.
    uvicorn.run(app, host="127.0.0.1", port=port, timeout_graceful_shutdown=10)
