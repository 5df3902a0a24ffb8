"""The hot queries use indexes, on both databases: none looks through history."""

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from asynsched.keys import DagRunKey
from asynsched.queries import hitl, runs
from asynsched.queries import task_instances as instances
from asynsched.queries.overview import read_overview, recent_states
from asynsched.store import assets as asset_events
from asynsched.store.assets import AssetEventRow
from asynsched.store.dags import dags
from asynsched.store.dags.dags import add_versions
from asynsched.store.runs import callbacks as callback_requests
from asynsched.store.runs import dag_runs, deadlines, pools, states_elsewhere, task_instances, xcoms
from asynsched.store.runs import queue as run_queue
from asynsched.store.runs import requests as run_requests
from asynsched.store.runs.transitions import Batch, RunWrite, XComWrite, apply, apply_at_once
from asynsched.store.schema import DagVersionRow, dag_run
from asynsched.timetables.asset_condition import AssetNames, PartitionEvent
from tests.store.test_runs import history, new_run, task
from tests.support.history import fill, look_at_sizes

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GROWING = (
    "dag_run", "task_instance", "task_instance_history", "xcom", "callback_request", "deadline", "asset_event",
    "asset_alias_event", "asset_dag_run_queue", "dag_run_asset_event",
)  # fmt: skip
RUN = RunWrite(1, "queued", 0, "running", "", NOW, None, 1, "me", 1, NOW)
BATCH = Batch(
    1, runs=[RUN], tasks=[task(1, "a", "success", before_state="running")],
    xcoms=[XComWrite(1, "a", -1, "k", "1", NOW)], history=[history(1, "a")],
)  # fmt: skip


def read_past(conn: sa.Connection, *args: Any) -> None:
    task_instances.read_past(conn, *args, catchup=False)


