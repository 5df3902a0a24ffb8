"""The page without a browser: every view answers, on an empty and on a filled database, to whom it may."""

import gzip
import inspect
import re
import socket
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo

import httpx
import pytest
import sqlalchemy as sa
from msgspec.structs import asdict, replace
from sqlalchemy import Connection
from starlette.requests import Request

from asynsched.client.client import LocalClient
from asynsched.client.operation import IN_PATH
from asynsched.clock import Clock
from asynsched.errors import NotServing
from asynsched.fernet_keys import keys_of
from asynsched.health import Health, LoopHealth
from asynsched.home import prepare_home
from asynsched.queries import recent, why
from asynsched.queries.context import QueryContext
from asynsched.queries.dag_versions import Structure, read_structure
from asynsched.queries.users import Issuer, create_token_of
from asynsched.serialization.schema import SerializedRoute
from asynsched.settings import CelerySettings, Settings, WebSettings
from asynsched.store.engines.opening import open_database
from asynsched.store.rows import as_new, as_struct
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.pools import set_pool
from asynsched.store.schedulers import register_scheduler
from asynsched.store.schema import (
    DagRunRow,
    DagVersionRow,
    ImportErrorRow,
    dag,
    dag_run,
    dag_version,
    import_error,
    source,
    task_instance,
)
from asynsched.web.access import Identity, Permission
from asynsched.web.app import make_app
from asynsched.web.pages import PAGE, operation
from asynsched.web.pages import dag as dag_pages
from asynsched.web.pages import secrets as secret_pages
from asynsched.web.pages import tokens as token_pages
from asynsched.web.pages import users as user_pages
from asynsched.web.pages.page import redirect
from asynsched.web.pages.showing import Showing
from tests.web.conftest import Known, Site
from tests.web.filling import RUN_ID

MOST_BYTES = 100_000
"""Of the first load, as a browser receives it."""
EVERYWHERE = [
    "/", "/dags", "/runs", "/tasks", "/assets", "/assets/graph", "/backfills", "/answers", "/pools", "/variables",
    "/connections", "/errors", "/errors?warnings=yes", "/schedulers", "/audit", "/preferences", "/tokens",
    "/palette?q=re", "/late", "/users", "/plugins", "/providers", "/config",
]  # fmt: skip
_RUN = f"/dags/report/runs/{RUN_ID}"
_TASK = f"{_RUN}/tasks/extract"
FILLED = [
    *(f"/dags/report{view}" for view in ("", "/graph", f"/graph?run_id={RUN_ID}", "/gantt", "/calendar", "/upcoming",
                                         "/code", "/details", "/trigger", "/why")),
    *(f"{_RUN}{view}" for view in ("", "/gantt", "/details", "/why", "?state=success", "/act?action=clear",
                                   "/act?action=mark&state=failed", "/note")),
    *(f"{_TASK}{view}" for view in ("", "/why", "/log?try_number=1", "/log/find?try_number=1&q=read")),
    f"{_RUN}/tasks/double?map_index=1",
    f"/dags/fails/runs/{RUN_ID}/tasks/broken?try_number=1",
    "/dags?q=REP&show_only=active&tag=sales&tag=numbers&owner=ada&state=success", "/act/dags?do=pause&dag=report",
    "/runs?state=failed&dag=fail&since=2026-01-01",
    "/assets/graph?dag=report", "/assets/graph?asset=orders", "/preview?where=main", "/act/runs?do=delete&run=1",
    "/dags/report/graph?groups=folded&but=sums", "/dags/report?groups=folded",
    "/tasks?state=none&pool=default_pool", "/audit?action=dag.trigger",
    "/backfills?dag_id=daily", f"/audit?dag=report&run={RUN_ID}", f"{_RUN}/note?task_id=double&map_index=1",
]  # fmt: skip


async def test_every_view_answers_on_an_empty_database(tmp_path: Path) -> None:
    settings = Settings(dags_folder=str(tmp_path), home=str(tmp_path / "home"), sqlite_synchronous="normal")
    prepare_home(settings.home_path)
    database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
    app = make_app(QueryContext(database, settings.home_path, settings, Clock()), Known())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
        answers = {path: (await client.get(path)).status_code for path in EVERYWHERE}
        dags, users = (await client.get("/dags")).text, (await client.get("/users")).text
    await database.close()
    assert answers == dict.fromkeys(EVERYWHERE, 200)
    assert "Save a DAG file in the DAG folder" in dags
    assert "There are no users yet." in users


async def test_every_view_answers_on_a_filled_database(site: Site) -> None:
    answers = {path: (await site.client.get(path)).status_code for path in (*EVERYWHERE, *FILLED)}
    assert answers == dict.fromkeys(answers, 200)


TITLES = {
    "/dags/report": "report", "/dags/report/graph": "Graph of report", "/dags/report/trigger": "Trigger of report",
    _RUN: f"{RUN_ID} of report", f"{_RUN}/gantt": f"Gantt of {RUN_ID} of report",
    _TASK: f"extract of {RUN_ID} of report", f"{_TASK}/why": f"Why extract of {RUN_ID} of report",
}  # fmt: skip


async def test_the_tabs_of_a_browser_can_be_told_apart_by_their_titles(site: Site) -> None:
    answers = {path: (await site.client.get(path)).text for path in TITLES}
    assert {path: re.findall("<title>(.*) · asynsched</title>", text)[0] for path, text in answers.items()} == TITLES
    assert "</a> extract (Read the numbers)</h1>" in answers[_TASK]


