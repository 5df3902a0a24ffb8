"""A task may ask for much; no single answer is large: counted in statements, rows, and bytes of values.

Between two answers, the event loop has its turn.
"""

from functools import partial

import msgspec
import pytest
import sqlalchemy as sa

from asynsched import Asset
from asynsched.authoring.mapped_results import LazyXComSequence
from asynsched.authoring.running.task_instance import AsksElsewhere, TaskInstance
from asynsched.authoring.running.try_context import InletEvents, TriggeringAssetEvents
from asynsched.authoring.supervisor import SupervisorError
from asynsched.clock import VirtualClock
from asynsched.executors.requests import MOST_NAMES, RequestAnswerer
from asynsched.keys import DagRunKey
from asynsched.protocol.frames import MAX_FRAME_BYTES
from asynsched.protocol.messages import Request
from asynsched.results import read_finished_run
from asynsched.store.assets import AssetEventRow, record_events
from asynsched.store.rows import MANY_BYTES, MANY_ROWS
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.schema import asset_event, dag_run_asset_event, task_instance, xcom
from tests.integration.size.asking import Asking
from tests.store.test_runs import new_run
from tests.support.history import numbers
from tests.support.runs import NOON

MANY = 3_000
LARGE = 100_000
"""Bytes of a value; MANY_BYTES hold ten of them."""


def counted(asking):
    return [(cost.n_statements, cost.n_rows) for cost in asking.costs]


def store_values(conn, n, n_bytes):
    """Store the results of n instances of the task `m`, and one value of the task `other`; return the run's id."""
    run = insert_run(conn, new_run())
    text = "x" * (n_bytes - 2)
    rows = [("m", index, f'"{text}"'.encode()) for index in range(n)]
    for start in range(0, n, 100):
        some = [*rows[start : start + 100], *([("other", -1, b"7")] if start == 0 else ())]
        conn.execute(
            sa.insert(xcom),
            [
                {"dag_run_id": run, "task_id": task_id, "map_index": index, "key": "return_value", "value": value,
                 "created_at": NOON}
                for task_id, index, value in some
            ],
        )  # fmt: skip
    return run


def pull(task_ids, **options):
    """Pull as the task `t` does."""
    ti = object.__new__(TaskInstance)
    ti.task_id = "t"
    return ti.xcom_pull(task_ids, **options)


@pytest.mark.parametrize(("n", "n_bytes", "n_parts"), [(MANY, 100, 4), (300, LARGE, 30)], ids=["many", "large"])
async def test_all_values_of_a_mapped_task_are_pulled_in_parts(database, n, n_bytes, n_parts):
    """30 MB are twice the limit of a frame."""
    asking = Asking(database, await database.write(store_values, n, n_bytes))
    found = await asking.answer(pull, "m")
    assert [len(value) for value in found] == [n_bytes - 2] * n
    both = await asking.answer(pull, ["other", "m"])
    assert (both[0], both[1:] == found) == (7, True)
    assert await asking.answer(lambda: list(LazyXComSequence("m", "return_value"))) == found
    assert len(asking.frames) <= 3 * n_parts + 3
    assert max(cost.n_statements for cost in asking.costs) <= 2
    assert max(cost.n_rows for cost in asking.costs) <= 2 * MANY_ROWS
    assert max(cost.n_bytes for cost in asking.costs) <= 2 * MANY_BYTES
    assert max(asking.frames) <= MANY_BYTES + 50 * MANY_ROWS


async def test_a_single_value_is_pulled_by_one_statement_unless_it_is_large(database):
    asking = Asking(database, await database.write(store_values, 3, 15_000_000))
    assert await asking.answer(pull, "other") == 7
    assert (len(asking.frames), counted(asking)) == (1, [(1, 1)])
    assert len(await asking.answer(partial(pull, "m", map_indexes=1))) == 15_000_000 - 2
    assert (len(asking.frames), counted(asking)) == (2, [(1, 1), (2, 2)])
    assert max(asking.frames) < MAX_FRAME_BYTES


async def test_the_scheduler_passes_values_on_as_they_are_stored(database):
    """The scheduler does not decode the values, so that decoding cannot block it."""
    run = await database.write(store_values, 1, 10)
    stored = b'{"a": 1.50, "b" :"\\u00e9"}'
    await database.write(lambda conn: conn.execute(sa.update(xcom).values(value=stored)))
    asking = Asking(database, run)
    arguments = {"key": "return_value", "task_ids": ["m"]}
    reply = await RequestAnswerer(database, VirtualClock(NOON)).answer(
        Request("token", 1, "xcom_pull", arguments), asking._ready
    )
    assert stored in msgspec.json.encode(reply)
    assert await asking.answer(pull, "m") == [{"a": 1.5, "b": "é"}]


