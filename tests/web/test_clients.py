"""A client answers the same in the process of the database and through our REST API."""

import inspect
import shutil
import socket
import sys
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from unittest.mock import AsyncMock

import anyio
import httpx
import msgspec
import pytest
from msgspec.structs import replace

from asynsched.client.client import Client, LocalClient
from asynsched.client.operation import OPERATIONS, PREFIX
from asynsched.client.remote import RemoteError
from asynsched.clock import Clock
from asynsched.errors import ERROR_HEADER, AlreadyExists, AsynschedError, DagError, NotFound, NotServing, StoreError
from asynsched.executors.log_paths import log_path
from asynsched.home import LOGS
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries import log_lines, try_logs
from asynsched.queries.context import QueryContext
from asynsched.queries.events import Change, Missed
from asynsched.queries.listening import start_feed
from asynsched.queries.paging import BadRequest, Page
from asynsched.queries.users import Issuer, sign_in
from asynsched.store.changes import stored_numbers
from asynsched.store.rows import as_new
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schema import DeadlineRow, deadline
from asynsched.web import event_stream, streams
from asynsched.web.access import Identity, NotSignedIn, Permission
from asynsched.web.app import make_app
from asynsched.web.event_stream import encoded
from asynsched.web.loop_server import LoopServer
from tests.web.conftest import Known
from tests.web.filling import RUN_ID

REPORT, FAILS = ("report", RUN_ID), ("fails", RUN_ID)
ASKS = ("asks", RUN_ID)
NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


@pytest.fixture
def clients(site):
    """Return a client in this process, and one of the REST API, of one database."""

    @asynccontextmanager
    async def open_clients(access=None, *, has_feed=False):
        # A server that is cancelled before it has begun closes no socket.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with anyio.create_task_group() as tasks:
                feed = await start_feed(tasks, site.settings, site.database, Clock()) if has_feed else None
                context = QueryContext(site.database, site.settings.home_path, site.settings, Clock(), feed)
                app = make_app(context, access or Known())
                tasks.start_soon(LoopServer(app, site.settings.web, Clock()).serve_until_cancelled, listener)
                async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as there:
                    yield LocalClient(lambda: context, "ada", issuer=Issuer("ada", None, "administer")), there
                tasks.cancel_scope.cancel()

    return open_clients


class LibraryDate(datetime):
    """A date as pendulum has it: of a class of its own."""