CLAIM = pools.SlotGrant(key=(1, "a", -1), pool="default_pool", slots=1, task=("d", "a"), max_active=1)
HOT = [
    (dags.get_dag, "d"),
    (dag_runs.get_run, "d", "r"),
    (dag_runs.count_active_runs, ["d", "e"], 16),
    (dag_runs.ended_among, [DagRunKey("d", "r")]),
    (dag_runs.last_scheduled_intervals, ["d", "e"]),
    (dag_runs.run_of_date, "d", NOW),
    (dag_runs.runs_made, [dag_runs.WantedRun("d", "r", NOW)]),
    (dag_runs.insert_runs, [new_run("r9"), new_run("r9", "e")]),
    (run_queue.queued_runs, [DagRunKey("d", "r")]),
    (run_queue.queued_groups,),
    (run_queue.first_queued, [(("d", None), 9), (("d", 1), 9)]),
    (run_queue.owned_run_ids, 1),
    (run_queue.owned_runs, 1, [1, 2]),
    (run_queue.take_over_runs, "me", 1),
    (run_queue.claim_runs, [1], "me", 1, NOW),
    (run_queue.runs_elsewhere, ["d"], 1),
    (run_requests.open_requests, 1),
    (pools.pool_use_elsewhere, 1, frozenset({"p"})),
    (pools.settle_slots, [CLAIM], pools.OwnUse({}, {}), 1),
    (read_past, "d", NOW, {"a": ["b"]}),
    (run_queue.runs_by_id, [1, 2]),
    (task_instances.load_task_instances, 1),
    (states_elsewhere.count_runs, states_elsewhere.RunFilter("d", [NOW], ["r"], ["failed"])),
    (states_elsewhere.count_task_instances, states_elsewhere.TaskFilter("d", -1, ["a"], None, [NOW], ["r"], ["null"])),
    (states_elsewhere.states_by_run, states_elsewhere.TaskFilter("d", run_ids=["r"])),
    (states_elsewhere.states_by_run, states_elsewhere.TaskFilter("d"), states_elsewhere.InstancePosition("r", "a", -1)),
    (pools.list_pools,),
    (partial(xcoms.get_xcoms, key="k"), 1),
    (xcoms.count_mapped_xcoms, xcoms.MappedXComs(1, "a", "k", 0, 9)),
    (xcoms.mapped_xcoms, xcoms.MappedXComs(1, "a", "k", 0, 9), 0, 9),
    (partial(xcoms.some_xcoms, key="k", task_ids=["a"]), 1),
    (partial(xcoms.newest_run_with_xcom, key="k", task_ids=["a"], until=NOW), "d"),
    (partial(xcoms.some_xcoms, key="k", task_ids=["a", "b"], map_indexes=[1, 2], after=("a", 1)), 1),
    (callback_requests.next_callbacks, "me", 9, [1]),
    (callback_requests.running_callbacks, "me"),
    (deadlines.next_deadline_at, 1),
    (deadlines.decide_due_deadlines, 1, NOW, 9),
    (deadlines.list_deadlines, 1),
    (deadlines.renew_deadlines, 1, "d", NOW),
    (deadlines.lengths_of_last_runs, "d", 9),
    (asset_events.awaiting_dag_ids, "a", "a", ("x",), False),
    (asset_events.pending_events, "d"),
    (asset_events.arrived_assets, "d"),
    (asset_events.drop_surplus, "d", [asset_events.ArrivedAsset(AssetNames("a", "a"), NOW, 20_000, 1)]),
    (
        asset_events.drop_surplus_partitions,
        "d",
        [PartitionEvent(number, AssetNames("a", "a"), NOW, "k", None, "k") for number in range(11_001)],
    ),
    (asset_events.unexamined_dag_ids,),
    (asset_events.mark_examined, "d"),
    (asset_events.mark_unexamined, "d"),
    (asset_events.consumed_events, 1),
    (asset_events.some_events, asset_events.EventFilter(run=1)),
    (partial(asset_events.some_events, ascending=False), asset_events.EventFilter("a", "a", after=NOW)),
    (asset_events.record_events, [AssetEventRow("a", "a", {}, NOW, ("x",), token="t")]),
    (apply, BATCH),
]
UNANSWERED = hitl.QuestionFilter(states=("awaiting_input",), is_answered=False)
OF_PAGES = [
    (partial(read_overview, now=NOW, since=NOW - timedelta(days=1)), None),
    (hitl.list_questions, UNANSWERED),
    (hitl.count_questions, UNANSWERED),
    (runs.list_runs, runs.RunFilter(states=("running", "queued"))),
    (runs.count_runs, runs.RunFilter(states=("running",))),
    (instances.list_task_instances, instances.TaskInstanceFilter(states=("running", "queued"))),
    (pools.scheduled_slots,),
    (instances.count_task_instances, instances.TaskInstanceFilter(states=("deferred",))),
]
"""What pages ask again at each change."""


def name_of(query: Any) -> str:
    """Return the name of a query, which may be a partial."""
    name: str = query.func.__name__ if isinstance(query, partial) else query.__name__
    return name


def plans(conn: sa.Connection, query: Any, *args: Any) -> list[str]:
    """Run a query, and return how the database would do each of its statements where its tables are large."""
    if conn.dialect.name != "sqlite":
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
    return chosen_plans(conn, query, *args)


