"""The requests that tries may make to the scheduler, and for which task instances."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from asynsched.channels import TaskReady
from asynsched.clock import VirtualClock
from asynsched.executors import requests
from asynsched.executors.requests import RequestAnswerer
from asynsched.protocol.messages import CodeVersion, Launch, Request, RunContext
from asynsched.states import DagRunState, DagRunType
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.xcoms import put_xcom
from asynsched.store.schema import DagRunRow, TaskStateRow, XComRow, dag_run, task_instance, task_state_store, xcom
from asynsched.store.state_stores import put_task_state
from tests.support.runs import NOON

HOUR = timedelta(hours=1)
OPERATIONS = sorted(requests._OPERATIONS)
"""Taken from there, so that one that is added is tried, too."""


@pytest.fixture
async def database():
    database = open_inline()
    yield database
    await database.close()


async def a_run(database: Any, dag_id: str) -> int:
    """Store a run with a task that the try `token` runs, and with one value; return its row id."""
    run = DagRunRow(
        dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING, logical_date=NOON,
        data_interval_start=NOON, data_interval_end=NOON, run_after=NOON, queued_at=NOON, conf={},
    )  # fmt: skip
    row_id = await database.write(insert_run, run)
    row = sa.insert(task_instance).values(dag_run_id=row_id, task_id="t", map_index=-1, token="token", pool="narrow")
    await database.write(lambda conn: conn.execute(row))
    await database.write(put_xcom, XComRow(row_id, "t", -1, "k", b'"as it was"', NOON))
    await database.write(put_task_state, TaskStateRow(row_id, "t", -1, "k", b'"as it was"', NOON))
    return row_id


def rows(conn: Any) -> dict[str, list[tuple[Any, ...]]]:
    tables = dag_run, task_instance, xcom, task_state_store
    return {table.name: [tuple(row) for row in conn.execute(sa.select(table))] for table in tables}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_whatever_run_a_try_names_it_writes_values_of_its_own_instance_only(database, operation):
    own, other = await a_run(database, "own"), await a_run(database, "other")
    launch = Launch("token", "t", -1, 1, 0, RunContext("own", "r", "manual", NOON), CodeVersion("", ""), "log")
    before = await database.read(rows)
    names_another = {
        "key": "k", "value": "forged", "dag_id": "other", "run_id": "r", "run": other, "dag_run_id": other,
        "task_id": "t", "map_index": -1, "token": "another", "conn_id": "k", "name": "k", "offset": 0, "limit": 1,
        "map_indexes": None, "before": NOON.isoformat(), "uri": "", "seconds": None,
    }  # fmt: skip
    answerer = RequestAnswerer(database, VirtualClock(NOON))
    reply = await answerer.answer(Request("token", 1, operation, names_another), TaskReady(own, launch))
    after = await database.read(rows)
    if operation == "xcom_push":
        assert not reply.error
        before["xcom"] = [(*row[:-2], b'"forged"', row[-1]) if row[0] == own else row for row in before["xcom"]]
    if operation == "xcom_delete":
        before["xcom"] = [row for row in before["xcom"] if row[0] != own]
    if operation == "task_state_set":
        [mine, *others] = before["task_state_store"]
        before["task_state_store"] = [(*mine[:4], b'"forged"', *mine[5:]), *others]
    if operation in ("task_state_delete", "task_state_clear"):
        del before["task_state_store"][0]
    assert after == before


@pytest.mark.parametrize("table", [xcom, task_state_store])
@pytest.mark.parametrize(
    ("token", "error"),
    [("token", ""), ("callback-1", ""), ("before", "the task instance was cleared, and goes on without this try")],
)
async def test_a_try_that_was_cleared_and_has_not_ended_yet_pushes_no_value(database, token, error, table):
    own = await a_run(database, "own")
    launch = Launch(token, "t", -1, 1, 0, RunContext("own", "r", "manual", NOON), CodeVersion("", ""), "log")
    answerer, pushed = RequestAnswerer(database, VirtualClock(NOON)), {"key": "k", "value": "late"}
    operation = "xcom_push" if table is xcom else "task_state_set"
    reply = await answerer.answer(Request(token, 1, operation, pushed), TaskReady(own, launch))
    assert reply.error == (error and f"{operation}: {error}")
    stored = await database.read(lambda conn: conn.scalars(sa.select(table.c.value)).all())
    assert stored == [b'"as it was"' if error else b'"late"']


async def test_a_try_reads_what_it_names_as_in_airflow(database):
    own = await a_run(database, "own")
    await a_run(database, "other")
    launch = Launch("token", "t", -1, 1, 0, RunContext("own", "r", "manual", NOON), CodeVersion("", ""), "log")
    answerer = RequestAnswerer(database, VirtualClock(NOON))
    asked = {"key": "k", "dag_id": "other", "run_id": "r", "task_ids": ["t"]}
    reply = await answerer.answer(Request("token", 1, "xcom_pull", asked), TaskReady(own, launch))
    assert msgspec.json.decode(msgspec.json.encode(reply.value)) == {"found": [["t", -1, "as it was"]], "place": None}


async def test_values_of_earlier_runs_end_at_the_date_of_the_run_that_is_named(database):
    at = {"first": (NOON, 0), "undated": (None, 1), "own": (None, 2), "dated": (NOON + 3 * HOUR, 9), "late": (None, 9)}
    ids = {}
    for run_id, (date, hours) in at.items():
        run = DagRunRow(
            dag_id="d", run_id=run_id, run_type=DagRunType.MANUAL, state=DagRunState.RUNNING, logical_date=date,
            run_after=NOON + hours * HOUR, queued_at=NOON, conf={},
        )  # fmt: skip
        ids[run_id] = await database.write(insert_run, run)
        if run_id != "own":
            await database.write(put_xcom, XComRow(ids[run_id], "t", -1, "k", b'"%b"' % run_id.encode(), NOON))
    context = RunContext("d", "own", "manual", NOON + 2 * HOUR)
    ready = TaskReady(ids["own"], Launch("token", "t", -1, 1, 0, context, CodeVersion("", ""), "log"))
    answerer, found = RequestAnswerer(database, VirtualClock(NOON)), {}
    for run_id in [None, *at]:
        asked = {"key": "k", "task_ids": ["t"], "include_prior_dates": True, "run_id": run_id}
        reply = await answerer.answer(Request("token", 1, "xcom_pull", asked), ready)
        [[_, _, found[run_id]]] = msgspec.json.decode(msgspec.json.encode(reply.value))["found"]
    assert found == {
        None: "undated", "own": "undated", "first": "first", "undated": "undated", "dated": "dated", "late": "late",
    }  # fmt: skip
    await database.write(put_xcom, XComRow(ids["own"], "t", -1, "new", b"1", NOON))
    for elsewhere in ({"run_id": "first"}, {"dag_id": "other"}):
        asked = {"key": "new", "task_ids": ["t"], "include_prior_dates": True, **elsewhere}
        assert not (await answerer.answer(Request("token", 2, "xcom_pull", asked), ready)).found, "it is of the own run"