QUESTIONS = {
    "list_dags": [{}, {"active": None}, {"paused": True}, {"pattern": "rep", "limit": 1},
                  {"order_by": ("-dag_id",), "limit": 2}, {"tags": ("sales", "etl")}, {"owners": ("ada",)}],
    "get_dag": [{"dag_id": "report"}],
    "get_dag_details": [{"dag_id": "report"}, {"dag_id": "daily"}],
    "list_callbacks": [{"run": FAILS}, {"run": FAILS, "order_by": ("-created_at",)}],
    "rendered_fields": [{"task": (*REPORT, "extract")}, {"task": (*REPORT, "extract"), "try_number": 1}],
    "links": [{"task": (*REPORT, "extract")}],
    "find_in_log": [{"task": (*FAILS, "broken"), "text": "error"}],
    "get_asset": [{"asset_id": 1}],
    "list_warnings": [{}, {"kind": ("unstable",)}],
    "list_plugins": [{}],
    "list_providers": [{}],
    "list_sessions": [{}],
    "upcoming": [{"dag_id": "daily", "n": 3, "now": NOON}, {"dag_id": "report"}],
    "list_runs": [{}, {"dag_id": "fails"}, {"state": ("success", "failed")}, {"since": NOON, "limit": 1},
                  {"state": "failed"}, {"since": "2026-01-01T00:00:00Z"},
                  {"since": LibraryDate(2026, 1, 1, tzinfo=UTC)}],
    "get_run": [{"run": REPORT}],
    "await_run": [{"run": FAILS}],
    "get_results": [{"run": REPORT}, {"run": FAILS}],
    "list_tasks": [{"dag_id": "report", "run_id": RUN_ID}, {"state": ("failed",)}, {"task_id": "double"}],
    "get_task": [{"task": (*REPORT, "extract")}, {"task": (*REPORT, "double", 1)}],
    "list_tries": [{"task": (*FAILS, "broken")}],
    "why": [{"dag_id": "daily"}, {"dag_id": "fails", "run_id": RUN_ID, "task_id": "after"}],
    "list_late": [{}],
    "list_pools": [{}],
    "get_pool": [{"name": "default_pool"}],
    "list_variables": [{}, {"pattern": "greet"}],
    "get_variable": [{"key": "api_key"}],
    "list_connections": [{}],
    "get_connection": [{"conn_id": "shop"}],
    "list_import_errors": [{}, {"file": "others.py"}],
    "list_audit": [{}, {"dag_id": "report", "order_by": ("at",)}, {"dag_id": "report", "run_id": RUN_ID}],
    "list_schedulers": [{}],
    "xcoms": [{}, {"dag_id": "report", "run_id": RUN_ID, "task_id": "extract"}],
    "get_xcom": [{"task": (*REPORT, "extract")}, {"task": (*REPORT, "sums.load"), "key": "sum"}],
    "task_logs": [{"task": (*REPORT, "extract")}, {"task": (*FAILS, "broken"), "try_number": 1, "n_bytes": 100}],
    "log_lines": [{"task": (*FAILS, "broken"), "first": 2, "last": 3}, {"task": (*REPORT, "extract")}],
    "log_tail": [{"task": (*FAILS, "broken"), "n_lines": 2}],
    "list_tags": [{}, {"pattern": "SAL"}],
    "list_queued_events": [{}, {"dag_id": "waits", "asset_id": 1}, {"order_by": ("-created_at",)}],
    "plan_backfill": [{"dag_id": "daily", "from_date": NOON - timedelta(days=3), "to_date": NOON}],
    "list_versions": [{"dag_id": "report"}],
    "get_source": [{"dag_id": "report"}, {"dag_id": "report", "number": 1}],
    "list_backfills": [{}],
    "list_assets": [{}, {"pattern": "ord"}],
    "list_asset_events": [{}],
    "list_questions": [{}, {"dag_id": "report"}],
    "list_users": [{}, {"pattern": "a"}],
    "list_tokens": [{}],
    "list_deadlines": [{}, {"dag_id": "report", "state": ("missed",)}],
    "mark": [{"run": FAILS, "task_ids": ("broken",), "state": "success", "dry_run": True}],
    "clear": [{"run": FAILS, "only_failed": True, "dry_run": True}],
}  # fmt: skip
"""The arguments of each question, which changes nothing."""


async def test_both_clients_give_equal_answers_to_every_question(clients):
    async with clients() as (here, there):
        for name, calls in QUESTIONS.items():
            for arguments in calls:
                answer = await getattr(here, name)(**arguments)
                assert await getattr(there, name)(**arguments) == answer, (name, arguments)


async def test_the_source_of_a_file_is_shown_only_to_those_who_see_all_its_dags(clients):
    access = Known()
    async with clients(access) as (here, there):
        assert 'DAG("fails"' in (await here.get_source("fails")).text
        access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
        shown = await there.get_source("fails")
        assert ("which you may not see" in shown.text, shown.dags_of_file) == (True, {"fails"})


async def test_pages_follow_one_another_in_both_clients(clients):
    async with clients() as (here, there):
        for client in (here, there):
            first = await client.list_dags(limit=4)
            second = await client.list_dags(limit=4, after=first.after)
            assert len({dag.dag_id for dag in (*first.items, *second.items)}) == 6
            assert second.after is None


async def test_dags_are_found_by_tag_and_owner_and_shown_with_their_tasks(clients):
    access = Known()
    async with clients(access) as (_, there):
        assert {dag.dag_id for dag in (await there.list_dags(tags=("numbers", "none"))).items} == {"report"}
        assert {dag.dag_id for dag in (await there.list_dags(tags=("sales",), owners=("ada",))).items} == {"report"}
        found = await there.get_dag_details("report")
        assert [(task.task_id, task.group_id, task.is_mapped) for task in found.tasks] == [
            ("extract", None, False), ("double", None, True), ("sums.load", "sums", False)
        ]  # fmt: skip
        assert ("extract", "double") in {(edge.source_id, edge.target_id) for edge in found.edges}
        assert (found.version_number, found.params["n"].value, found.params["n"].schema["type"]) == (1, 3, "integer")
        fields = await there.rendered_fields((*FAILS, "broken"), try_number=1)
        assert fields["templates_dict"] == {"run": "first, try 1", "token": "***"}
        [line] = await there.find_in_log((*REPORT, "extract"), "READING", try_number=1)
        assert "reading 2 numbers" in line.text


