"""Readers of events: how long after its change an event reaches them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx
import structlog
from anyio.abc import TaskStatus

from asynsched import Change, Scheduler
from asynsched.settings import Settings
from tests.benchmarks.measuring import Sheet, at_most
from tests.benchmarks.systems import Ours
from tests.benchmarks.workloads.tabs import READY_SECONDS, signed_in

N_TASKS = 20
N_RUNS = 6
N_READERS = 50
CHAIN = """
from asynsched import DAG, chain, task

@task
def nothing(): ...

with DAG("chain", schedule=None):
    chain(*[nothing.override(task_id=f"step_{number}")() for number in range(20)])
"""


def event_latency(system: Ours, sheet: Sheet) -> None:
    """A chain of 20 tasks, with one reader, with 50 that read all events, and with one that reads them by HTTP."""
    system.write("chain.py", CHAIN)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    for n_readers in (1, N_READERS):
        late = anyio.run(_latencies, system, n_readers)
        sheet.spread(f"event at {n_readers} reader{'s' * (n_readers > 1)}", late, None, at_most(0.05))
    sheet.spread("event at a reader by HTTP", _latencies_by_http(system), None, at_most(0.05))


async def _latencies(system: Ours, n_readers: int) -> list[float]:
    """Return the seconds from the statement that made each change to its arrival; the first run is left out."""
    late: list[float] = []

    async def read(*, task_status: TaskStatus[None]) -> None:
        async with scheduler.events(dag_id="chain") as events:
            task_status.started()
            async for event in events:
                if isinstance(event, Change):
                    late.append((datetime.now(UTC) - event.at).total_seconds())

    settings = Settings(home=str(system.site.home), shutdown_grace=1)
    scheduler = Scheduler(dags=system.dags, database=system.database_url, settings=settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.run("chain")
        for _ in range(n_readers):
            await tasks.start(read)
        for _ in range(N_RUNS):
            await scheduler.run("chain")
        scheduler.request_stop()
    assert len(late) >= n_readers * N_RUNS * 2 * N_TASKS
    return late


def _latencies_by_http(system: Ours) -> list[float]:
    """Return the same of a reader as a tab is: of server-sent events, from the page's process of `asynsched up`."""
    system.site.env["ASYNSCHED_WEB__LISTEN"] = "127.0.0.1:0"
    late: list[float] = []
    with system.serving() as client:
        client.wait_for_dags("chain")
        url, cookies = signed_in(system, client)
        client.wait_for_success(client.trigger("chain")[0])
        with (
            httpx.Client(base_url=url, cookies=cookies, timeout=READY_SECONDS) as tab,
            tab.stream("GET", "api/asynsched/v1/events", params={"dag_id": "chain"}) as answer,
        ):
            changes = _changes(answer.raise_for_status())
            for _ in range(N_RUNS):
                client.trigger("chain")
                for change in changes:
                    late.append((datetime.now(UTC) - datetime.fromisoformat(change["at"])).total_seconds())
                    if change["kind"] == "run" and change["state"] == "success":
                        break
    assert len(late) >= N_RUNS * 2 * N_TASKS
    return late


def _changes(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the changes of a stream as they come."""
    for line in stream.iter_lines():
        if line.startswith("data: "):
            change = json.loads(line.removeprefix("data: "))
            if "at" in change:
                yield change
