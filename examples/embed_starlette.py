"""A web service that has its scheduler inside: one process, one event loop.

The scheduler is started and stopped by the service's lifespan. A request triggers a run of a DAG and waits for its
end; when the client goes away, the run is cancelled. The scheduler keeps its state in `.asynsched` in the working
folder, and runs the DAGs in `dags/` beside this file.

Needs:   pip install starlette uvicorn
Runs:    python examples/embed_starlette.py            (the port is $PORT, else 8000; Ctrl-C stops it)
Prints:  curl -X POST 'localhost:8000/orders?amount=50' answers, when the run has ended:
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
    scheduler = Scheduler(dags=DAGS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)  # returns when the scheduler is ready
        app.state.scheduler = scheduler
        yield
        scheduler.request_stop()  # running tasks are given some seconds to end


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
    return Response(status_code=499)  # the run was cancelled, and nobody reads this


async def run_order(scheduler, amount):
    try:
        run = await scheduler.run("branching", conf={"amount": amount})
    except NotFound as exc:  # the DAG's file is gone, or was never well
        return JSONResponse({"error": str(exc)}, status_code=404)
    except DagError as exc:  # the amount does not fit the DAG's params
        return JSONResponse({"error": str(exc)}, status_code=422)
    except NotServing as exc:  # the service is stopping
        return JSONResponse({"error": str(exc)}, status_code=503)
    return JSONResponse({"state": run.state, "tasks": {task.task_id: task.state for task in run.tasks}})


async def cancel_when_client_goes(request, scope):
    """Cancel a request's work when its client has closed the connection: no ASGI server does that by itself."""
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
    # Requests that still wait for a run after ten seconds of a stop are cancelled, and their runs with them.
    uvicorn.run(app, host="127.0.0.1", port=port, timeout_graceful_shutdown=10)
