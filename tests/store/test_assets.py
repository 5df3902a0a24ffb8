"""Assets and their events: stored once, waiting for each DAG that wants them, and consumed by one of its runs."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from asynsched import DAG, Asset, AssetAlias, BashOperator
from asynsched.errors import NotFound
from asynsched.scheduling.creation.scheduled_runs import foresee_dag
from asynsched.store.assets import (
    AssetEventRow,
    EventFilter,
    consumed_events,
    count_old_events,
    delete_old_events,
    get_asset,
    list_aliases,
    list_assets,
    list_events,
    pending_events,
    record_events,
    references_to,
    unexamined_dag_ids,
    waiting_digests,
)
from asynsched.store.dags.dags import set_paused
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, store_report
from asynsched.store.runs.dag_runs import end_queued_run, get_run, insert_run
from asynsched.store.runs.retention import delete_runs
from asynsched.store.runs.transitions import Batch, apply
from tests.store.test_runs import new_run, task
from tests.support.simulated import report_of
from tests.support.stored import examine_dag

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
STAMP = FileStamp(content_hash="", modified_ns=0, size=0, runtime="")
LONG = "ü" * 1500
"""Longer than an index of PostgreSQL can hold."""


def store_dag(conn, dag: DAG) -> None:
    store_report(conn, report_of(dag), STAMP, now=NOW, defaults=DagDefaults(16, paused=False))


def dag_of(dag_id, schedule=None, **assets) -> DAG:
    with DAG(dag_id, schedule=schedule) as dag:
        BashOperator(task_id="t", bash_command="true", **assets)
    return dag


def event(asset: Asset, minutes: float = 0, **fields) -> AssetEventRow:
    return AssetEventRow(asset.name, asset.uri, fields.pop("extra", {}), NOW + minutes * MINUTE, **fields)


async def test_an_event_waits_for_each_active_dag_that_names_its_asset_in_any_way(database):
    long = Asset(LONG, "s3://" + LONG[:1400])

    def check(conn):
        store_dag(conn, dag_of("by_name", Asset.ref(name=LONG)))
        store_dag(conn, dag_of("by_uri", [Asset.ref(uri=long.uri)]))
        store_dag(conn, dag_of("by_alias", AssetAlias(LONG)))
        store_dag(conn, dag_of("by_itself", long | Asset("other")))
        store_dag(conn, dag_of("paused", long))
        set_paused(conn, "paused", True, NOW)
        store_dag(conn, dag_of("only_reads", inlets=long, outlets=[AssetAlias(LONG)]))
        assert record_events(conn, [event(long)]) == ["by_itself", "by_name", "by_uri"]
        assert record_events(conn, [event(long, aliases=(LONG,), token="t")]) == [
            "by_alias", "by_itself", "by_name", "by_uri",
        ]  # fmt: skip
        return unexamined_dag_ids(conn), references_to(conn, waiting_digests(long.name, long.uri, [LONG]))

    waiting, references = await database.write(check)
    assert waiting == ["by_alias", "by_itself", "by_name", "by_uri"]
    assert {(found.dag_id, found.role) for found in references} == {
        ("by_name", "schedule"), ("by_uri", "schedule"), ("by_alias", "schedule"), ("by_itself", "schedule"),
        ("paused", "schedule"), ("only_reads", "inlet"), ("only_reads", "outlet"),
    }  # fmt: skip


async def test_a_repeated_batch_updates_no_asset_twice_a_stale_task_none(database):
    def check(conn):
        run = insert_run(conn, new_run())
        store_dag(conn, dag_of("of_a", Asset("a")))
        apply(conn, Batch(0, new_tasks=[task(run, "t", "running"), task(run, "stale", "skipped")]))
        source = {"dag_run_id": run, "dag_id": "d", "run_id": "r1"}
        events = [
            event(Asset("a"), token="1", task_id="t", **source),
            event(Asset("a"), token="1", ordinal=1, task_id="t", extra={"k": 1}, **source),
            event(Asset("a"), token="2", task_id="stale", **source),
        ]
        ended = [task(run, name, "success", before_state="running") for name in ("t", "stale")]
        batch = Batch(0, tasks=ended, asset_events=events)
        stale = [apply(conn, batch) for _ in range(2)]
        return stale, list_events(conn), pending_events(conn, "of_a")

    stale, events, pending = await database.write(check)
    assert [found.tasks for found in stale] == [{(1, "stale", -1)}] * 2
    assert [(found.extra, found.source_task_id) for found in events] == [({}, "t"), ({"k": 1}, "t")]
    assert len(pending) == 2


async def test_a_run_consumes_what_waits_and_runs_of_one_moment_differ(database):
    def check(conn):
        store_dag(conn, dag_of("both", [Asset("a"), Asset("b")]))
        names = []
        for _ in range(2):
            record_events(conn, [event(Asset("a")), event(Asset("a"), 1)])
            assert examine_dag(conn, "both", NOW + MINUTE).triggered is None
            assert unexamined_dag_ids(conn) == []
            record_events(conn, [event(Asset("b"), 1)])
            foreseen = foresee_dag(conn, "both", NOW + MINUTE)
            names.append(examine_dag(conn, "both", NOW + MINUTE).triggered)
            assert foreseen.triggered == names[-1]
            assert pending_events(conn, "both") == []
            assert examine_dag(conn, "both", NOW + MINUTE).triggered is None
        runs = [get_run(conn, "both", name) for name in names]
        return names, [[found.name for found in consumed_events(conn, run.id)] for run in runs], runs[0]

    names, consumed, run = await database.write(check)
    assert names == [f"asset_triggered__2026-03-01T12:01:00+00:00{suffix}" for suffix in ("", "_2")]
    assert consumed == [["a", "a", "b"]] * 2
    assert run.reason == "assets were updated: a, b"


async def test_events_are_listed_by_asset_alias_and_time(database):
    def check(conn):
        events = [event(Asset("a", "u"), minute, extra={"n": minute}) for minute in range(5)]
        record_events(conn, [*events, event(Asset("b"), 2, aliases=("x", "y"), token="t", asset_extra={"k": 1})])

        def found(ascending=True, limit=None, **wanted):
            events = list_events(conn, EventFilter(**wanted), ascending=ascending, limit=limit)
            return [listed.extra.get("n") for listed in events]

        assert found(name="a") == found(uri="u") == found(name="a", uri="u") == [0, 1, 2, 3, 4]
        assert found(name="a", after=NOW + MINUTE, before=NOW + 4 * MINUTE) == [2, 3]
        assert found(name="a", ascending=False, limit=2) == [4, 3]
        [through] = list_events(conn, EventFilter(alias="x"))
        assert (through.name, through.aliases, through.asset_extra) == ("b", ["x", "y"], {"k": 1})
        return list_aliases(conn)

    assert await database.write(check) == [("x", "asset", ["b"]), ("y", "asset", ["b"])]


async def test_an_asset_is_what_its_dags_say_and_found_by_name_or_uri(database):
    def check(conn):
        store_dag(conn, dag_of("d", outlets=Asset("a", "s3://x/a", extra={"v": 1})))
        record_events(conn, [event(Asset("a", "s3://x/a"), asset_extra={"v": 2})])
        store_dag(conn, dag_of("e", inlets=Asset("a", "s3://x/a", extra={"v": 3}, group="g")))
        assert [(found.name, found.extra, found.group_name) for found in list_assets(conn)] == [("a", {"v": 3}, "g")]
        assert get_asset(conn, "s3://x/a") == get_asset(conn, "a")
        with pytest.raises(NotFound, match="asset"):
            get_asset(conn, "aa")
        assert record_events(conn, [AssetEventRow("unknown", "", {}, NOW, token="t")]) == []
        return list_events(conn)

    assert len(await database.write(check)) == 1


async def test_a_deleted_run_leaves_the_events_that_it_consumed(database):
    def check(conn):
        store_dag(conn, dag_of("of_a", Asset("a")))
        record_events(conn, [event(Asset("a"))])
        run = get_run(conn, "of_a", examine_dag(conn, "of_a", NOW).triggered)
        end_queued_run(conn, run.id, "failed", "", NOW)
        assert len(delete_runs(conn, [run.id], max_rows=10).runs) == 1
        return consumed_events(conn, run.id), list_events(conn)

    consumed, events = await database.write(check)
    assert (consumed, len(events)) == ([], 1)


async def test_old_events_are_deleted_unless_a_dag_or_a_kept_run_has_them(database):
    def check(conn):
        store_dag(conn, dag_of("of_both", [Asset("a"), Asset("b")]))
        store_dag(conn, dag_of("of_c", Asset("c")))
        record_events(conn, [event(Asset(name)) for name in ("a", "c", "nobody's", "nobody's")])
        record_events(conn, [event(Asset("nobody's"), 9)])
        run = get_run(conn, "of_c", examine_dag(conn, "of_c", NOW).triggered)
        before = NOW + 5 * MINUTE
        assert count_old_events(conn, before=before) == 2
        assert [delete_old_events(conn, before=before, limit=1) for _ in range(3)] == [1, 1, 0]
        assert [found.name for found in list_events(conn)] == ["a", "c", "nobody's"]
        end_queued_run(conn, run.id, "failed", "", NOW + MINUTE)
        assert delete_old_events(conn, before=before, limit=10) == 1
        assert len(pending_events(conn, "of_both")) == 1
        return list_events(conn)

    assert [found.name for found in await database.write(check)] == ["a", "nobody's"]


async def test_schedulers_that_look_at_the_same_moment_make_one_run_of_the_events(database):
    await database.write(store_dag, dag_of("both", [Asset("a"), Asset("b")]))
    updates = [
        [event(Asset(name), token=f"{name}{number}", aliases=("x", "y"))] for number in range(4) for name in "ab"
    ]
    await asyncio.gather(*(database.write(record_events, events) for events in updates))
    found = await asyncio.gather(*(database.write(examine_dag, "both", NOW) for _ in range(4)))
    [name] = [examined.triggered for examined in found if examined.triggered]
    run = await database.read(get_run, "both", name)
    assert len(await database.read(consumed_events, run.id)) == 8


async def test_names_that_a_task_has_made_up_are_stored_whatever_they_hold(database):
    made_up = event(Asset("a"), token="t", aliases=("x",), extra={"text": "nul \0 here"})
    odd = msgspec.structs.replace(made_up, name="nul \0 here", uri="s3://\0" + LONG, group="\0")
    await database.write(record_events, [odd])
    [found] = await database.read(list_events, EventFilter(alias="x"))
    assert (found.name, found.extra) == ("nul \ufffd here", {"text": "nul \0 here"})
