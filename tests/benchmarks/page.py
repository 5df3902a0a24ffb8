"""The page's time on the server and its weight, by view: `python -m tests.benchmarks.page`.

A DAG of 1,000 tasks with 25 runs, on SQLite. The time includes the queries, the rendering and the compression.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
from sqlalchemy import Connection
from starlette.requests import Request

from asynsched.clock import Clock
from asynsched.fernet_keys import keys_of
from asynsched.home import prepare_home
from asynsched.queries.place import Place
from asynsched.serialization.schema import SerializedDag, SerializedTask
from asynsched.settings import Settings
from asynsched.store.dags.dags import add_versions
from asynsched.store.engines.opening import open_database
from asynsched.store.rows import as_new
from asynsched.store.schema import DagColumns, DagRunRow, DagVersionRow, TaskInstanceRow, dag, dag_run, task_instance
from asynsched.web.access import Access, Identity, Permission
from asynsched.web.app import make_app

N_TASKS, N_RUNS, WIDTH = 1000, 25, 20
REPEATS = 7
NOW = datetime(2026, 1, 31, tzinfo=UTC)
STATES = ("success", "success", "success", "failed", "skipped", None)
VIEWS = (
    "/", "/dags", "/dags/large", "/dags/large/graph", "/dags/large/graph?run_id=run-24", "/dags/large/runs/run-24",
    "/dags/large/runs/run-24/gantt", "/runs", "/tasks",
)  # fmt: skip


class _Known(Access):
    async def identify(self, request: Request) -> Identity:
        return Identity(name="benchmark", permission=Permission.ADMINISTER)


def _tasks() -> Iterator[SerializedTask]:
    """Yield layers of tasks, each of which follows three of the layer before."""
    for number in range(N_TASKS):
        layer, place = divmod(number, WIDTH)
        following = [(layer + 1) * WIDTH + (place + step) % WIDTH for step in (0, 1, 5)]
        downstream = tuple(f"task_{other:04}" for other in following if other < N_TASKS)
        yield SerializedTask(f"task_{number:04}", "PythonOperator", downstream_task_ids=downstream)


def _fill(conn: Connection) -> None:
    serialized = msgspec.json.encode(SerializedDag("large", {"kind": "null"}, tasks=tuple(_tasks())))
    version = DagVersionRow("large", 1, "0" * 64, "large.py", serialized, [], NOW)
    row = DagColumns(dag_id="large", file_path="large.py", max_active_runs=16, updated_at=NOW)
    conn.execute(dag.insert(), msgspec.structs.asdict(row))
    version_id = add_versions(conn, [version])["large"]
    conn.execute(dag.update().values(version_id=version_id))
    for number in range(N_RUNS):
        at = NOW + timedelta(hours=number)
        run = DagRunRow(
            dag_id="large", run_id=f"run-{number}", run_type="scheduled", state="success", logical_date=at,
            run_after=at, queued_at=at, started_at=at, ended_at=at + timedelta(minutes=5), version_id=version_id,
        )  # fmt: skip
        run_id = conn.execute(dag_run.insert().returning(dag_run.c.id), as_new(run)).scalar_one()
        rows = [
            TaskInstanceRow(
                dag_run_id=run_id, task_id=f"task_{task:04}", state=STATES[(task + number) % len(STATES)],
                try_number=1, pool="default_pool", queued_at=at, started_at=at + timedelta(seconds=task / 10),
                ended_at=at + timedelta(seconds=task / 10 + 3),
            )
            for task in range(N_TASKS)
        ]  # fmt: skip
        conn.execute(task_instance.insert(), [as_new(task) for task in rows])


async def main() -> None:
    """Print the median time and the weight of each view."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(dags_folder=folder, home=f"{folder}/home", sqlite_synchronous="normal")
        prepare_home(Path(settings.home))
        database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
        await database.write(_fill)
        app = make_app(Place(database, settings.home_path, settings, Clock()), _Known())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for path in VIEWS:
                milliseconds, n_bytes = await _measure(client, path)
                print(f"{path:34} {milliseconds:7.0f} ms {n_bytes / 1000:8.1f} kB gzipped")
        await database.close()


async def _measure(client: httpx.AsyncClient, path: str) -> tuple[float, int]:
    times, n_bytes = [], 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        async with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            answer.raise_for_status()
            n_bytes = sum([len(part) async for part in answer.aiter_raw()])
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times), n_bytes


if __name__ == "__main__":
    asyncio.run(main())