def chosen_plans(conn: sa.Connection, query: Any, *args: Any) -> list[str]:
    """Run a query, and return how the database would do each of its statements as its tables are."""
    statements = []
    is_sqlite = conn.dialect.name == "sqlite"

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    sa.event.listen(conn, "before_cursor_execute", note)
    query(conn, *args)
    sa.event.remove(conn, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
    rows = [conn.exec_driver_sql(f"{explain} {sql}", parameters).all() for sql, parameters in statements]
    return [str(row[3 if is_sqlite else 0]) for plan in rows for row in plan]


@pytest.mark.parametrize("hot", HOT, ids=lambda hot: name_of(hot[0]))
async def test_a_hot_query_never_looks_through_a_growing_table(database, hot):
    lines = await database.write(plans_with_a_run, *hot)
    assert lines
    assert [line for line in lines if _is_search_through(line)] == []


def plans_with_a_run(conn: sa.Connection, *hot: Any) -> list[str]:
    """Return the plans where there is the run that BATCH speaks of."""
    assert dag_runs.insert_run(conn, new_run()) == RUN.id
    assert add_versions(conn, [DagVersionRow("d", 1, "1", "a.py", b"{}", (), NOW)]) == {"d": RUN.version_id}
    return plans(conn, *hot)


def _is_search_through(line: str) -> bool:
    words = line.split()
    if "Seq" in words:
        return words[words.index("on") + 1] in GROWING
    return words[0] == "SCAN" and words[1] in GROWING and "INDEX" not in words


@pytest.mark.parametrize(
    "write",
    [
        (apply, BATCH),
        (apply_at_once, Batch(1, tasks=BATCH.tasks), {}),
        (apply_at_once, Batch(1, tasks=BATCH.tasks, runs=BATCH.runs), {}),
    ],
    ids=["in steps", "at once", "at once with its run"],
)
async def test_a_change_of_state_finds_its_row_by_its_key_in_a_new_table_too(database, write):
    """A connection keeps the plan that it made when there were few rows, for all that come after them."""
    lines = await database.write(plans_with_few_tasks, *write)
    is_left_to_apply = write[0] is apply_at_once and bool(write[1].runs) and not database.is_shared
    assert bool(lines) != is_left_to_apply
    assert [line for line in lines if _is_search_through(line)] == []


def plans_with_few_tasks(conn: sa.Connection, *write: Any) -> list[str]:
    """Return the plans that the database chooses if a run has three task instances."""
    plans_with_a_run(conn, dags.get_dag, "d")
    if conn.dialect.name != "sqlite":
        conn.execute(sa.text("SET LOCAL enable_seqscan = on"))
    apply(conn, Batch(1, new_tasks=[task(RUN.id, name, "running") for name in "abc"]))
    return chosen_plans(conn, *write)


async def test_a_hint_says_which_index_sqlite_uses(database):
    # SQLAlchemy itself leaves hints out for SQLite.
    hinted = sa.select(dag_run.c.id).with_hint(dag_run, "INDEXED BY ix_dag_run_version_id", "sqlite")
    is_both = sa.and_(dag_run.c.dag_id == "d", dag_run.c.run_id == "r", dag_run.c.version_id == 1)
    lines = await database.read(plans, lambda conn: conn.execute(hinted.where(is_both)))
    assert lines, "PostgreSQL gets no hint, which would be an error there"
    assert database.is_shared or any("ix_dag_run_version_id" in line for line in lines)


def _walks_of_keys(lines: list[str]) -> list[str]:
    """Return the lines by which PostgreSQL would walk through a growing table in the order of its ids."""
    following = zip(lines, [*lines[1:], ""], strict=True)
    return [line for line, then in following if " using pk_" in line and then.strip().startswith("Filter:")]


async def test_the_last_runs_of_a_dag_are_found_without_the_older_ones(database):
    lines = await database.write(plans_with_a_run, recent_states, ["d"], 5)
    assert [line for line in lines if re.search(r"dag_id\b.* AND \(?run_after ?>", line)], lines


async def test_with_a_long_history_the_database_chooses_these_plans_by_itself(database):
    assert await database.write(searches_through_history) == {}


def searches_through_history(conn: sa.Connection) -> dict[str, list[str]]:
    """Return the hot queries that look through a table, where there are 40,000 task instances of 2,000 runs."""
    plans_with_a_run(conn, dags.get_dag, "d")
    fill(conn, n_runs=2000, n_tasks=20, n_dags=2000)
    if conn.dialect.name != "sqlite":
        conn.execute(sa.text("SET LOCAL enable_seqscan = on"))
        look_at_sizes(conn)  # nothing does so on SQLite
    found = {}
    for query, *arguments in [*HOT, *OF_PAGES]:
        with conn.begin_nested() as attempt:
            chosen = chosen_plans(conn, query, *arguments)
            lines = [line for line in chosen if _is_search_through(line)] + _walks_of_keys(chosen)
            attempt.rollback()
        large = [line for line in lines if {"task_instance", "dag_run"} & set(line.split())]
        if large:
            found[name_of(query)] = large
    return found
