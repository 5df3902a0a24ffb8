"""The page's time on the server and its weight, by view, and in Chromium: `python -m tests.benchmarks.page`.

A DAG of 1,000 tasks with 25 runs, on SQLite. The time on the server includes the queries, the rendering and the
compression; the time in Chromium all from the request to the second frame after the page is loaded. A click that leads
to another view counts until the view is loaded and the browser has shown its largest part; one that leads to another
list in place, until the browser has shown the list's first row. The log has a million lines.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
from msgspec.structs import replace
from playwright.async_api import Page, async_playwright
from sqlalchemy import Connection
from starlette.requests import Request

from asynsched.clock import Clock
from asynsched.executors.log_paths import log_path
from asynsched.fernet_keys import keys_of
from asynsched.home import LOGS, prepare_home
from asynsched.keys import TaskInstanceKey
from asynsched.queries.context import QueryContext
from asynsched.serialization.schema import SerializedDag, SerializedTask
from asynsched.settings import Settings
from asynsched.store.dags.dags import add_versions
from asynsched.store.engines.opening import open_database
from asynsched.store.rows import as_new
from asynsched.store.schema import DagColumns, DagRunRow, DagVersionRow, TaskInstanceRow, dag, dag_run, task_instance
from asynsched.web.access import Access, Identity, Permission
from asynsched.web.app import make_app
from asynsched.web.loop_server import LoopServer
from asynsched.web.server import open_listener
from tests.benchmarks.measuring import yardstick_seconds
from tests.browser.pages import CHROMIUM, FLAGS, WIDE

N_TASKS, N_RUNS, WIDTH = 1000, 25, 20
REPEATS = 7
NOW = datetime(2026, 1, 31, tzinfo=UTC)
STATES = ("success", "success", "success", "failed", "skipped", None)
VIEWS = (
    "/", "/dags", "/dags/large", "/dags/large/graph", "/dags/large/graph?run_id=run-24", "/dags/large/runs/run-24",
    "/dags/large/runs/run-24/gantt", "/runs", "/tasks",
)  # fmt: skip


N_LINES = 1_000_000
LOGGED = TaskInstanceKey("large", "run-24", "task_0000")
LOG = f"/dags/{LOGGED.dag_id}/runs/{LOGGED.run_id}/tasks/{LOGGED.task_id}/log?try_number=1"
PARTS = {
    "a log of a million lines: the first part": f"{LOG}&start=0", "… the last part": LOG,
    "… a text of its last line is found": LOG.replace("/log?", "/log/find?") + f"&q=line+{N_LINES}+",
}  # fmt: skip
DRAWN = {"the grid, drawn": "/dags/large", "the graph, drawn": "/dags/large/graph?run_id=run-24"}
TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
CLICK = f"""async () => {{
  const began = performance.now();
  document.querySelector(".menu > summary").click();
  await {TWO_FRAMES};
  return performance.now() - began;
}}"""


NOW_IN_PAGE = "performance.timeOrigin + performance.now()"
LEADING = {
    "a click on the tab of the graph": ("/dags/large", "document.querySelector('.tabs a[href$=\"/graph\"]').click();"),
    "a click on a cell, to the task and its log": ("/dags/large", f"""
        const cell = document.querySelector('[data-task="{LOGGED.task_id}"]').parentElement.lastElementChild;
        cell.dispatchEvent(new Event("pointerover", {{ bubbles: true }}));
        cell.querySelector("a").click();"""),
    "a click filters tasks by their state": ("/tasks", """
        document.querySelector("select[name=state]").value = "failed";
        document.querySelector("form[role=search] button").click();"""),
}  # fmt: skip
"""Clicks that lead to another view: where, and the click."""
MARK_ROW = """() => {
  window.isBefore = true;
  document.addEventListener("htmx:before:settle", ({ detail }) => {
    if (detail.task.type === "main") document.querySelector("#found a").setAttribute("elementtiming", "row");
  });
}"""
SHOWN_AT = """() => new Promise(done => {
  const inPlace = window.isBefore, loaded = inPlace ? 0 : performance.getEntriesByType("navigation")[0].loadEventEnd;
  new PerformanceObserver(list => {
    done(performance.timeOrigin + Math.max(loaded, ...list.getEntries().map(shown => shown.startTime)));
  }).observe({ type: inPlace ? "element" : "largest-contentful-paint", buffered: true });
})"""
"""When the browser has shown the largest part of another view or, in the same view, the first row of another list."""


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
        app = make_app(QueryContext(database, settings.home_path, settings, Clock()), _Known())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for path in VIEWS:
                milliseconds, n_bytes = await _measure(client, path)
                print(f"{path:42} {milliseconds:7.0f} ms {n_bytes / 1000:8.1f} kB gzipped")
            _write_log(settings.home_path / LOGS / log_path(LOGGED, 1))
            for name, path in PARTS.items():
                milliseconds, _ = await _measure(client, path)
                print(f"{name:42} {milliseconds:7.0f} ms")
        await _in_chromium(app, settings)
        await database.close()
    print(f"P {1000 * yardstick_seconds():.1f} ms")


def _write_log(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for number in range(1, N_LINES + 1):
            file.write(f"2026-01-31 06:00:00 INFO line {number} of a task that says much of what it does\n")


async def _in_chromium(app: Any, settings: Settings) -> None:
    """Print how long a browser takes to load and draw a view, to answer a click on it, and to follow one."""
    listener = open_listener(replace(settings.web, listen="127.0.0.1:0"))  # its options are those of `asynsched up`
    assert listener is not None
    base = listener.url
    async with async_playwright() as playwright, anyio.create_task_group() as tasks:
        tasks.start_soon(LoopServer(app, settings.web, Clock()).serve_until_cancelled, listener.socket)
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]})
        for name, path in DRAWN.items():
            found = [await _draw_and_click(page, base + path) for _ in range(REPEATS)]
            drawn, clicked = (statistics.median(times) for times in zip(*found, strict=True))
            print(f"{name:42} {drawn:7.0f} ms\n{'… a click opens a menu':42} {clicked:7.0f} ms")
        for name, (path, click) in LEADING.items():
            led = [await _follow(page, base + path, click) for _ in range(REPEATS)]
            print(f"{name:42} {statistics.median(led):7.0f} ms")
        await browser.close()
        tasks.cancel_scope.cancel()


async def _draw_and_click(page: Page, address: str) -> tuple[float, float]:
    """Return the milliseconds until a view is drawn, and from a click to the second frame after it."""
    await page.goto(address)
    drawn = await page.evaluate(f"{TWO_FRAMES}.then(() => performance.now())")
    return drawn, await page.evaluate(CLICK)


async def _follow(page: Page, address: str, click: str) -> float:
    """Return the milliseconds from a click that leads to another view until that is shown."""
    await page.goto(address)
    await page.evaluate(MARK_ROW)
    await page.evaluate(TWO_FRAMES)
    async with page.expect_navigation():
        began = await page.evaluate(f"() => {{ setTimeout(() => {{ {click} }}); return {NOW_IN_PAGE}; }}")
    await page.evaluate(TWO_FRAMES)
    return await page.evaluate(SHOWN_AT) - began


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
