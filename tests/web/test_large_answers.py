"""Answers with thousands of parts do not hold up the event loop, and lists come in pages."""

import sys
from datetime import UTC, datetime, timedelta
from typing import get_origin

import httpx
import pytest
import sqlalchemy as sa

from asynsched.client.client import Client, LocalClient
from asynsched.client.operation import OPERATIONS, PREFIX
from asynsched.clock import Clock
from asynsched.queries.context import QueryContext
from asynsched.queries.users import Issuer
from asynsched.store.rows import as_new
from asynsched.store.schema import (
    CallbackRequest,
    TokenRow,
    asset_dag_run_queue,
    asset_event,
    backfill_dag_run,
    callback_request,
    dag_run,
    task_instance,
    token,
)
from asynsched.web.airflow_api import run_changes, task_changes
from tests.support.history import numbers
from tests.web.filling import RUN_ID

MANY = 5000
ACTIONS = {
    "own mark": ("POST", f"{PREFIX}/dags/fails/runs/{RUN_ID}/tasks/mark", {"task_ids": ["broken"], "state": "success"}),
    "own clear": ("POST", f"{PREFIX}/dags/fails/runs/{RUN_ID}/clear", {}),
    "mark": ("PATCH", f"/api/v2/dags/fails/dagRuns/{RUN_ID}/taskInstances/broken/dry_run", {"new_state": "success"}),
    "clear": ("POST", "/api/v2/dags/fails/clearTaskInstances", {"dag_run_id": RUN_ID}),
    "clear of a run": ("POST", f"/api/v2/dags/fails/dagRuns/{RUN_ID}/clear", {}),
}
"""Requests that say which task instances an action would change."""


def add_instances(conn: sa.Connection) -> None:
    """Give the failed task thousands of instances, as if it were mapped."""
    number, instance = numbers(MANY), task_instance.c
    run = sa.select(dag_run.c.id).where(dag_run.c.dag_id == "fails").scalar_subquery()
    names = [column.name for column in instance if column.name not in ("id", "map_index")]
    copied = sa.select(*(instance[name] for name in names), number.c.n).select_from(
        task_instance.join(number, sa.true())
    )
    of_task = copied.where(instance.dag_run_id == run, instance.task_id == "broken", instance.map_index == -1)
    conn.execute(sa.insert(task_instance).from_select([*names, "map_index"], of_task))


class CallsOfTheLoop:
    """Counts the calls that the event loop's thread makes."""

    def __init__(self) -> None:
        self.n = 0

    def __enter__(self) -> "CallsOfTheLoop":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _frame: object, event: str, _argument: object) -> None:
        self.n += event in ("call", "c_call")


@pytest.mark.parametrize("name", ACTIONS)
async def test_the_loop_works_little_for_thousands_of_changed_instances(site, name, monkeypatch):
    for module in (run_changes, task_changes):
        monkeypatch.setattr(module, "MOST_ROWS", 10)
    await site.database.write(add_instances)
    method, path, body = ACTIONS[name]
    with CallsOfTheLoop() as calls:
        answer = await site.client.request(method, path, json=body | ({} if method == "PATCH" else {"dry_run": True}))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["total_entries"] if isinstance(found, dict) else len(found)) > MANY
    assert calls.n < MANY or site.database.is_shared  # PostgreSQL's driver makes the rows on the loop


SMALL = {"upcoming", "rendered_fields", "links", "list_schedulers", "list_plugins", "list_providers"}
"""Methods whose answers are bounded by something other than a page."""


def test_an_answer_that_has_no_pages_is_encoded_beside_the_loop_or_bounded():
    whole = {name for name, one in OPERATIONS.items() if get_origin(one.types["return"]) in (tuple, dict)}
    assert {name for name in whole if not OPERATIONS[name].is_large} == SMALL


NOW, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
LISTED = 1200


def add_listed(conn: sa.Connection, backfill_id: int) -> None:
    """Store more of each thing than a page holds."""
    run_id = conn.scalar(sa.select(dag_run.c.id).where(dag_run.c.dag_id == "fails"))
    event_id = conn.scalar(sa.select(sa.func.max(asset_event.c.id)))
    for number in range(LISTED):
        request = CallbackRequest(dag_run_id=run_id, try_number=100 + number, event="on_retry", created_at=NOW)
        conn.execute(callback_request.insert(), as_new(request))
        conn.execute(
            asset_dag_run_queue.insert(), {"dag_id": f"waiting-{number % 700}", "event_id": event_id - number // 700}
        )
        at = NOW + timedelta(minutes=number + 1)
        date = {"backfill_id": backfill_id, "logical_date": at, "sort_ordinal": 100 + number}
        conn.execute(backfill_dag_run.insert(), date)
        for kind in ("session", "personal"):
            row = TokenRow(digest=f"{kind}-{number}", kind=kind, owner="ada", created_at=NOW, expires_at=LATER)
            conn.execute(token.insert(), as_new(row))


async def test_the_pages_of_a_long_list_hold_each_row_once(site):
    transport = httpx.ASGITransport(site.client._transport.app)
    context = QueryContext(site.database, site.settings.home_path, site.settings, Clock())
    here = LocalClient(lambda: context, "ada", issuer=Issuer("ada", None, "administer"))
    filled = await here.backfill("daily", NOW, NOW)
    await site.database.write(add_listed, filled.id)
    lists = {
        "list_callbacks": {"run": ("fails", RUN_ID)}, "list_queued_events": {}, "list_sessions": {}, "list_tokens": {},
        "list_backfill_dates": {"dag_id": "daily", "backfill_id": filled.id}, "list_user_sessions": {"name": "ada"},
        "list_user_tokens": {"name": "ada"},
    }  # fmt: skip
    async with Client("http://testserver", transport=transport) as there:
        for name, arguments in lists.items():
            for client in (here, there):
                rows, after = [], None
                while len(rows) == 0 or after is not None:
                    page = await getattr(client, name)(**arguments, limit=700, after=after)
                    rows, after = [*rows, *page.items], page.after
                assert len(set(rows)) == len(rows) >= LISTED, name
