"""Runs and their parts: stored once, listed for readers, changed by guarded batches, deleted together."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from asynsched import DAG
from asynsched.errors import AlreadyExists, StoreError
from asynsched.queries.runs import Progress, count_progress
from asynsched.states import DagRunState, DagRunType
from asynsched.store.dags.dags import add_versions
from asynsched.store.runs.callbacks import finish_callback, next_callbacks, take_callback
from asynsched.store.runs.dag_runs import (
    count_active_runs,
    count_ended_since,
    end_queued_run,
    failed_since,
    free_run_id,
    get_run,
    insert_run,
    last_scheduled_intervals,
    last_scheduled_run,
    list_runs,
    previous_run,
    run_of_date,
)
from asynsched.store.runs.pools import list_pools, set_pool
from asynsched.store.runs.states_elsewhere import TaskFilter, states_by_run
from asynsched.store.runs.task_instances import list_task_instances, list_tries, load_task_instances
from asynsched.store.runs.transitions import Batch, RunWrite, Stale, TaskWrite, XComWrite, apply
from asynsched.store.runs.xcoms import get_xcoms, newest_run_with_xcom, put_xcom, put_xcom_of_try, some_xcoms
from asynsched.store.schema import CallbackRequest, DagRunRow, DagVersionRow, HistoryRow, XComRow, xcom
from tests.support.stored import store_dag

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)


def new_run(run_id: str = "r1", dag_id: str = "d", **fields: Any) -> DagRunRow:
    date = fields.pop("logical_date", NOW)
    fields = {"run_type": DagRunType.SCHEDULED, "state": DagRunState.QUEUED, "conf": {"a": [1, "€"]}} | fields
    return DagRunRow(
        dag_id=dag_id, run_id=run_id, logical_date=date, data_interval_start=date,
        data_interval_end=date and date + DAY, run_after=fields.pop("run_after", NOW), queued_at=NOW, **fields,
    )  # fmt: skip


def task(run: int, task_id: str, state: str | None, **fields: Any) -> TaskWrite:
    values = dict.fromkeys(TaskWrite.__struct_fields__) | {
        "dag_run_id": run, "task_id": task_id, "map_index": -1, "state": state, "reason": "", "try_number": 0,
        "before_try": 0, "max_tries": 0, "machine_kills": 0, "priority_weight": 1, "pool": "default_pool",
        "pool_slots": 1, "queue": "default",
    }  # fmt: skip
    return TaskWrite(**(values | fields))


def history(run: int, task_id: str, **fields: Any) -> HistoryRow:
    times = dict.fromkeys(("scheduled_at", "queued_at", "started_at", "ended_at"), NOW)
    values = {"map_index": -1, "try_number": 1, "state": "failed", "reason": "", "token": "t"} | times
    return HistoryRow(dag_run_id=run, task_id=task_id, **(values | fields))


async def test_a_run_is_stored_once_whatever_is_asked(database):
    row_id = await database.write(insert_run, new_run())
    run = await database.read(get_run, "d", "r1")
    assert (run.id, run.state, run.run_type, run.logical_date) == (row_id, "queued", "scheduled", NOW)
    assert (run.conf, run.version_id, run.data_interval_end) == ({"a": [1, "€"]}, None, NOW + DAY)
    for same in (new_run(logical_date=NOW + DAY), new_run("r2")):
        with pytest.raises(AlreadyExists, match="The DAG 'd' has a run"):
            await database.write(insert_run, same)

    def insert_all(conn: Any) -> None:
        with pytest.raises(AlreadyExists):
            insert_run(conn, new_run())
        insert_run(conn, new_run("r3", logical_date=None))
        insert_run(conn, new_run("r4", logical_date=None))

    await database.write(insert_all)
    assert [run.run_id for run in await database.read(list_runs)] == ["r4", "r3", "r1"]


async def test_runs_are_listed_newest_first_and_chosen_by_dag_and_state(database):
    for number, dag_id in enumerate(("d", "e", "d")):
        run = new_run(f"r{number}", dag_id, logical_date=NOW + number * DAY, run_after=NOW - number * DAY)
        await database.write(insert_run, run)
    ended = await database.read(get_run, "e", "r1")
    assert await database.write(end_queued_run, ended.id, DagRunState.FAILED, "cancelled", NOW)
    assert not await database.write(end_queued_run, ended.id, DagRunState.FAILED, "again", NOW)
    assert await database.read(count_ended_since, NOW) == {"failed": 1}
    assert [run.run_id for run in await database.read(failed_since, NOW, limit=1)] == ["r1"]
    assert await database.read(count_ended_since, NOW + timedelta(microseconds=1)) == {}
    assert await database.read(failed_since, NOW + timedelta(microseconds=1), limit=1) == []
    assert (await database.read(get_run, "e", "r1")).reason == "cancelled"
    assert [run.run_id for run in await database.read(list_runs, limit=2)] == ["r2", "r1"]
    assert [run.run_id for run in await database.read(list_runs, dag_id="d")] == ["r0", "r2"]
    assert [run.run_id for run in await database.read(list_runs, state="queued")] == ["r2", "r0"]
    assert await database.read(list_runs, dag_id="e", state="queued") == []
    assert await database.read(count_active_runs, ["d", "e", "f"], 9) == {"d": 2, "e": 0, "f": 0}
    assert await database.read(get_run, "d", "r1") is None


async def test_a_name_that_is_taken_gets_the_next_number_however_long_it_is(database):
    for plain in ("r", "x" * 250):
        for _ in range(12):
            run_id, _ = await database.read(free_run_id, "d", plain)
            await database.write(insert_run, new_run(run_id, logical_date=None))
    runs = await database.read(list_runs, dag_id="d", limit=100)
    assert {len(run.run_id) for run in runs if run.run_id[0] == "x"} == {250}
    numbers = sorted(int(run.run_id.partition("_")[2] or 1) for run in runs)
    assert numbers == sorted([*range(1, 13)] * 2)


async def test_the_last_scheduled_interval_ignores_manual_runs_and_backfills(database):
    for dag_id in ("d", "e", "never"):
        await database.write(store_dag, DAG(dag_id), NOW)
    assert await database.read(last_scheduled_intervals, ["d", "e", "never"]) == {}
    await database.write(insert_run, new_run("r", "e"))
    await database.write(insert_run, new_run("of partition", "d", logical_date=None, partition_key="k"))
    await database.write(insert_run, new_run("of partition", "never", logical_date=None, partition_key="k"))
    types = (DagRunType.SCHEDULED, DagRunType.SCHEDULED, DagRunType.MANUAL, DagRunType.BACKFILL)
    for number, run_type in enumerate(types):
        backfill_id = 1 if run_type is DagRunType.BACKFILL else None
        options = {"run_type": run_type, "backfill_id": backfill_id}
        await database.write(insert_run, new_run(f"r{number}", logical_date=NOW + number * DAY, **options))
    last = {"d": (NOW + DAY, NOW + 2 * DAY), "e": (NOW, NOW + DAY)}
    assert await database.read(last_scheduled_intervals, ["d", "e", "never"]) == last
    assert (await database.read(last_scheduled_run, "d")).data_interval == last["d"]
    assert await database.read(last_scheduled_run, "never") is None
    assert await database.read(run_of_date, "d", NOW + DAY) is not None
    assert await database.read(run_of_date, "d", NOW + 9 * DAY) is None
    assert await database.read(count_active_runs, ["d"], 9) == {"d": 4}
    assert await database.read(count_active_runs, ["d"], 2) == {"d": 2}
    assert (await database.read(previous_run, "d", before=NOW + 2 * DAY)).run_id == "r1"
    assert await database.read(previous_run, "d", before=NOW + 2 * DAY, state="success") is None
    assert await database.read(previous_run, "d", before=None) is None


async def test_a_batch_returns_rows_that_its_author_did_not_know_as_stale(database):
    run = await database.write(insert_run, new_run())
    version = (await database.write(add_versions, [DagVersionRow("d", 1, "1", "a.py", b"{}", (), NOW)]))["d"]
    start = RunWrite(run, "queued", 0, "running", "", NOW, None, version, "me", 5, NOW)
    tasks = [task(run, "a", "queued", try_number=1, token="x"), task(run, "b", None), task(run, "c", None, map_index=0)]
    first = Batch(5, runs=[start], new_tasks=tasks)
    assert not await database.write(apply, first)
    assert not await database.write(apply, first), "a batch whose commit was not confirmed is applied again"
    stored = await database.read(get_run, "d", "r1")
    assert (stored.state, stored.version_id, stored.scheduler_id, stored.lease_epoch) == ("running", version, "me", 5)
    ended = task(
        run, "a", "success", before_state="queued", before_try=1, try_number=1, reason="nul \0 \\u0000",
        started_at=NOW, ended_at=NOW + DAY,
    )  # fmt: skip
    late = task(run, "b", "success", before_state="running")
    assert await database.write(apply, Batch(5, tasks=[ended, late])) == Stale(frozenset(), frozenset({(run, "b", -1)}))
    taken_over = msgspec.structs.replace(ended, before_state="success", state="failed")
    assert await database.write(apply, Batch(4, tasks=[taken_over])) == Stale(frozenset(), frozenset({(run, "a", -1)}))
    # A try that is obsolete: the state and the epoch are those of the newer one.
    of_an_earlier_try = msgspec.structs.replace(taken_over, before_try=0, try_number=0)
    assert await database.write(apply, Batch(5, tasks=[of_an_earlier_try])) == Stale(
        frozenset(), frozenset({(run, "a", -1)})
    )
    fresh = Batch(4, new_tasks=[task(run, "d", None)])
    assert await database.write(apply, fresh) == Stale(frozenset({run}), frozenset())
    a, _, _ = await database.read(load_task_instances, run)
    assert (a.state, a.reason, a.started_at, a.ended_at) == ("success", "nul \ufffd \\u0000", NOW, NOW + DAY)
    found = await database.read(states_by_run, TaskFilter("d"))
    assert found == ({"r1": {"a": "success", "b": None, "c_0": None}}, None)
    assert [row.task_id for row in await database.read(list_task_instances, run)] == ["a", "b", "c"]


async def test_earlier_tries_and_callbacks_are_stored_with_their_change(database):
    run = await database.write(insert_run, new_run())
    tries = [history(run, "a", try_number=n, reason=f"error {n}", token=f"t{n}") for n in (1, 2)]
    callbacks = [
        CallbackRequest(dag_run_id=run, task_id="a", try_number=n, event="on_retry", created_at=NOW) for n in (1, 2)
    ]
    for _ in range(2):
        assert not await database.write(apply, Batch(1, history=tries, callbacks=callbacks))
    assert [(row.try_number, row.reason) for row in await database.read(list_tries, run)] == [
        (1, "error 1"),
        (2, "error 2"),
    ]
    first, second = await database.read(next_callbacks, "me", 9)
    assert (first.event, first.state, first.attempts, first.try_number) == ("on_retry", "queued", 0, 1)
    assert await database.write(take_callback, first, "token", "me")
    assert not await database.write(take_callback, first, "late", "other")
    assert [callback.id for callback in await database.read(next_callbacks, "me", 9, [first.id])] == [second.id]
    (begun, _) = await database.read(next_callbacks, "me", 9)
    assert (begun.state, begun.token, begun.attempts) == ("running", "token", 1)
    await database.write(finish_callback, first, "late", "failed")
    assert (await database.read(next_callbacks, "me", 9))[0] == begun
    await database.write(finish_callback, first, "token", "success")
    assert [callback.id for callback in await database.read(next_callbacks, "me", 1)] == [second.id]


async def test_a_run_that_ends_again_calls_back_again(database):
    run = await database.write(insert_run, new_run())
    for ended_at in (NOW, NOW, NOW + timedelta(hours=1)):
        callback = CallbackRequest(dag_run_id=run, event="on_failure", reason="task_failure", created_at=ended_at)
        assert not await database.write(apply, Batch(1, callbacks=[callback]))
    assert [callback.created_at for callback in await database.read(next_callbacks, "me", 9)] == [
        NOW,
        NOW + timedelta(hours=1),
    ]


async def test_xcoms_are_found_by_key_task_and_index_and_overwritten(database):
    run = await database.write(insert_run, new_run())
    await database.write(apply, Batch(1, xcoms=[XComWrite(run, "b", -1, "return_value", '{"x":"€"}', NOW)]))
    for index in (1, 0):
        await database.write(put_xcom, XComRow(run, "a", index, "return_value", b"%d" % index, NOW))
    await database.write(put_xcom, XComRow(run, "a", 0, "return_value", b"[2]", NOW))
    await database.write(put_xcom, XComRow(run, "a", 0, "other", b"null", NOW))
    everything = await database.read(get_xcoms, run, key="return_value")
    assert [(value.task_id, value.map_index) for value in everything] == [("a", 0), ("a", 1), ("b", -1)]
    assert [msgspec.json.decode(value.value) for value in everything] == [[2], 1, {"x": "€"}]
    of = {"key": "return_value", "task_ids": ["a"]}
    assert await database.read(some_xcoms, run, **of, map_indexes=[1]) == ([("a", 1, b"1")], True)
    assert await database.read(some_xcoms, run, key="return_value", task_ids=[]) == ([], True)
    assert await database.read(_values_of, run, "a", 0) == {"other": b"null", "return_value": b"[2]"}
    with pytest.raises(StoreError, match="XCom key has 1 to 512 characters"):
        await database.write(put_xcom, XComRow(run, "a", 0, "k" * 513, b"1", NOW))


async def test_the_newest_run_with_a_value_may_have_no_logical_date(database):
    dates = {"dated": (NOW, NOW), "undated": (None, NOW + DAY), "later": (NOW + 2 * DAY, NOW), "valueless": (None, NOW)}
    for number, (run_id, (date, run_after)) in enumerate(dates.items()):
        run = await database.write(insert_run, new_run(run_id, logical_date=date, run_after=run_after))
        if run_id != "valueless":
            await database.write(put_xcom, XComRow(run, "a", -1, "k", b"%d" % number, NOW))
    of = {"key": "k", "task_ids": ["a", "b"]}
    untils = [NOW - DAY, NOW, NOW + DAY, NOW + 2 * DAY]
    found = [await database.read(newest_run_with_xcom, "d", **of, until=until) for until in untils]
    assert found == [None, 1, 2, 3]


async def test_a_try_stores_values_until_its_task_goes_on_without_it(database):
    run = await database.write(insert_run, new_run())
    await database.write(apply, Batch(0, new_tasks=[task(run, "a", "running", token="present")]))
    for value in (b"1", b"2"):
        await database.write(put_xcom_of_try, XComRow(run, "a", -1, "k", value, NOW), "present")
    with pytest.raises(StoreError, match="goes on without this try"):
        await database.write(put_xcom_of_try, XComRow(run, "a", -1, "k", b"3", NOW), "earlier")
    assert await database.read(_values_of, run, "a", -1) == {"k": b"2"}


async def test_the_progress_of_a_run_counts_ended_tasks_but_not_those_before_a_retry(database):
    run = await database.write(insert_run, new_run())
    states = ["success", "skipped", "upstream_failed", "up_for_retry", "up_for_reschedule", "running", None]
    tasks = [task(run, f"t{n}", state, ended_at=NOW) for n, state in enumerate(states)]
    await database.write(apply, Batch(0, new_tasks=tasks))
    assert await database.read(count_progress, [run]) == {run: Progress(n_tasks=7, n_ended=3, n_failed=1)}


def _values_of(conn: sa.Connection, run: int, task_id: str, map_index: int) -> dict[str, bytes]:
    is_of_task = (xcom.c.dag_run_id == run, xcom.c.task_id == task_id, xcom.c.map_index == map_index)
    return {row.key: row.value for row in conn.execute(sa.select(xcom.c.key, xcom.c.value).where(*is_of_task))}


async def test_slots_of_a_pool_are_counted_from_states(database):
    run = await database.write(insert_run, new_run())
    await database.write(set_pool, "other", -1, include_deferred=True)
    rows = [
        ("a", "running", "default_pool", 2),
        ("b", "queued", "default_pool", 1),
        ("c", "success", "default_pool", 4),
        ("d", "deferred", "default_pool", 8),
        ("e", "deferred", "other", 3),
    ]
    tasks = [task(run, name, state, pool=pool, pool_slots=slots) for name, state, pool, slots in rows]
    await database.write(apply, Batch(0, new_tasks=tasks))
    default, other = await database.read(list_pools)
    assert (default.running_slots, default.queued_slots, default.occupied_slots, default.open_slots) == (2, 1, 3, 125)
    assert (other.occupied_slots, other.open_slots) == (3, None)