async def test_a_log_is_read_by_the_numbers_of_its_lines_and_from_its_end(clients, site, monkeypatch):
    monkeypatch.setattr(log_lines, "BLOCK_BYTES", 7)  # lines begin anywhere within blocks
    path = site.settings.home_path / LOGS / log_path(TaskInstanceKey(*REPORT, "extract"), 1)
    text = [f"line {n} {'é' * (n % 5)}\n" for n in range(1, 41)]
    async with clients() as (here, there):
        for last in ("\n", ""):
            whole = "".join(text).removesuffix("\n") + last
            path.write_text(whole)
            end = "".join(text[38:]).removesuffix("\n") + last
            for client in (here, there):
                task = (*REPORT, "extract")
                assert (await client.log_lines(task, 3, 5)).text == "".join(text[2:5])
                rest = await client.log_lines(task, 39)
                assert (rest.text, rest.end, rest.is_last) == (end, rest.size, True)
                assert (await client.log_lines(task, 99)).text == ""
                assert (await client.log_tail(task, 2)).text == rest.text
                assert (await client.log_tail(task, 99)).text == whole
        monkeypatch.setattr(try_logs, "MOST_BYTES", 40)
        few = await here.log_tail((*REPORT, "extract"), 30)
        assert whole.endswith(few.text)
        assert 20 < len(few.text.encode()) <= 40


async def test_an_asset_is_materialized_only_by_those_who_may_operate_the_dag(clients):
    access = Known()
    async with clients(access) as (here, there):
        [orders] = (await here.list_assets(pattern="orders")).items
        access.who = Identity(name="bob", permission=Permission.OPERATE, of_dags={"report": Permission.VIEW})
        with pytest.raises(NotFound, match="that you may operate"):
            await there.materialize(orders.id)


async def test_a_token_ends_only_sessions_that_allow_no_more_than_itself(site):
    now = datetime.now(UTC)
    await site.database.write(sign_in, "secret", "ada", user_id=None, now=now, lasts=timedelta(days=1))
    context = QueryContext(site.database, site.settings.home_path, site.settings, Clock())
    own, weak = Issuer("ada", None, "administer"), Issuer("ada", None, "view", until=now + timedelta(hours=1))
    [session] = (await LocalClient(lambda: context, "ada", issuer=weak).list_sessions()).items
    with pytest.raises(BadRequest, match="allows more than the token"):
        await LocalClient(lambda: context, "ada", issuer=weak).end_session(session.id)
    await LocalClient(lambda: context, "ada", issuer=own).end_session(session.id)
    assert await LocalClient(lambda: context, "ada", issuer=own).list_sessions() == Page(())