def store_states(conn, n_runs):
    """Store runs with 50 task instances each."""
    number = numbers(50)
    for index in range(n_runs):
        run = insert_run(conn, new_run(f"r{index:03}", logical_date=None))
        of_task = sa.select(
            sa.literal(run), sa.literal("t") + sa.cast(number.c.n, sa.String), sa.literal("success"), sa.literal("p")
        )
        conn.execute(sa.insert(task_instance).from_select(["dag_run_id", "task_id", "state", "pool"], of_task))


async def test_states_of_a_long_history_are_read_in_parts(database):
    await database.write(store_states, 100)
    asking = Asking(database, 1)
    found = await asking.answer(AsksElsewhere.get_task_states, "d")
    assert {run_id: len(states) for run_id, states in found.items()} == {f"r{index:03}": 50 for index in range(100)}
    assert len(asking.frames) <= 100 * 50 // MANY_ROWS + 1
    assert max(cost.n_statements for cost in asking.costs) == 1
    assert max(cost.n_rows for cost in asking.costs) <= MANY_ROWS
    assert await asking.answer(partial(AsksElsewhere.get_task_states, "d", run_ids=["r007"], task_ids=["t7"])) == {
        "r007": {"t7": "success"}
    }


def store_events(conn, n, n_bytes):
    """Store events of an asset that have all triggered one run; return the run's id."""
    run = insert_run(conn, new_run())
    extra = {"text": "x" * n_bytes}
    record_events(conn, [AssetEventRow("a", "a", extra, NOON, token="first")])
    number = numbers(n - 1)
    values = [asset_event.c[name] for name in ("asset_id", "created_at", "extra", "token", "source_map_index")]
    copies = sa.select(*values, number.c.n).select_from(asset_event.join(number, sa.true()))
    conn.execute(sa.insert(asset_event).from_select([*values, asset_event.c.ordinal], copies))
    consumed = sa.select(sa.literal(run), asset_event.c.id)
    conn.execute(sa.insert(dag_run_asset_event).from_select(["dag_run_id", "event_id"], consumed))
    return run


async def test_a_question_that_names_too_much_is_refused_with_the_limit(database):
    asking = Asking(database, await database.write(store_values, 2, 10))
    with pytest.raises(SupervisorError, match="1 task_ids, 10000 map_indexes; one request may name at most 10000"):
        await asking.answer(partial(pull, "m", map_indexes=range(MOST_NAMES)))
    assert asking.costs == []
    found = await asking.answer(partial(pull, "m", map_indexes=range(MOST_NAMES - 1)))
    assert found == ["x" * 8] * 2 + [None] * (MOST_NAMES - 3)


async def test_the_results_of_a_finished_run_are_read_in_parts(database):
    run = await database.write(store_values, 300, LARGE)
    of_run = {"dag_run_id": run, "task_id": "m", "state": "success", "pool": "p"}
    rows = [{**of_run, "map_index": index} for index in range(300)]
    await database.write(lambda conn: conn.execute(sa.insert(task_instance), rows))
    asking = Asking(database, run)
    found = await read_finished_run(asking, DagRunKey("d", "r1"))
    assert [len(task.result) for task in found.tasks] == [LARGE - 2] * 300
    assert max(cost.n_bytes for cost in asking.costs) <= 2 * MANY_BYTES


@pytest.mark.parametrize(("n", "n_bytes"), [(MANY, 10), (200, LARGE)], ids=["many", "large"])
async def test_events_of_assets_are_read_in_parts(database, n, n_bytes):
    asking = Asking(database, await database.write(store_events, n, n_bytes))
    inlet = Asset("a")
    assert await asking.answer(lambda: len(InletEvents([inlet])[inlet])) == n
    assert await asking.answer(lambda: len(TriggeringAssetEvents(is_triggered=True)[inlet])) == n
    asking.costs.clear()
    assert await asking.answer(lambda: InletEvents([inlet])[inlet][-1].source_aliases) == []
    assert sum(cost.n_rows for cost in asking.costs) <= 3, "the newest event costs no look through its history"
    newest = await asking.answer(lambda: InletEvents([inlet])[inlet].ascending(False).limit(MANY_ROWS + 1)[:])
    assert len({event.extra["text"] for event in newest}) == 1
    assert len(newest) == min(n, MANY_ROWS + 1)
    assert len(asking.frames) <= 3 * (n // MANY_ROWS + n * n_bytes // MANY_BYTES + 2)
    assert max(cost.n_statements for cost in asking.costs) <= 4
    assert max(cost.n_rows for cost in asking.costs) <= 2 * MANY_ROWS + 1
    assert max(cost.n_bytes for cost in asking.costs) <= MANY_BYTES + 20 * MANY_ROWS
    assert max(asking.frames) <= MANY_BYTES + 500 * MANY_ROWS