async def test_a_run_that_has_failed_leads_from_home_to_why_and_to_the_logs(site: Site) -> None:
    run = f"/dags/fails/runs/{RUN_ID}"
    path, home = f"{run}/why", (await site.client.get("/")).text
    assert f'href="{path}" aria-label="Why has {RUN_ID} failed?"' in home
    assert f'href="{run}?state=failed"' in (await site.client.get(path)).text
    assert f'href="{run}/tasks/broken"' in (await site.client.get(run, params={"state": "failed"})).text
    assert f'<a href="{run}/tasks/broken">broken: failed</a>' in (await site.client.get(path)).text
    assert "?state=failed" not in (await site.client.get(f"{_RUN}/why")).text


async def test_sentences_of_why_have_their_times_in_the_chosen_zone(site: Site) -> None:
    path, moments = f"/dags/fails/runs/{RUN_ID}/tasks/broken/why", []
    for zone in ("UTC", "Asia/Kolkata"):
        site.client.cookies.set("asynsched_zone", zone)
        [moment] = re.findall(r"ended as failed at ([-\d]+ [:\d]+)\.", (await site.client.get(path)).text)
        moments.append(datetime.fromisoformat(moment))
    assert moments[1] - moments[0] == timedelta(hours=5, minutes=30)


async def test_a_paused_dag_says_so_once(site: Site) -> None:
    paused = '<span class="tag">paused</span>'
    assert paused not in (await site.client.get("/dags/report")).text
    await site.client.post("/dags/report/pause", data={"paused": "yes"})
    for permission in (Permission.OPERATE, Permission.VIEW):
        site.access.who = Identity(name="ada", permission=permission)
        assert (await site.client.get("/dags/report")).text.count(paused) == 1


UNKNOWN = {
    "/dags/repot": "Did you mean report", "/dags/report/runs/none": "no run &#39;none&#39; in the DAG &#39;report&#39;",
    f"{_RUN}/tasks/none": "no task instance &#39;none&#39; in the run", "/dags/report/code?version=99": "99",
    "/nowhere": "no view &#39;nowhere&#39;", "/dags/repot/graf": "Did you mean report",
    "/dags/report/graf": "no view &#39;dags/report/graf&#39; of the DAG &#39;report&#39;",
    "/dags/report/runs/none/gant": "no run &#39;none&#39;", f"{_RUN}/gant": "of the run &#39;first&#39;",
    f"{_TASK}/lag": "of the task &#39;extract&#39;", f"{_RUN}/tasks/none/log/x": "no task instance &#39;none&#39;",
}  # fmt: skip
"""What the page of an unknown address names."""