REFUSALS = [
    ("get_dag", {"dag_id": "repor"}, NotFound, "Did you mean report"),
    ("get_run", {"run": ("report", "second")}, NotFound, "no run 'second'"),
    ("list_dags", {"order_by": ("size",)}, BadRequest, "cannot be sorted by 'size'"),
    ("trigger", {"dag_id": "report", "conf": {"n": -1}}, DagError, "param 'n'"),
    ("trigger", {"dag_id": "report", "run_id": RUN_ID}, AlreadyExists, "has a run 'first' already"),
    ("cancel", {"run": REPORT}, AsynschedError, "has already ended"),
    ("simulate", {"start": NOON, "end": NOON}, BadRequest, "must end after its start"),
    ("preview", {"where": "."}, BadRequest, "and not folders"),
    ("preview", {"where": "/nowhere"}, BadRequest, "and not folders"),
    ("preview", {"where": "main"}, AsynschedError, "is in no Git repository"),
    ("force", {"task": (*REPORT, "extract"), "ignore": ("pool",)}, BadRequest, "'pool' cannot be ignored"),
    ("force", {"task": (*REPORT, "extract")}, AsynschedError, "extract"),
    ("answer", {"task": (*ASKS, "approve"), "options": ("Perhaps",)}, BadRequest, "Approve, Reject"),
    ("answer", {"task": (*REPORT, "extract"), "options": ("Approve",)}, AsynschedError, "waits for no answer"),
    ("delete_dag", {"dag_id": "report"}, AsynschedError, "remove it from there"),
    ("note_task", {"task": (*REPORT, "extrac"), "text": "?"}, NotFound, "Did you mean extract"),
    ("note_run", {"run": REPORT, "text": "?" * 1001}, StoreError, "at most 1000 characters"),
    ("end_session", {"session_id": 99}, NotFound, "no session '99'"),
    ("end_user_session", {"name": "ada", "session_id": 99}, NotFound, "no session '99'"),
    ("end_user_token", {"name": "ada", "token_id": 99}, NotFound, "no token '99'"),
    ("get_user", {"name": "ad"}, NotFound, "no user 'ad'"),
    ("revoke_token", {"token_id": 99}, NotFound, "no token '99'"),
    ("create_user", {"name": "eve", "roles": ("viewer",), "password": "short"}, AsynschedError, "has 8 to"),
    ("get_deadline", {"run": REPORT, "number": 0}, NotFound, "no deadline '0' in the run 'first'"),
    ("log_lines", {"task": (*REPORT, "extract"), "first": 3, "last": 2}, BadRequest, "is before the first"),
    ("set_xcom", {"task": (*REPORT, "extrac"), "key": "n", "value": 1}, NotFound, "Did you mean extract"),
    ("delete_xcom", {"task": (*REPORT, "extract"), "key": "n"}, NotFound, "no XCom 'n'"),
    ("change_connection", {"conn_id": "shop", "parts": {"hots": "x"}}, BadRequest, "unknown fields: hots"),
    ("delete_queued_events", {"dag_id": "daily"}, NotFound, "no queued event of 'daily'"),
    ("materialize", {"asset_id": 99}, NotFound, "no asset '99'"),
    ("list_backfill_dates", {"dag_id": "daily", "backfill_id": 99}, NotFound, "no backfill '99'"),
    ("health", {}, NotServing, "No scheduler"),
    ("create_user", {"name": "eve", "roles": "admin"}, BadRequest, "roles"),
    ("mark_run", {"run": REPORT, "state": "nope"}, BadRequest, "state"),
    ("list_runs", {"state": ("nope",)}, BadRequest, "state"),
    ("list_runs", {"limit": 5000}, BadRequest, "limit"),
    ("clear", {"run": REPORT, "task_ids": ("extract",), "map_index": "null"}, BadRequest, "map_index"),
    ("trigger", {"dag_id": "report", "conf": [1]}, BadRequest, "conf"),
    ("list_runs", {"since": NOON.replace(tzinfo=None)}, BadRequest, "since"),
    ("trigger", {"dag_id": "report", "logical_date": NOON.replace(tzinfo=None)}, BadRequest, "logical_date"),
    ("trigger", {"dag_id": "report", "conf": {"n": float("nan")}}, DagError, "not JSON: it contains the number nan"),
    ("trigger", {"dag_id": "report", "conf": {"at": NOON}}, DagError, "not JSON: it contains a value of type datetime"),
]


async def test_a_result_names_the_run_and_the_task_instance_that_it_tells_of(clients):
    async with clients() as both:
        for client in both:
            run = (await client.list_runs(*REPORT[:1])).items[0]
            assert await client.get_run(run) == await client.get_run(run.key)
            task = (await client.list_tasks(*REPORT, task_id="double")).items[1]
            assert await client.get_task(task) == await client.get_task((*REPORT, "double", task.map_index))
            assert (await client.get_run(task)).run_id == RUN_ID
            for no_run in ("first", REPORT[:1], await client.get_dag("report")):
                with pytest.raises(TypeError, match=r"expected DagRunKey\(dag_id, run_id\), a plain tuple or a result"):
                    await client.get_run(no_run)


async def test_several_values_are_a_list_or_a_tuple(clients):
    async with clients() as both:
        for client in both:
            tasks = [(await client.clear(REPORT, several, dry_run=True)) for several in (["extract"], ("extract",))]
            assert tasks[0] == tasks[1] != ()
            assert await client.list_dags(tags=["etl"]) == await client.list_dags(tags=("etl",))
            assert await client.list_runs(state=["failed"]) == await client.list_runs(state=("failed",))


async def test_both_clients_raise_the_same_errors(clients):
    async with clients() as (here, there):
        for name, arguments, kind, message in REFUSALS:
            for client in (here, there):
                with pytest.raises(kind, match=message):
                    await getattr(client, name)(**arguments)


async def test_an_xcom_that_no_task_could_read_is_refused(clients):
    async with clients() as (here, _):
        with pytest.raises(BadRequest, match=r"'n' of the task 'extract' is too large: 15\.1 MiB of JSON; the limit"):
            await here.set_xcom((*REPORT, "extract"), "n", "x" * 15_800_000)


