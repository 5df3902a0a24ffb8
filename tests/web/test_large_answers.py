"""Answers with thousands of parts do not hold up the event loop, and lists come in pages."""

import sys

import pytest
import sqlalchemy as sa

from asynsched.client.operation import PREFIX
from asynsched.store.schema import dag_run, task_instance
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
    if site.database.is_shared:
        pytest.skip("PostgreSQL's driver makes the rows on the event loop")
    for module in (run_changes, task_changes):
        monkeypatch.setattr(module, "MOST_ROWS", 10)
    await site.database.write(add_instances)
    method, path, body = ACTIONS[name]
    with CallsOfTheLoop() as calls:
        answer = await site.client.request(method, path, json=body | ({} if method == "PATCH" else {"dry_run": True}))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["total_entries"] if isinstance(found, dict) else len(found)) > MANY
    assert calls.n < MANY
