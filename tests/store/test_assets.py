"""Assets and their events: stored once, waiting for each DAG that wants them, and consumed by one of its runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.util import await_only

from asynsched import (
    DAG,
    Asset,
    AssetAlias,
    BashOperator,
    FanOutMapper,
    FixedKeyMapper,
    IdentityMapper,
    PartitionedAssetTimetable,
    SegmentWindow,
)
from asynsched.errors import NotFound
from asynsched.queries.assets import AssetFilter, list_assets
from asynsched.scheduling.creation import scheduled_runs
from asynsched.scheduling.creation.scheduled_runs import foresee_dag
from asynsched.store import assets
from asynsched.store.assets import (
    AssetEventRow,
    EventFilter,
    consumed_events,
    count_old_events,
    delete_old_events,
    get_asset,
    list_aliases,
    list_events,
    partition_events,
    pending_events,
    record_events,
    references_to,
    unexamined_dag_ids,
    waiting_digests,
)
from asynsched.store.dags.dags import scheduled_dag_ids, set_paused
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.dag_runs import end_queued_run, get_run, insert_run
from asynsched.store.runs.retention import delete_runs
from asynsched.store.runs.transitions import Batch, apply
from tests.store.test_runs import new_run, task
from tests.support.stored import examine_dag, store_dag

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LONG = "ü" * 1500
"""Longer than an index of PostgreSQL can hold."""


def dag_of(dag_id, schedule=None, max_active_runs=16, **assets) -> DAG:
    with DAG(dag_id, schedule=schedule, max_active_runs=max_active_runs) as dag:
        BashOperator(task_id="t", bash_command="true", **assets)
    return dag


def event(asset: Asset, minutes: float = 0, **fields) -> AssetEventRow:
    return AssetEventRow(asset.name, asset.uri, fields.pop("extra", {}), NOW + minutes * MINUTE, **fields)


def in_one_transaction(test):
    """Run a test, a function of a connection, on the database of the fixture."""

    async def wrapped(database):
        await database.write(test)

    wrapped.__name__ = test.__name__
    return wrapped


@in_one_transaction
def test_an_event_waits_for_each_active_dag_that_names_its_asset_in_any_way(conn):
    long = Asset(LONG, "s3://" + LONG[:1400])
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
    references = references_to(conn, waiting_digests(long.name, long.uri, [LONG]))
    assert unexamined_dag_ids(conn) == ["by_alias", "by_itself", "by_name", "by_uri"]
    assert {(found.dag_id, found.role) for found in references} == {
        ("by_name", "schedule"), ("by_uri", "schedule"), ("by_alias", "schedule"), ("by_itself", "schedule"),
        ("paused", "schedule"), ("only_reads", "inlet"), ("only_reads", "outlet"),
    }  # fmt: skip


@in_one_transaction
def test_a_repeated_batch_updates_no_asset_twice_a_stale_task_none(conn):
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
    assert [found.tasks for found in stale] == [{(1, "stale", -1)}] * 2
    assert [(found.extra, found.source_task_id) for found in list_events(conn)] == [({}, "t"), ({"k": 1}, "t")]
    assert len(pending_events(conn, "of_a")) == 2


@in_one_transaction
def test_a_run_consumes_what_waits_and_runs_of_one_moment_differ(conn):
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
    assert names == [f"asset_triggered__2026-03-01T12:01:00+00:00{suffix}" for suffix in ("", "_2")]
    assert [[found.name for found in consumed_events(conn, run.id)] for run in runs] == [["a", "a", "b"]] * 2
    assert runs[0].reason == "assets were updated: a, b"


@in_one_transaction
def test_events_are_listed_by_asset_alias_and_time(conn):
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
    assert list_aliases(conn) == [("x", "asset", ["b"]), ("y", "asset", ["b"])]


@in_one_transaction
def test_an_asset_is_what_its_dags_say_and_found_by_name_or_uri(conn):
    store_dag(conn, dag_of("d", outlets=Asset("a", "s3://x/a", extra={"v": 1})))
    record_events(conn, [event(Asset("a", "s3://x/a"), asset_extra={"v": 2})])
    store_dag(conn, dag_of("e", inlets=Asset("a", "s3://x/a", extra={"v": 3}, group="g")))
    assert [(found.name, found.extra, found.group) for found in list_assets(conn, AssetFilter()).items] == [
        ("a", {"v": 3}, "g")
    ]
    assert get_asset(conn, "s3://x/a") == get_asset(conn, "a")
    with pytest.raises(NotFound, match="asset"):
        get_asset(conn, "aa")
    assert record_events(conn, [AssetEventRow("unknown", "", {}, NOW, token="t")]) == []
    assert len(list_events(conn)) == 1


@in_one_transaction
def test_a_deleted_run_leaves_the_events_that_it_consumed(conn):
    store_dag(conn, dag_of("of_a", Asset("a")))
    record_events(conn, [event(Asset("a"))])
    run = get_run(conn, "of_a", examine_dag(conn, "of_a", NOW).triggered)
    end_queued_run(conn, run.id, "failed", "", NOW)
    assert len(delete_runs(conn, [run.id], max_rows=10).runs) == 1
    assert (consumed_events(conn, run.id), len(list_events(conn))) == ([], 1)


@in_one_transaction
def test_old_events_are_deleted_unless_a_dag_or_a_kept_run_has_them(conn):
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
    assert [found.name for found in list_events(conn)] == ["a", "nobody's"]


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


def update_partitions(conn, **keys_of) -> None:
    """Store events of these assets, for one partition after the other."""
    for name, keys in keys_of.items():
        record_events(conn, [event(Asset(name), partition_key=key) for key in keys])


def waiting_partitions(conn, dag_id) -> list[str]:
    return sorted(found.run_key for found in partition_events(conn, dag_id))


def partitions_run(conn, dag_id) -> list[str]:
    """Examine a DAG, and return the partitions of the runs that were created."""
    examined = examine_dag(conn, dag_id, NOW)
    return sorted(get_run(conn, dag_id, run_id).partition_key for run_id in examined.of_partitions)


@pytest.fixture
def few_may_wait(monkeypatch):
    """Store four events that wait; of five, three are left."""
    monkeypatch.setattr(assets, "MAX_WAITING", 4)
    monkeypatch.setattr(assets, "MAX_CONSUMED", 3)


@pytest.mark.usefixtures("few_may_wait")
@in_one_transaction
def test_events_that_new_runs_consume_do_not_drop_those_that_still_wait(conn):
    store_dag(conn, dag_of("both", PartitionedAssetTimetable(Asset("a") & Asset("b"))))
    update_partitions(conn, a=["early", "ready", "full"], b=["ready", "full"])
    assert partitions_run(conn, "both") == ["full", "ready"]
    update_partitions(conn, b=["early"])
    assert partitions_run(conn, "both") == ["early"]


@pytest.mark.usefixtures("few_may_wait")
@in_one_transaction
def test_of_an_event_that_counts_for_many_runs_only_the_surplus_is_dropped(conn):
    each = FanOutMapper(
        upstream_mapper=FixedKeyMapper("x"),
        window=SegmentWindow(list("12345")),
        downstream_mapper=IdentityMapper(),
    )
    both = PartitionedAssetTimetable(Asset("a") & Asset("b"), partition_mapper_config={Asset("a"): each})
    store_dag(conn, dag_of("both", both))
    update_partitions(conn, a=["all"])
    assert partitions_run(conn, "both") == []
    assert waiting_partitions(conn, "both") == ["3", "4", "5"]


@in_one_transaction
def test_a_paused_dag_examines_its_partitions_once_and_again_when_it_is_unpaused(conn):
    def pause(conn, is_paused, minutes):
        set_paused(conn, "both", is_paused, NOW + minutes * MINUTE)
        return [found[0] for found in scheduled_dag_ids(conn, NOW + minutes * MINUTE)]

    store_dag(conn, dag_of("both", PartitionedAssetTimetable(Asset("a") & Asset("b"))))
    update_partitions(conn, a=["k"], b=["k"])
    assert pause(conn, True, 1) == []
    assert unexamined_dag_ids(conn) == ["both"]
    assert partitions_run(conn, "both") == []
    assert unexamined_dag_ids(conn) == [], "another update of an asset need not read them again"
    assert pause(conn, False, 2) == ["both"], "even if no message says so"
    assert partitions_run(conn, "both") == ["k"]


async def test_what_waits_for_room_stays_unexamined_and_what_was_mapped_does_not(database, monkeypatch):
    monkeypatch.setattr(scheduled_runs, "MAX_PARTITIONS", 1)

    def check(conn):
        store_dag(conn, dag_of("plain", Asset("a"), max_active_runs=1))
        store_dag(conn, dag_of("each", PartitionedAssetTimetable(Asset("a"))))
        record_events(conn, [event(Asset("a"))])
        assert examine_dag(conn, "plain", NOW).triggered
        record_events(conn, [event(Asset("a")), event(Asset("a"))])
        assert examine_dag(conn, "plain", NOW).is_held_back
        assert unexamined_dag_ids(conn) == ["plain"]

        update_partitions(conn, a=["1", "2"])
        assert (partitions_run(conn, "each"), unexamined_dag_ids(conn)) == (["1"], ["each", "plain"])
        assert (partitions_run(conn, "each"), unexamined_dag_ids(conn)) == (["2"], ["plain"])
        store_dag(conn, dag_of("both", PartitionedAssetTimetable(Asset("a") & Asset("b"))))
        update_partitions(conn, a=["3"])
        assert partitions_run(conn, "both") == []
        assert waiting_partitions(conn, "both") == ["3"]
        return unexamined_dag_ids(conn)

    assert await database.write(check) == ["each", "plain"]


@pytest.fixture
async def ours_and_theirs(postgres_url):
    """The connections of two schedulers to one database."""
    opened = [await open_database(postgres_url) for _ in range(2)]
    yield opened
    for each in opened:
        await each.close()


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "partitions"])
async def test_an_event_stored_while_its_dag_is_examined_is_not_overlooked(ours_and_theirs, key):
    ours, theirs = ours_and_theirs
    condition = Asset("a") & Asset("b")
    dag = dag_of("both", condition if key is None else PartitionedAssetTimetable(condition))
    await theirs.write(store_dag, dag)
    await theirs.write(record_events, [event(Asset("a"), partition_key=key)])

    def examine(conn):
        n_reads = count()

        def store_the_other(conn, cursor, statement, *_):
            if statement.startswith("SELECT") and "FROM asset_dag_run_queue" in statement and next(n_reads) == 0:
                await_only(theirs.write(record_events, [event(Asset("b"), partition_key=key)]))

        sa.event.listen(conn, "after_cursor_execute", store_the_other)
        return examine_dag(conn, "both", NOW).run_ids

    assert await ours.write(examine) == [], "the events were read before the other was stored"
    assert await ours.read(unexamined_dag_ids) == ["both"]
    assert len((await ours.write(examine_dag, "both", NOW)).run_ids) == 1


@in_one_transaction
def test_another_event_of_an_asset_takes_one_statement_however_many_dags_wait(conn):
    def n_statements(conn, n_events, token):
        found = []
        note = lambda *args: found.append(args[2])  # noqa: E731 - it must be the same object to be removed
        events = [event(Asset("a"), token=token, ordinal=number) for number in range(n_events)]
        sa.event.listen(conn, "before_cursor_execute", note)
        assert record_events(conn, events) == ["one", "two"]
        sa.event.remove(conn, "before_cursor_execute", note)
        return len(found)

    store_dag(conn, dag_of("one", Asset("a")))
    store_dag(conn, dag_of("two", Asset("a")))
    n_more = n_statements(conn, 9, "t") - n_statements(conn, 1, "u")
    assert len(pending_events(conn, "one")) == len(pending_events(conn, "two")) == 10
    assert n_more == 8