async def test_what_one_client_does_the_other_sees(clients):
    async with clients() as (here, there):
        for one, other in ((here, there), (there, here)):
            assert (await one.pause("report")).paused
            assert (await other.get_dag("report")).paused
            assert not (await one.unpause("report")).paused
            key = await one.trigger("report", {"n": 1}, note="by hand")
            run = await other.get_run(key)
            assert (run.key, run.state, run.conf, run.note) == (key, "queued", {"n": 1}, "by hand")
            assert run.logical_date is not None
            assert (await one.note_run(key, "noted")).note == "noted"
            assert (await one.note_task((*REPORT, "double", 1), "odd")).note == "odd"
            [note] = (await other.list_audit(run_id=RUN_ID, task_id="double", limit=1)).items
            assert (note.action, note.actor, note.detail) == ("task.note", "ada", {"map_index": 1})
            assert (await other.reparse("report")).file == "report.py"
            assert (await other.await_run(key, 0)).state == "queued"
            assert (await one.cancel(key)).state == "failed"
            await other.delete_run(key)
            undated = await one.trigger("report", run_id="undated", has_logical_date=False)
            assert (await other.get_run(undated)).logical_date is None
            await one.delete_run(undated)
            assert (await one.set_pool("a/b", 3, description="few")).slots == 3
            assert (await other.get_pool("a/b")).description == "few"
            await other.delete_pool("a/b")
            assert (await one.set_variable("of/path", "5")).value == "5"
            assert (await other.get_variable("of/path")).value == "5"
            await other.delete_variable("of/path")
            span = {"from_date": NOON - timedelta(days=3), "to_date": NOON, "max_active_runs": 1}
            planned = await other.plan_backfill("daily", span["from_date"], NOON)
            filled = await one.backfill("daily", **span)
            dates = (await other.list_backfill_dates("daily", filled.id)).items
            assert [date.logical_date for date in dates] == [date.logical_date for date in planned]
            assert [(date.state, date.exception_reason) for date in (*planned, *dates)] == [
                *[(None, None)] * 3, *[("queued", None)] * 3,
            ]  # fmt: skip
            assert (await other.get_backfill("daily", filled.id)).n_queued == 3
            assert (await one.pause_backfill("daily", filled.id)).state == "paused"
            assert (await other.cancel_backfill("daily", filled.id)).state == "cancelled"
            for run in (await other.list_runs("daily", limit=1000)).items:
                await one.delete_run(run.key)
            [orders] = (await one.list_assets(pattern="orders")).items
            event = await one.asset_changed(orders.id, {"rows": 5})
            assert event in (await other.list_asset_events(orders.id)).items
            [queued] = (await other.list_queued_events("waits")).items
            assert (queued.dag_id, queued.asset_id) == ("waits", orders.id)
            assert await one.delete_queued_events("waits", orders.id) >= 1
            assert await other.list_queued_events("waits") == Page(())
            made = await one.materialize(orders.id, {"n": 2})
            assert (made.dag_id, (await other.get_run(made)).conf) == ("report", {"n": 2})
            await one.cancel(made)
            await one.delete_run(made)
            for value in ({"rows": [1, None]}, "text"):
                assert (await one.set_xcom((*REPORT, "double", 1), "a/b", value)).key == "a/b"
                assert (await other.get_xcom((*REPORT, "double", 1), "a/b")).value == value
            await other.delete_xcom((*REPORT, "double", 1), "a/b")
            made = await one.add_connection("shop/db", {"conn_type": "postgres", "password": "hunter22"})
            assert "hunter22" not in repr(made)
            assert made == await other.get_connection("shop/db")
            changed = await other.change_connection("shop/db", {"host": "db2", "password": "***"})
            assert changed == replace(made, host="db2")
            await other.delete_connection("shop/db")
            user = await one.create_user("desk/eve", ("viewer", "team"), password="a long secret")
            assert user in (await other.list_users()).items
            assert (await other.set_user_roles("desk/eve", ("operator",))).roles == ("operator",)
            await one.set_user_password("desk/eve", "another long secret")
            assert await other.list_user_sessions("desk/eve") == await other.list_user_tokens("desk/eve") == Page(())
            assert (await one.disable_user("desk/eve")).roles == (await other.get_user("desk/eve")).roles == ()
            await other.delete_user("desk/eve")
            token = await one.create_token("nightly", scope="operate", dag_ids=("report",), days=1)
            assert token.secret not in repr(token)
            assert (await other.list_tokens()).items == (token.info,)
            await other.revoke_token(token.info.id)
            assert await one.list_tokens() == Page(())
        assert [task.state for task in await here.mark(FAILS, ("broken",), "success")] == ["failed"]
        assert [task.state for task in await there.mark(FAILS, ("broken",), "failed")] == ["success"]
        assert (await here.mark_run(FAILS, "success")).state == (await there.get_run(FAILS)).state == "success"
        assert (await here.force((*FAILS, "after"), ignore_all=True)).state is None
        assert (await there.get_run(FAILS)).state == "queued"
        [question] = (await there.list_questions("asks")).items
        assert (question.subject, question.options) == ("Deploy?", ["Approve", "Reject"])
        await there.answer((*ASKS, "approve"), ("Approve",), params={"why": "tested"})
        assert (await here.list_questions("asks")).items == ()
        actions = [act.action for act in (await here.list_audit(limit=1000)).items]
        assert {"dag.pause", "dag.trigger", "run.cancel", "pool.set", "variable.delete"} <= set(actions)
        assert {"task.run", "task.answer"} <= set(actions)


