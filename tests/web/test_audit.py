"""Each action that somebody does from outside leaves an entry in the audit, with the name of that user."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from asynsched.client.client import LocalClient
from asynsched.client.operation import OPERATIONS
from asynsched.clock import Clock
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.context import QueryContext
from asynsched.queries.users import Issuer, create_token_of, sign_in
from asynsched.store.schema import dag
from asynsched.store.users import find_user
from tests.support.stored import list_audit
from tests.web.filling import RUN_ID

FAILS, MADE = DagRunKey("fails", RUN_ID), DagRunKey("report", "made")
BROKEN, EXTRACT = TaskInstanceKey(*FAILS, "broken"), TaskInstanceKey("report", RUN_ID, "extract")
ASKED = TaskInstanceKey("asks", RUN_ID, "approve")
NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
Given = Mapping[str, Any]
"""The names and numbers of what the test has stored, and the last answer of each method."""
STEPS: list[tuple[str, str, Callable[[Given], dict[str, Any]]]] = [
    ("reparse", "file.parse", lambda _: {"dag_id": "report"}),
    ("pause", "dag.pause", lambda _: {"dag_id": "report"}),
    ("unpause", "dag.unpause", lambda _: {"dag_id": "report"}),
    ("trigger", "dag.trigger", lambda _: {"dag_id": "report", "run_id": "made"}),
    ("note_run", "run.note", lambda _: {"run": MADE, "text": "odd"}),
    ("cancel", "run.cancel", lambda _: {"run": MADE}),
    ("delete_run", "run.delete", lambda _: {"run": MADE}),
    ("note_task", "task.note", lambda _: {"task": BROKEN, "text": "odd"}),
    ("mark", "task.mark", lambda _: {"run": FAILS, "task_ids": ("broken",), "state": "success"}),
    ("mark_run", "run.mark", lambda _: {"run": FAILS, "state": "success"}),
    ("clear", "task.clear", lambda _: {"run": FAILS, "task_ids": ("broken",)}),
    ("clear", "run.clear", lambda _: {"run": FAILS}),
    ("force", "task.run", lambda _: {"task": BROKEN, "ignore_all": True}),
    ("answer", "task.answer", lambda _: {"task": ASKED, "options": ("Approve",)}),
    ("set_xcom", "xcom.create", lambda _: {"task": EXTRACT, "key": "n", "value": 1}),
    ("set_xcom", "xcom.change", lambda _: {"task": EXTRACT, "key": "n", "value": 2}),
    ("delete_xcom", "xcom.delete", lambda _: {"task": EXTRACT, "key": "n"}),
    ("backfill", "backfill.create", lambda _: {
        "dag_id": "daily", "from_date": NOON - timedelta(days=3), "to_date": NOON,
    }),
    ("pause_backfill", "backfill.pause", lambda given: {"dag_id": "daily", "backfill_id": given["backfill"].id}),
    ("pause_backfill", "backfill.unpause", lambda given: {
        "dag_id": "daily", "backfill_id": given["backfill"].id, "paused": False,
    }),
    ("cancel_backfill", "backfill.cancel", lambda given: {"dag_id": "daily", "backfill_id": given["backfill"].id}),
    ("asset_changed", "asset.event", lambda given: {"asset_id": given["asset_id"]}),
    ("materialize", "dag.trigger", lambda given: {"asset_id": given["asset_id"]}),
    ("delete_queued_events", "asset.unqueue", lambda _: {"dag_id": "waits"}),
    ("set_pool", "pool.set", lambda _: {"name": "db", "slots": 3}),
    ("delete_pool", "pool.delete", lambda _: {"name": "db"}),
    ("set_variable", "variable.set", lambda _: {"key": "region", "value": "eu"}),
    ("delete_variable", "variable.delete", lambda _: {"key": "region"}),
    ("add_connection", "connection.add", lambda _: {"conn_id": "db", "parts": {"conn_type": "http"}}),
    ("change_connection", "connection.set", lambda _: {"conn_id": "db", "parts": {"host": "db2"}}),
    ("delete_connection", "connection.delete", lambda _: {"conn_id": "db"}),
    ("create_user", "user.create", lambda _: {"name": "bob", "roles": ("viewer",), "password": "a long secret"}),
    ("set_user_roles", "user.set_role", lambda _: {"name": "bob", "roles": ("operator",)}),
    ("set_user_password", "user.set_password", lambda _: {"name": "bob", "password": "another secret"}),
    ("end_user_session", "user.end_session", lambda given: {"name": "eve", "session_id": given["session_id"]}),
    ("end_user_token", "token.delete", lambda given: {"name": "eve", "token_id": given["token_id"]}),
    ("disable_user", "user.disable", lambda _: {"name": "bob"}),
    ("delete_user", "user.delete", lambda _: {"name": "bob"}),
    ("end_session", "user.end_session", lambda given: {"session_id": given["own_session_id"]}),
    ("create_token", "token.create", lambda _: {}),
    ("revoke_token", "token.delete", lambda given: {"token_id": given["create_token"].info.id}),
    ("delete_dag", "dag.delete", lambda _: {"dag_id": "daily"}),
]  # fmt: skip
"""The actions in the order in which they are done: the method, its name in the audit, and its arguments."""
QUESTIONS = {"plan_backfill", "simulate", "preview"}
"""Requests with a body that change nothing."""


async def test_each_action_of_a_user_is_in_the_audit(site):
    context = QueryContext(site.database, site.settings.home_path, site.settings, Clock())
    client = LocalClient(lambda: context, "ada", issuer=Issuer("ada", None, "administer"))
    given: dict[str, Any] = await _prepared(client, site.database)
    for name, action, arguments in STEPS:
        if name == "delete_dag":
            await site.database.write(_leave_file, "daily")
            for run in (await client.list_runs("daily", limit=1000)).items:
                await client.delete_run(run.key)
        before = len(await site.database.read(list_audit))
        given[name] = await getattr(client, name)(**arguments(given))
        acts = await site.database.read(list_audit)
        assert [(act.actor, act.action) for act in acts[: len(acts) - before]] == [("ada", action)], name


def test_each_method_that_changes_something_is_tried():
    changing = {name for name, operation in OPERATIONS.items() if operation.method != "GET"}
    assert changing == QUESTIONS | {name for name, _, _ in STEPS}


async def _prepared(client: LocalClient, database) -> dict[str, Any]:
    """Store what the actions need beside the filled database, and return its numbers."""
    lasts: dict[str, Any] = {"now": datetime.now(UTC), "lasts": timedelta(days=1)}
    await client.create_user("eve", ("viewer",))
    await database.write(create_token_of, "eve", "a token", scope="view", dag_ids=None, **lasts)
    row = await database.read(find_user, "eve")
    await database.write(sign_in, "of eve", "eve", user_id=row.id, **lasts)
    await database.write(sign_in, "of ada", "ada", user_id=None, **lasts)
    [orders] = (await client.list_assets(pattern="orders")).items
    return {
        "asset_id": orders.id,
        "session_id": (await client.list_user_sessions("eve")).items[0].id,
        "token_id": (await client.list_user_tokens("eve")).items[0].id,
        "own_session_id": (await client.list_sessions()).items[0].id,
    }


def _leave_file(conn: sa.Connection, dag_id: str) -> None:
    conn.execute(sa.update(dag).where(dag.c.dag_id == dag_id).values(is_active=False))