@pytest.mark.parametrize("path", UNKNOWN)
async def test_the_page_of_an_unknown_address_names_what_is_unknown(site: Site, path: str) -> None:
    answer = await site.client.get(path, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert UNKNOWN[path] in answer.text


STRANGE_TEXTS = ["\0", "1e99", b"\xed\xa0\x80"]
STRANGE = [
    "1e99", "NaN", "-1", "-9223372036854775809", "9" * 30, "Infinity", "0x10", "\0", "true", "٣", "",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", b"\xed\xa0\x80",
]  # fmt: skip
NEEDED = {"try_number": "1", "q": "a", "start": "0", "action": "clear"}


def addresses_with_strange_values() -> list[str]:
    """Return the address of each view with each strange value in each part of its path and its query."""
    known, found = {"dag_id": "report", "run_id": RUN_ID, "task_id": "extract", "name": "ada"}, []
    for endpoint in PAGE.endpoints:
        if endpoint.method == "GET" and not endpoint.path.endswith(("/follow", "{name}")):
            needed = [one.name for one in endpoint.parameters if one.default is inspect.Parameter.empty]
            query = {name: value for name, value in NEEDED.items() if name in needed}
            for one in endpoint.parameters:
                for value in STRANGE_TEXTS if one.kind is str else STRANGE:
                    given = {**known, "path": "x", **({one.name: value} if one.is_in_path and value else {})}
                    path = IN_PATH.sub(lambda found, given=given: quote(given[found[1]], safe=""), endpoint.path)
                    found.append(f"{path}?{urlencode({**query, **({} if one.is_in_path else {one.name: value})})}")
    return found


async def test_no_strange_value_in_an_address_is_an_error_of_the_server(site: Site) -> None:
    answers = {}
    for path in addresses_with_strange_values():
        answers[path] = (await site.client.get(path)).status_code
    assert {path: status for path, status in answers.items() if status not in (200, 400, 404, 409, 422)} == {}
    assert (await site.client.get("/dags?after=nonsense")).status_code == 400
    assert (await site.client.get("/dags/report?runs=many")).status_code == 422
    assert (await site.client.get("/dags/report?before=2026-01-01")).status_code == 200
    assert (await site.client.get("/dags?after=W251bGwsbnVsbF0")).status_code == 200  # [null, null]: after every row
    assert (await site.client.get(f"/preview/effect?where={'a' * 300}")).status_code == 409
    for last, number, status in (("9" * 5000, 1, 200), ("", 99, 404)):
        path = f"{_TASK}/log/follow?start=0&try_number={number}"
        assert (await site.client.get(path, headers={"last-event-id": last})).status_code == status
    for data in ({f"n{n}": "1" for n in range(10_001)}, {"do": "pause", "dag": "report", "back": "a=1&" * 10_001}):
        assert (await site.client.post("/act/dags", data=data)).status_code == 422
    far = await site.client.get(f"{_TASK}?map_index={'9' * 30}")
    assert "query map_index: Expected `int` &lt;= 2147483647" in far.text
    for fields in ({"slots": "9" * 30}, {"slots": "٣"}, {"slots": "--1"}):
        refused = await site.client.post("/pools", data={"name": "new", **fields})
        assert refused.status_code == 400
        assert "must be a number from -1 to" in refused.text


async def test_the_first_instance_of_a_mapped_task_has_addresses_of_its_own(site: Site) -> None:
    first = f"{_RUN}/tasks/double?map_index=0"
    for view in ("/tasks?dag=report&task=double", f"{_RUN}?task_id=double"):
        assert first in (await site.client.get(view)).text
    addresses = re.findall(r'(?:href|hx-get|data-log|data-follow)="([^"]+)"', (await site.client.get(first)).text)
    of_instance = [one for one in addresses if "/tasks/double" in one or re.search(r"/(act|note)\?.*task_id=", one)]
    assert len(of_instance) > 9
    assert [one for one in of_instance if "map_index=0" not in one] == []


async def test_fields_of_a_form_that_are_left_empty_count_as_not_sent(site: Site) -> None:
    for view in ("/dags/report/code?version=1&against=", "/dags/daily/upcoming?hours=", "/preview?where=&hours="):
        assert (await site.client.get(view)).status_code == 200
    assert (await site.client.get("/dags/report/code?version=one")).status_code == 422


async def test_the_grid_leads_to_all_runs_of_one_instant_and_the_graph_to_each(site: Site) -> None:
    def trigger_together(conn: Connection) -> None:
        for n in range(12):
            run = DagRunRow(
                dag_id="report", run_id=f"at-once-{n:02}", run_type="manual", state="queued", conf={},
                run_after=datetime(2030, 1, 1, tzinfo=UTC), queued_at=datetime(2030, 1, 1, tzinfo=UTC),
            )  # fmt: skip
            insert_run(conn, run)

    await site.database.write(trigger_together)
    seen: list[str] = []
    views = ["/dags/report?runs=5"]
    for view in views:
        shown = (await site.client.get(unescape(view))).text
        seen += dict.fromkeys(re.findall(r"at-once-\d\d", shown))
        views += re.findall(r'href="([^"]+)">Earlier', shown)
    assert sorted(seen) == [f"at-once-{n:02}" for n in range(12)]
    for run_id in ("at-once-11", RUN_ID):
        graph = (await site.client.get(f"/dags/report/graph?run_id={quote(run_id)}")).text
        assert f'<option value="{run_id}" selected>' in graph


async def test_the_gantt_of_a_dag_is_that_of_its_newest_run_unless_another_is_named(site: Site) -> None:
    run = DagRunRow(
        dag_id="report", run_id="later", run_type="manual", state="queued", conf={},
        run_after=datetime(2030, 1, 1, tzinfo=UTC), queued_at=datetime(2030, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    await site.database.write(insert_run, run)
    newest = (await site.client.get("/dags/report/gantt")).text
    assert "No task has begun." in newest
    assert 'href="/dags/report/runs/later/why"' in newest
    named = (await site.client.get(f"/dags/report/gantt?run_id={RUN_ID}")).text
    assert f'<option value="{RUN_ID}" selected>' in named
    of_run = (await site.client.get(f"{_RUN}/gantt")).text
    bars = re.compile(r'<a href="([^"]+)" aria-label="([^"]+)"><title>')
    assert bars.findall(named) == bars.findall(of_run)
    assert f'href="{_TASK}" aria-label="extract: success' in named
    assert "No run yet" in (await site.client.get("/dags/daily/gantt")).text
    assert (await site.client.get("/dags/report/gantt?run_id=none")).status_code == 404


async def test_a_group_folds_in_the_grid_by_links_that_keep_the_runs_and_other_groups(site: Site) -> None:
    async def shown(where: str) -> tuple[list[str], str]:
        text = (await site.client.get(unescape(where))).text
        rows = re.findall(r'<th scope="row" title="([^"]+)">', text)
        [turn] = re.findall(r'<a class="fold" href="([^"]+)"', text)
        assert 'aria-label="sums: success"' in text
        return rows, turn

    before = "before=2099-01-01T00%3A00%3A00%2B00%3A00"
    rows, fold = await shown(f"/dags/report?runs=10&{before}&but=other")
    assert rows == ["extract", "double", "sums", "sums.load"]
    assert unescape(fold) == f"/dags/report?runs=10&{before}&groups=open&but=other&but=sums"
    rows, unfold = await shown(fold)
    assert rows == ["extract", "double", "sums"]
    assert (await shown(unfold))[0] == ["extract", "double", "sums", "sums.load"]


async def test_the_first_load_is_light(site: Site) -> None:
    page = await _bytes_of(site, "/dags/report")
    files = re.findall(r'(?:href|src)="(/static/[^"]+)"', gzip.decompress(page).decode())
    assert len(files) == 4
    assert len(page) + sum([len(await _bytes_of(site, path)) for path in files]) < MOST_BYTES
    kept = (await site.client.get(files[0])).headers["cache-control"]
    assert "immutable" in kept


async def _bytes_of(site: Site, path: str) -> bytes:
    async with site.client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        return b"".join([part async for part in answer.aiter_raw()])


async def test_actions_are_done_and_told(site: Site) -> None:
    client = site.client
    told = await client.post("/dags/daily/pause", data={"paused": "no"})
    assert (told.status_code, told.headers["location"]) == (303, "/dags/daily")
    assert "daily is unpaused." in (await client.get("/dags/daily")).text
    assert "daily is unpaused." not in (await client.get("/dags/daily")).text

    cleared = await client.post(f"/dags/fails/runs/{RUN_ID}/act", data={"action": "clear", "only_failed": "yes"})
    assert cleared.status_code == 303
    assert "Clear the run: 2 task instances." in (await client.get(cleared.headers["location"])).text

    made = await client.post("/dags/report/trigger", data={"param:n": "5", "run_id": "by-hand"})
    assert made.headers["location"] == "/dags/report/runs/by-hand"
    assert '"n": 5' in (await client.get("/dags/report/runs/by-hand/details")).text.replace("&#34;", '"')
    reserved = await client.post("/dags/report/trigger", data={"param:n": "5", "run_id": "latest"})
    assert (reserved.status_code, "is reserved: commands name the newest run so" in reserved.text) == (422, True)
    refused = await client.post("/dags/report/trigger", data={"param:n": "-1"})
    assert refused.status_code == 422
    assert "less than the minimum" in refused.text

    dates = await client.post("/dags/daily/backfills", data={"from": "2026-01-02", "to": "2026-01-04", "do": "plan"})
    assert "Create 3 runs" in dates.text
    await client.post("/dags/daily/backfills", data={"from": "2026-01-02", "to": "2026-01-04", "do": "create"})
    assert ">daily</a>" in (await client.get("/backfills")).text
    audit = (await client.get("/audit")).text
    for action in ("dag.unpause", "run.clear", "dag.trigger", "backfill.create"):
        assert action in audit


def test_what_an_action_did_is_told_also_if_no_cookie_can_hold_all_of_it() -> None:
    call: Any = SimpleNamespace(request=Request({"type": "http"}))
    cookie = redirect(call, "answers", said="界" * 1000).headers["set-cookie"]
    assert len(cookie) < 4096, "browsers drop longer ones"
    assert "界界" in unquote(cookie)


async def test_runs_and_tasks_are_noted_and_the_audit_of_a_run_tells_by_whom(site: Site) -> None:
    client, run = site.client, f"/dags/report/runs/{RUN_ID}"
    for where, view in (("", run), ("?task_id=double&map_index=1", f"{run}/tasks/double?map_index=1")):
        told = await client.post(f"{run}/note{where}", data={"text": "<b>late</b>"})
        assert (told.status_code, told.headers["location"]) == (303, view)
        assert '<p class="notice note">&lt;b&gt;late&lt;/b&gt;</p>' in (await client.get(view)).text
        assert "&lt;b&gt;late" in (await client.get(f"{run}/note{where}")).text
        await client.post(f"{run}/note{where}", data={"text": " "})
        assert 'class="notice note"' not in (await client.get(view)).text
    audit = (await client.get("/audit", params={"dag": "report", "run": RUN_ID})).text
    assert [audit.count(f"<td>{action}</td>") for action in ("run.note", "task.note", "dag.unpause")] == [2, 2, 0]
    assert "at most 1000 characters" in (await client.post(f"{run}/note", data={"text": "?" * 1001})).text


async def test_versions_of_the_code_are_compared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_version(conn: Connection) -> None:
        row = as_struct(
            DagVersionRow, conn.execute(sa.select(dag_version).where(dag_version.c.dag_id == "report")).one()
        )
        text = conn.scalar(sa.select(source.c.text).where(source.c.content_hash == row.sources[0].content_hash))
        conn.execute(source.insert(), {"content_hash": "f" * 64, "text": text.replace("2 * value", "3 * value")})
        newer = [{**asdict(row.sources[0]), "content_hash": "f" * 64}]
        added = {**as_new(row), "number": 2, "version_hash": "f" * 64, "sources": newer}
        conn.execute(dag_version.insert(), added)

    await site.database.write(add_version)
    shown = (await site.client.get("/dags/report/code?version=2&against=1")).text
    assert re.findall(r'<span class="(added|removed)">(.*)', shown) == [
        ("removed", "-        return 2 * value"), ("added", "+        return 3 * value"),
    ]  # fmt: skip
    monkeypatch.setattr(dag_pages, "COMPARISON_SECONDS", 0.0)
    both = (await site.client.get("/dags/report/code?version=2&against=1")).text
    assert re.findall(r"too large|<h3>Version \d|return \d \* value", both) == [
        "too large", "<h3>Version 1", "return 2 * value", "<h3>Version 2", "return 3 * value",
    ]  # fmt: skip
    same = (await site.client.get("/dags/report/code?version=1&against=1")).text
    assert "The code is the same" in same


async def test_details_show_the_pools_and_queues_of_a_task_s_retries(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = tuple(SerializedRoute(pool=pool, queue=queue) for pool, queue in ("ax", "bx", "by"))

    async def with_routes(context: QueryContext, dag_id: str) -> Structure:
        found = await read_structure(context, dag_id)
        tasks = [replace(task, pool="own", routes=routes * (task.task_id == "after")) for task in found.dag.tasks]
        return found._replace(dag=replace(found.dag, tasks=tuple(tasks)))

    monkeypatch.setattr(dag_pages, "read_structure", with_routes)
    shown = (await site.client.get("/dags/fails/details")).text
    assert "<td>a, then b</td><td>x, then y</td>" in shown
    assert "<td>own</td><td>default</td>" in shown


async def test_home_tells_how_each_loop_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = (
        LoopHealth("evaluator", 90.0, 90.0, is_stuck=True), LoopHealth("watcher", 0.1),
        LoopHealth("retention", 9.0, waits_for_database=True),
    )  # fmt: skip
    stuck, waiting = "1 loop of the scheduler is stuck</a>: evaluator", "waits for the database</a>"
    for status, sentence in (("stuck", stuck), ("waiting", waiting)):
        health = Health(status, "s1", "1", datetime.now(UTC), None, None, loops)
        monkeypatch.setattr(operation, "health_of_home", lambda _, health=health: health)
        monkeypatch.setattr(operation, "HEALTH_LASTS", timedelta())
        monkeypatch.setattr(recent, "SHARE", 1.0)
        for path in ("/late", "/"):
            shown = (await site.client.get(path)).text
            assert sentence in shown
            assert re.findall(r'"sign" aria-hidden="true">(.)</span>([^<]+)', shown[shown.index(">Loops<") :])[:3] == [
                ("✕", "evaluator: stuck"), ("✓", "watcher"), ("↻", "retention: waits for the database"),
            ]  # fmt: skip
    await site.database.write(
        register_scheduler, scheduler_id="s9", hostname=socket.gethostname(), pid=1, home=str(site.settings.home_path),
        version="1", now=datetime.now(UTC), lease_until=datetime.now(UTC) + timedelta(hours=1), takeover_seconds=60.0,
    )  # fmt: skip
    monkeypatch.setattr(operation, "health_of_home", Mock(side_effect=NotServing("None.")))
    for path in ("/late", "/"):
        assert "The scheduler of this home does not answer</a>" in (await site.client.get(path)).text


def _make_late(conn: Connection) -> None:
    """Make a run of `daily` due, let one of `follows` wait, and leave one of `fails` without a task that goes on."""
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    conn.execute(dag.update().where(dag.c.dag_id == "daily").values(is_paused=False, next_dagrun_create_after=hour_ago))
    conn.execute(dag.update().where(dag.c.dag_id == "follows").values(is_paused=True))
    of_dag = dag_run.c.dag_id
    times = {"run_after": hour_ago, "queued_at": hour_ago, "started_at": None, "ended_at": None}
    conn.execute(dag_run.update().where(of_dag == "follows").values(state="queued", **times))
    later = DagRunRow(
        dag_id="report", run_id="later", run_type="manual", state="queued", run_after=hour_ago + timedelta(days=9),
        queued_at=hour_ago, conf={},
    )  # fmt: skip
    insert_run(conn, later)
    stuck = {"state": "running", "started_at": hour_ago, "ended_at": None}
    of_fails = dag_run.update().where(of_dag == "fails").values(**stuck).returning(dag_run.c.id)
    run_id = conn.execute(of_fails).scalar_one()
    conn.execute(task_instance.update().where(task_instance.c.dag_run_id == run_id).values(state=None, ended_at=None))


async def test_home_says_why_something_is_late(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(why, "is_serving", lambda home: not asked.append(home))
    await site.database.write(_make_late)
    shown = (await site.client.get("/")).text
    assert re.findall(r'aria-label="Why is (.*) late', shown) == ["daily"]
    assert 'hx-get="/late"' in shown
    for path in ("/late", "/", "/", "/late"):
        shown = (await site.client.get(path)).text
        told = re.findall(r'<span class="reason">(.*)</span>', shown[shown.index('class="late"') :])
        assert [one.partition(" since ")[0] for one in sorted(told)] == [
            "No scheduler has owned this run", "Nothing holds it up: a run is created now.", "The DAG is paused.",
        ]  # fmt: skip
    assert len(asked) == 1
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    shown = (await site.client.get("/late")).text
    assert re.findall(r'aria-label="Why is (.*) late', shown) == [RUN_ID]


def _hold_the_pool(conn: Connection) -> None:
    """Make the task of `asks` occupy the pool's only slot, while a task of `fails` waits for one."""
    _make_late(conn)
    set_pool(conn, "default_pool", 1)
    conn.execute(task_instance.update().where(task_instance.c.task_id == "approve").values(state="running"))


async def test_why_names_no_task_of_a_dag_that_somebody_may_not_see(site: Site) -> None:
    await site.database.write(_hold_the_pool)
    for path in (f"/dags/fails/runs/{RUN_ID}/why", f"/dags/fails/runs/{RUN_ID}/tasks/broken/why"):
        site.access.who = Identity(name="ada", permission=Permission.VIEW)
        assert "approve of first of asks: running" in (await site.client.get(path)).text
        site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
        shown = (await site.client.get(path)).text
        assert "default_pool: 1 of 1 taken, 1 needed" in shown
        assert "a task of a DAG that you may not see" in shown
        assert "approve" not in shown


async def test_home_says_in_a_sentence_that_no_scheduler_tells_why(site: Site) -> None:
    await site.database.write(_make_late)
    assert "What is late or stuck, and why?" in (await site.client.get("/")).text
    for path in ("/late", "/"):
        assert "No scheduler is serving; the last one served until" in (await site.client.get(path)).text


async def test_the_upcoming_runs_of_a_dag_are_simulated_on_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client, where = site.client, "/dags/daily/upcoming/simulated?hours=72"
    assert f'hx-get="{where}"' in (await client.get("/dags/daily/upcoming?hours=72")).text
    paused = (await client.get(where)).text
    assert "The DAG is paused: it gets no scheduled run." in paused
    await client.post("/dags/daily/pause", data={"paused": "no"})
    shown = (await client.get(where)).text
    assert shown.count("<td>schedule</td>") == 3
    assert shown.count('<td class="nowrap">1 min</td>') == 3, "without a history, a try takes a minute"
    monkeypatch.setattr(dag_pages, "SIMULATION_SECONDS", 1e-9)
    assert "The simulation was cut at" in (await client.get(where)).text
    monkeypatch.setattr("asynsched.queries.turns.MOST_WAITING", 0)
    assert "Too many simulations and previews are waiting" in (await client.get(where)).text


async def test_the_link_of_a_question_leads_to_the_open_ones(site: Site) -> None:
    of_task = f"/dags/asks/runs/{RUN_ID}/tasks/approve/required_actions?map_index=-1&_options=Approve"
    assert (await site.client.get(of_task)).headers["location"] == "/answers"


async def test_secrets_are_written_and_never_shown(site: Site) -> None:
    client = site.client
    fields = {"conn_id": "new", "conn_type": "http", "password": "hunter33", "extra": '{"token": "hunter33"}'}
    await client.post("/connections", data=fields)
    await client.post("/variables", data={"key": "new_token", "value": "hunter33"})
    for path in ("/connections", "/variables", "/audit"):
        text = (await client.get(path)).text
        assert "new" in text
        assert "hunter" not in text


@pytest.mark.parametrize(
    ("path", "typed", "problem"),
    [
        ("/pools", {"name": "big", "slots": "many", "description": "for <all>"}, "slots must be a number"),
        ("/variables", {"key": "k" * 300, "value": "\n one\ntwo", "description": "of us"}, "250"),
        ("/connections", {"conn_id": "db", "conn_type": "postgres", "port": "none", "extra": "{}"}, "port must be a"),
        ("/users", {"name": "eve", "role": "operator", "others": "desk", "password": "hunt"}, "has 8 to"),
        ("/dags/daily/backfills", {"from": "2026-02-01", "to": "2026-01-01", "reverse": "yes"}, "after its end"),
        (f"{_RUN}/note", {"text": "n" * 1100}, "1000"),
        (f"{_TASK.replace('tasks/extract', 'note')}?task_id=extract", {"text": "n" * 1100}, "1000"),
        ("/dags/asks/runs/first/tasks/approve/answer", {"param:why": "unsure", "option": "Perhaps"}, "Reject"),
        ("/dags/asks/runs/first/tasks/refused/answer", {"option": "Approve"}, "refused"),
    ],
)
async def test_a_form_that_is_refused_keeps_what_was_typed(
    site: Site, path: str, typed: dict[str, str], problem: str
) -> None:
    answer = await site.client.post(path, data=typed)
    assert 400 <= answer.status_code < 500
    [said] = re.findall(r'<p class="notice bad-notice" role="alert"[^>]*>([^<]*)</p>', answer.text)
    assert problem in unescape(said), said
    shown = answer.text.replace(said, "")
    kept = [text for name, text in typed.items() if name not in ("password", "option", "reverse")]
    assert [text for text in kept if escape(text) not in shown] == []
    assert ("reverse" not in typed) or 'value="yes" checked' in shown
    assert typed.get("password", "hunt") not in shown


async def test_a_planned_backfill_leads_back_to_its_form_as_it_was(site: Site) -> None:
    typed = {"from": "2026-01-01", "to": "2026-01-02", "reprocess": "failed", "max_active_runs": "7"}
    planned = (await site.client.post("/dags/daily/backfills", data={**typed, "do": "plan"})).text
    sent = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', planned))
    assert sent == typed
    shown = (await site.client.post("/dags/daily/backfills", data={**sent, "do": "edit"})).text
    assert all(part in shown for part in ('value="2026-01-02"', 'value="failed" selected', 'value="7"'))
    assert "bad-notice" not in shown


async def test_long_lists_have_pages_and_a_search(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_pages, "PAGE_ROWS", 2)
    names = [f"kept_{n}" for n in range(5)]
    for name in names:
        await site.client.post("/pools", data={"name": name, "slots": "1"})
        await site.client.post("/variables", data={"key": name, "value": "1"})
        await site.client.post("/connections", data={"conn_id": name, "conn_type": "http"})
    for view in ("/pools", "/variables", "/connections"):
        where, found = f"{view}?q=KEPT", list[str]()
        while where:
            text = (await site.client.get(where)).text
            found += re.findall(r"strong\"[^>]*>(kept_\d)<", text)
            where = unescape(next(iter(re.findall(r'<p class="more"><a href="([^"]*)"', text)), ""))
        assert found == names, view
        assert "There is no such" in (await site.client.get(f"{view}?q=nothing")).text


async def test_the_tokens_of_a_user_have_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (token_pages, user_pages):
        monkeypatch.setattr(module, "PAGE_ROWS", 2)
    context = QueryContext(site.database, site.settings.home_path, site.settings, Clock())
    client = LocalClient(lambda: context, "ada", issuer=Issuer("ada", None, "administer"))
    await client.create_user("ada", ("viewer",))
    labels = [f"number_{n}" for n in range(5)]
    for label in labels:
        await client.create_token(label)
    for view in ("/tokens", "/users/ada"):
        where, found = view, list[str]()
        while where:
            text = (await site.client.get(where)).text
            found += re.findall(r"strong\">(number_\d)<", text)
            where = unescape(next(iter(re.findall(r'<p class="more"><a href="([^"]*)"', text)), ""))
        assert found == labels, view


async def test_administrators_add_change_and_end_users(site: Site) -> None:
    client, now = site.client, datetime.now(UTC)
    refused = await client.post("/users", data={"name": "eve/it", "role": "viewer", "password": "short"})
    assert "has 8 to" in refused.text
    fields = {"name": "eve/it", "role": ["viewer", "operator"], "others": "team, desk", "password": "a long secret"}
    added = await client.post("/users", data=fields)
    where = added.headers["location"]
    assert "The user eve/it is added." in (await client.get(where)).text
    assert "viewer, operator, team, desk" in (await client.get("/users?q=EVE")).text
    lasts = timedelta(days=1)
    await site.database.write(create_token_of, "eve/it", "nightly", scope="view", dag_ids=None, now=now, lasts=lasts)
    shown = (await client.get(where)).text
    assert "nightly" in shown
    [token] = re.findall(r'name="id" value="(\d+)"', shown)
    steps = [
        ({"do": "token", "id": token}, "The token nightly of eve/it has ended."),
        ({"do": "roles", "role": "admin"}, "eve/it has the roles admin."),
        ({"do": "password", "password": "another long secret"}, "eve/it has another password"),
        ({"do": "disable"}, "eve/it is disabled."),
    ]
    for data, sentence in steps:
        answer = await client.post(where, data=data)
        assert (answer.status_code, answer.headers["location"]) == (303, where), answer.text
        assert sentence in (await client.get(where)).text
    assert "The user has no tokens." in (await client.get(where)).text
    assert (await client.post(where, data={"do": "session", "id": "9"})).status_code == 404
    assert (await client.post(where, data={"do": "nothing"})).status_code == 400
    assert (await client.post(where, data={"do": "delete"})).headers["location"] == "/users"
    assert "long secret" not in (await client.get("/audit")).text
    site.access.who = Identity(name="bob", permission=Permission.OPERATE)
    answers = [await client.get("/users"), await client.get(where), await client.get("/config")]
    assert [one.status_code for one in answers] == [403] * 3
    assert 'href="/users"' not in (await client.get("/")).text


async def test_the_settings_are_shown_without_secrets_if_they_are_exposed(tmp_path: Path) -> None:
    celery = CelerySettings(broker_url="redis://ada:hunter22@broker/0", options='{"redis_password": "hunter22"}')
    web = WebSettings(expose_config=True)
    settings = Settings(home=str(tmp_path / "home"), fernet_key="hunter22", celery=celery, web=web)
    prepare_home(settings.home_path)
    database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
    app = make_app(QueryContext(database, settings.home_path, settings, Clock()), Known())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
        shown = [(await client.get(path)).text for path in ("/config", "/config?changed=yes", "/config?q=BROKER")]
        of_airflow = (await client.get("/api/v2/config")).text
    await database.close()
    assert "redis://ada:***@broker/0" in of_airflow
    assert not [text for text in (*shown, of_airflow) if "hunter" in text]
    assert ["web.expose_config" in text for text in shown] == [True, True, False]
    assert ["celery.broker_url" in text for text in shown] == [True] * 3
    assert "parallelism" not in shown[1]


async def test_one_action_on_many_things_is_previewed_and_done(site: Site) -> None:
    client = site.client
    for do, view in (("pause", "is active now"), ("trigger", "begins a run")):
        shown = await client.get(f"/act/dags?do={do}&dag=report&dag=fails&back=q%3Dr")
        assert shown.text.count(view) == 2
    told = await client.post("/act/dags", data={"do": "pause", "dag": ["report", "fails"], "back": "q=r&tag=a&tag=b"})
    assert (told.status_code, told.headers["location"]) == (303, "/dags?q=r&tag=a&tag=b")
    assert "Pause 2 DAGs: done." in (await client.get("/dags")).text

    listed = (await client.get("/runs")).text
    ids = {dag_id: row_id for row_id, dag_id in re.findall(r'name="run" value="(\d+)".*?href="/dags/(\w+)"', listed)}
    shown = (await client.get(f"/act/runs?do=cancel&run={ids['report']}&run={ids['asks']}")).text
    assert "has already ended" in shown
    assert "changes 1 task instance" in shown
    done = await client.post("/act/runs", data={"do": "delete", "run": [ids["asks"], ids["fails"]]})
    told = (await client.get(done.headers["location"])).text
    assert "Delete 2 runs: 1 of 2 failed. first of asks: it is running: cancel it first." in told
    assert (await client.get(f"/dags/fails/runs/{RUN_ID}")).status_code == 404

    page = (await client.get("/tasks?dag=report&task=double|extract")).text
    tasks = re.findall(r'name="task" value="(\d+)"', page)
    assert len(tasks) == 3
    assert (await client.get(f"/act/tasks?do=clear&task={'&task='.join(tasks)}")).text.count("changes 1 task") == 3
    done = await client.post("/act/tasks", data={"do": "skipped", "task": tasks})
    assert "Mark 3 task instances as skipped: done." in (await client.get(done.headers["location"])).text
    assert (await client.get("/tasks?task=double|extract&state=skipped")).text.count("data-pick ") == 3
    audit = (await client.get("/audit")).text
    for action in ("dag.pause", "run.delete", "task.mark"):
        assert action in audit
    for data in ({"do": "pause"}, {"do": "explode", "dag": "report"}, {"do": "pause", "dag": ["x"] * 201}):
        assert (await client.post("/act/dags", data=data)).status_code == 400


async def test_who_only_views_can_do_nothing(site: Site) -> None:
    site.access.who = Identity(name="ada", permission=Permission.VIEW)
    acts = {"/act/dags": {"do": "pause", "dag": "report"}, "/act/runs": {"do": "clear", "run": "1"},
            "/act/tasks": {"do": "clear", "task": "1"}}  # fmt: skip
    fields = {"paused": "no", "action": "clear"}
    forms = dict.fromkeys(("/dags/daily/pause", f"{_RUN}/act", "/dags/report/trigger", "/pools", "/variables"), fields)
    for path, data in (acts | forms).items():
        answer = await site.client.post(path, data=data)
        assert answer.status_code == 403, path
        assert "needs the right to operate" in answer.text
        assert path in forms or (await site.client.get(path, params=data)).status_code == 403
    for path in ("/variables", "/connections"):
        assert (await site.client.get(path)).status_code == 403
        assert path not in (await site.client.get("/")).text
    for view in ("/dags", "/dags/report", _RUN, "/pools", "/runs", "/tasks"):
        shown = (await site.client.get(view)).text
        assert "<button name=" not in shown, view
        assert "data-pick" not in shown, view
        assert "/connections" not in shown, view
    for view in ("/variables", "/connections", "/preview"):
        assert (await site.client.get(view)).status_code == 403
        assert f'"{view}"' not in (await site.client.get("/palette", params={"q": view[1:5]})).text
    for view, n in {"/dags": 1, "/runs": 1, "/tasks": 2}.items():
        site.access.who = Identity("ada", Permission.VIEW, {"fails": Permission.OPERATE}, Permission.VIEW)
        assert (await site.client.get(view)).text.count("data-pick ") == n


async def test_who_sees_some_dags_sees_nothing_of_others(site: Site) -> None:
    site.access.who = Identity(name="ada", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    for path in EVERYWHERE:
        if path != "/audit":
            assert "report" not in (await site.client.get(path)).text.replace("report.py", ""), path
    assert (await site.client.get("/dags/report")).status_code == 403
    shown = (await site.client.get("/dags/fails/code")).text
    assert "defines other DAGs too" in shown
    assert "follows" not in shown
    assert (await site.client.get("/audit")).status_code == 403


async def test_a_try_shows_what_its_templates_gave(site: Site) -> None:
    path = f"/dags/fails/runs/{RUN_ID}/tasks/broken"
    for number in (1, 2):
        shown = (await site.client.get(f"{path}?try_number={number}")).text
        assert f"Rendered templates of try {number}" in shown
        assert f"&#34;run&#34;: &#34;first, try {number}&#34;" in shown
        assert "&#34;token&#34;: &#34;***&#34;" in shown
    assert "Rendered templates" not in (await site.client.get(_TASK)).text


async def test_a_log_is_read_by_ranges_and_followed_by_who_may(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{_RUN}/tasks/extract/log?try_number=1"
    whole = await site.client.get(path)
    size = int(whole.headers["x-size"])
    assert (whole.headers["content-type"], whole.headers["x-start"]) == ("text/plain; charset=utf-8", "0")
    assert "reading 2 numbers" in whole.text
    end = await site.client.get(f"{path}&start={size}")
    assert (end.text, end.headers["x-end"]) == ("", str(size))

    monkeypatch.setattr("asynsched.queries.turns.MOST_WAITING", 0)
    refused = await site.client.get(f"{_TASK}/log/find?try_number=1&q=read")
    assert (refused.status_code, "Too many searches of logs" in refused.text) == (409, True)

    followed = f"{_RUN}/tasks/extract/log/follow?try_number=1&start=0"
    assert "reading 2 numbers" in (await site.client.get(followed)).text


async def test_the_end_of_a_line_that_is_longer_than_a_part_of_a_log_is_shown(site: Site) -> None:
    [log] = site.settings.home_path.glob("logs/dag_id=fails/run_id=*/task_id=broken/attempt=2.log")
    log.write_bytes(b"short\n" + b"x" * 1_000_000 + b"the end\n")
    path = f"/dags/fails/runs/{RUN_ID}/tasks/broken/log?try_number=2"
    end = await site.client.get(path)
    assert end.text.endswith("xthe end\n")
    before = await site.client.get(f"{path}&until={end.headers['x-start']}")
    assert set(before.text) == {"x"}


async def test_an_import_error_is_shown_with_its_place_once(site: Site) -> None:
    for path in ("/", "/errors"):
        text = re.sub(r"<[^>]*>", "", (await site.client.get(path)).text)
        assert re.search(r"broken\.py:1:? ModuleNotFoundError: No module named", text)
        assert not re.search(r"broken\.py\S* broken\.py", text)


async def test_errors_of_a_file_are_shown_only_to_those_who_see_all_its_dags(site: Site) -> None:
    def add_error(conn: sa.Connection) -> None:
        path = conn.scalar(sa.select(dag.c.file_path).where(dag.c.dag_id == "fails"))
        row = ImportErrorRow(path, "error", "the other DAG says so", "", None, None, "", False, datetime.now(UTC))
        conn.execute(import_error.insert().values(**as_new(row)))

    await site.database.write(add_error)
    paths = ("/errors", "/dags/fails")
    assert [(await site.client.get(path)).text.count("the other DAG says so") for path in paths] == [1, 1]
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    assert [(await site.client.get(path)).text.count("the other DAG says so") for path in paths] == [0, 0]


def test_times_at_the_ends_of_the_calendar_are_shown() -> None:
    shown = Showing(ZoneInfo("America/New_York"), datetime.now(UTC)).time(datetime(1, 1, 1, tzinfo=UTC))
    assert "1-01-01 00:00:00" in shown


async def test_a_choice_leads_back_only_to_this_page(site: Site) -> None:
    places = {"/runs?dag=a": "/runs?dag=a", "//evil.example": "/preferences", "/\\evil": "/preferences"}
    for back, location in places.items():
        answer = await site.client.post("/preferences", data={"zone": "Asia/Tokyo", "back": back})
        assert answer.headers["location"] == location
    assert quote("Asia/Tokyo") in answer.headers["set-cookie"]
    assert "Asia/Tokyo" in (await site.client.get("/runs")).text