async def test_deadlines_are_found_by_their_dag_their_state_and_their_time(clients, site):
    rows = (("early", -1, "missed"), ("late", 400_000, "pending"))
    run = await site.database.read(get_run, *REPORT)
    for number, (name, hours, state) in enumerate(rows):
        row = DeadlineRow(
            dag_run_id=run.id, number=number, name=name, due_at=NOON + timedelta(hours=hours), state=state
        )
        await site.database.write(lambda conn, row: conn.execute(deadline.insert(), as_new(row)), row)
    async with clients() as both:
        for client in both:
            found = (await client.list_deadlines("report")).items
            # The run has succeeded before the later one is due.
            assert [(one.name, one.state) for one in found] == [("late", "met"), ("early", "missed")]
            assert (await client.list_deadlines(state=("missed",), until=NOON)).items == found[1:]
            assert (await client.list_deadlines("report", "other")).items == ()
            assert await client.get_deadline(REPORT, 1) == found[0]


async def test_a_user_sees_and_does_only_what_they_may(clients):
    access = Known()
    access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"report": Permission.OPERATE})
    async with clients(access) as (_, there):
        assert [dag.dag_id for dag in (await there.list_dags()).items] == ["report"]
        assert {run.dag_id for run in (await there.list_runs()).items} == {"report"}
        assert {task.dag_id for task in (await there.list_tasks()).items} == {"report"}
        assert {act.dag_id for act in (await there.list_audit()).items} <= {"report"}
        await there.trigger("report")
        span = {"start": NOON, "end": NOON + timedelta(days=1), "unpause": True}
        found = await there.simulate(**span)
        assert (found.dags, found.runs, found.problems, found.n_runs) == ((), (), (), 0)
        for call in (there.get_run(FAILS), there.why("fails"), there.set_pool("p", 1), there.list_users()):
            with pytest.raises(RemoteError) as refused:
                await call
            assert refused.value.status == 403


async def test_both_clients_give_the_events_of_a_run_and_wait_for_its_end(clients):
    async with clients(has_feed=True) as (here, there):
        with anyio.fail_after(60):
            async with aclosing(here.events(0, dag_id="fails")) as ours, aclosing(there.events(0)) as theirs:
                async with anyio.create_task_group() as tasks:
                    waited = []

                    async def wait(client, key):
                        waited.append((await client.wait_run(key)).state)

                    first = await anext(theirs)
                    assert isinstance(first, Change | Missed)
                    key = await here.trigger("fails")
                    for client in (here, there):
                        tasks.start_soon(wait, client, key)
                    await here.cancel(key)
                assert waited == ["failed", "failed"]
                states = []
                while states[-1:] != ["failed"]:
                    event = await anext(ours)
                    if isinstance(event, Change) and (event.kind, event.run_id) == ("run", key.run_id):
                        states.append(event.state)
                assert states == ["queued", "failed"]


async def test_a_run_is_waited_for_where_the_process_reads_no_changes(clients, monkeypatch):
    monkeypatch.setattr("asynsched.queries.run_actions.LOOK_INTERVAL", timedelta(milliseconds=10))
    async with clients() as (here, there):
        key = await here.trigger("report", run_id="awaited")
        wait = there.remote._http.base_url.join("/api/v2/dags/report/dagRuns/awaited/wait")
        with anyio.fail_after(60):
            async with httpx.AsyncClient() as http, http.stream("GET", wait, params={"interval": 60}) as answer:
                lines = answer.aiter_lines()
                assert (answer.status_code, await anext(lines)) == (200, '{"state":"queued"}')
                await here.cancel(key)
                assert [line async for line in lines] == ['{"state":"failed"}']
            assert [(await client.wait_run(key)).state for client in (here, there)] == ["failed", "failed"]


async def test_a_run_is_waited_for_while_the_application_or_its_database_is_away(clients, monkeypatch):
    monkeypatch.setattr("asynsched.client.client.RETRY_PAUSE", timedelta())
    async with clients() as (here, _):
        ended = await here.get_run(FAILS)
    running, ended = (
        httpx.Response(200, content=msgspec.json.encode(replace(ended, state=state))) for state in ("running", "failed")
    )
    gone = httpx.Response(404, json={"detail": "There is no run."}, headers={ERROR_HEADER: "NotFound"})
    no_database = httpx.Response(503, json={"detail": "away"}, headers={ERROR_HEADER: "StoreUnavailable"})
    no_answer = httpx.ConnectError("connection refused")
    answers = [running, no_answer, httpx.Response(502), no_database, running, ended, running, gone, no_answer]

    def answer(_request: httpx.Request) -> httpx.Response:
        found = answers.pop(0)
        if isinstance(found, httpx.Response):
            return found
        raise found

    async with Client("http://there", transport=httpx.MockTransport(answer)) as there:
        assert (await there.wait_run(FAILS)).state == "failed"
        with pytest.raises(NotFound):
            await there.wait_run(FAILS)
        with pytest.raises(RemoteError, match="refused"):
            await there.wait_run(FAILS)


async def test_the_stream_goes_on_after_the_last_event_that_a_reader_has_had(clients, site):
    async with clients(has_feed=True) as (_, there):
        numbers = []
        async with aclosing(there.events(0)) as events:
            while len(numbers) < 3:
                event = await anext(events)
                if isinstance(event, Change):
                    numbers.append(event.number)
        async with aclosing(there.events(numbers[0])) as events:
            assert [(await anext(events)).number for _ in range(2)] == numbers[1:]


async def test_a_stream_ends_with_the_rights_of_its_reader(clients, monkeypatch):
    monkeypatch.setattr(streams, "RENEWAL", timedelta(milliseconds=50))
    access = Known()
    async with clients(access, has_feed=True) as (_, there), aclosing(there.events(0)) as events:
        await anext(events)
        access.identify = AsyncMock(side_effect=NotSignedIn)
        with pytest.raises(RemoteError, match="Sign in"):
            async for _ in events:
                pass


async def test_a_reader_without_events_learns_up_to_which_number_there_are_none(clients, site, monkeypatch):
    monkeypatch.setattr(event_stream, "PAUSE_SECONDS", 0.05)
    newest = (await site.database.read_at_once(stored_numbers)).newest
    access = Known()
    for of_dags in ({}, {"nothing": Permission.VIEW}):
        access.who = Identity(name="bob", permission=Permission.VIEW, of_dags=of_dags)
        async with (
            clients(access, has_feed=True) as (_, there),
            httpx.AsyncClient(base_url=there.remote._http.base_url) as http,
            http.stream("GET", "/events", params={"since": 0}) as answer,
        ):
            lines = answer.aiter_lines()
            while (line := await anext(lines)) != f"id: {newest}":
                assert not line.startswith("data")


async def test_an_id_that_would_lead_to_another_address_is_refused(clients):
    async with clients() as (here, there):
        for run_id in (".", ".."):
            with pytest.raises(BadRequest, match="cannot be a part of an address"):
                await there.delete_run(DagRunKey("fails", run_id))
            with pytest.raises(DagError, match="is not valid"):
                await here.trigger("fails", run_id=run_id)


async def test_a_reader_goes_on_while_the_application_restarts_even_before_any_event(monkeypatch):
    monkeypatch.setattr("asynsched.client.remote.RECONNECT", timedelta())
    change = Change(number=8, at=NOON, kind="run", dag_id="d", run_id="r\x85\u2028", state="queued")
    answers = iter([(200, b"id: 7\n\n"), (503, b"starting"), (200, encoded(change)), (401, b"")])
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        status, content = next(answers)
        return httpx.Response(status, content=content)

    async def read(client: Client) -> None:
        async for event in client.events():
            found.append(event)

    found = []
    async with Client("http://there", transport=httpx.MockTransport(answer)) as there:
        with pytest.raises(RemoteError):
            await read(there)
    assert (found, asked) == ([change], [None, "7", "7", "8"])


async def test_a_simulation_runs_beside_the_loop_and_is_bounded(clients, monkeypatch):
    async with clients() as (here, there):
        span = {"start": NOON, "end": NOON + timedelta(days=3), "unpause": True, "duration": 60.0}
        found = await there.simulate(**span)
        assert found == await here.simulate(**span)
        assert (found.n_runs, [dag.dag_id for dag in found.dags]) == (3, ["daily"])
        assert [problem.file for problem in found.problems] == ["broken.py"]
        monkeypatch.setattr("asynsched.queries.turns.MOST_WAITING", 0)
        with pytest.raises(AsynschedError, match="Too many simulations"):
            await there.simulate(**span)


async def test_a_commit_is_previewed(clients, site, tmp_path):
    dags = shutil.copytree(site.settings.dags_folder, tmp_path / "repository")
    site.settings = replace(site.settings, dags_folder=str(dags))
    author = ("-c", "user.name=ada", "-c", "user.email=ada@shop.example")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "all")):
        await anyio.run_process(["git", *words], cwd=dags)
    async with clients() as (here, there):
        found = [replace(await client.preview("HEAD", hours=0), at=NOON) for client in (here, there)]
    assert found[0] == found[1]
    assert [failing.file for failing in found[0].failing] == ["broken.py"]


async def test_an_empty_token_is_none():
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"detail": request.headers.get("Authorization", "no token")})

    async with Client("http://there", token="", transport=httpx.MockTransport(answer)) as there:
        with pytest.raises(RemoteError, match="no token"):
            await there.list_dags()


def test_a_client_of_another_process_says_what_to_install_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "asynsched.client.remote")
    with pytest.raises(ImportError, match=r"httpx\): pip install 'asynsched\[client\]'"):
        Client("http://there")


def test_every_operation_has_a_test_and_says_what_it_does():
    tested = set(QUESTIONS) | {name for name, *_ in REFUSALS} | {
        "pause", "unpause", "note_run", "delete_run", "set_pool", "delete_pool", "set_variable", "delete_variable",
        "add_connection", "delete_connection", "mark_run", "backfill", "get_backfill", "pause_backfill",
        "cancel_backfill", "asset_changed", "create_token", "set_user_roles", "disable_user", "delete_user", "reparse",
        "set_user_password", "list_user_sessions", "list_user_tokens",
    }  # fmt: skip
    assert set(OPERATIONS) <= tested
    for operation in OPERATIONS.values():
        assert operation.function.__doc__, operation.name
        assert operation.fields.keys() >= operation.in_path, operation.name


async def test_the_document_has_every_request_with_examples_that_fit(site):
    document = (await site.client.get(f"{PREFIX}/openapi.json")).json()
    requests = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert len(requests) == len(OPERATIONS) + 1, "and the stream of events"
    for operation in OPERATIONS.values():
        for name, value in operation.arguments.items():
            msgspec.convert(value, operation.fields[name][0])
        needed = {name for name, (_, default) in operation.fields.items() if default is inspect.Parameter.empty}
        assert needed <= set(operation.arguments), operation.name
        if operation.answer is not msgspec.UNSET:
            msgspec.convert(operation.answer, operation.result)
    run = document["components"]["schemas"]["RunInfo"]["properties"]
    assert run["run_after"]["format"] == run["logical_date"]["anyOf"][0]["format"] == "date-time"
    instants = {
        (name, field): _formats(kind)
        for name, struct in document["components"]["schemas"].items()
        for field, kind in struct.get("properties", {}).items()
        if field.endswith("_at")
    }
    assert {formats == {"date-time"} for formats in instants.values()} == {True}, instants
    pool = document["components"]["schemas"]["PoolInfo"]
    assert (pool["description"], pool["properties"]["slots"]["description"]) == (
        "A pool, and its slots.",
        "-1: no limit.",
    )


def _formats(kind: dict) -> set[str | None]:
    """Return the formats of the texts that a schema allows."""
    return {one.get("format") for one in kind.get("anyOf", [kind]) if one.get("type") == "string"}


async def test_a_simulation_does_not_tell_of_dags_that_its_reader_may_not_see(clients):
    access = Known()
    access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    async with clients(access) as (_, there):
        for hidden in ("report", "repor"):
            with pytest.raises(NotFound) as refused:
                await there.simulate(NOON, NOON + timedelta(hours=1), dag_id=hidden)
            assert "report" not in str(refused.value).replace(f"'{hidden}'", "")
