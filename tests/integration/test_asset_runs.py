"""Runs that assets trigger, by the production services in virtual time."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from asynsched import (
    DAG,
    Asset,
    AssetAlias,
    AssetOrTimeSchedule,
    BashOperator,
    CronPartitionTimetable,
    CronTriggerTimetable,
    FixedKeyMapper,
    PartitionedAssetTimetable,
    RollupMapper,
    SegmentWindow,
)
from asynsched.channels import DagChanged
from asynsched.protocol.messages import OutletEvent
from asynsched.simulation.script import Outcome
from asynsched.store.assets import (
    AssetEventRow,
    EventFilter,
    consumed_events,
    list_events,
    pending_events,
    record_events,
)
from asynsched.store.dags.dags import set_paused
from tests.support.simulated import Simulated, report_of
from tests.support.stored import store_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
a, b, alias = Asset("a"), Asset("b", "s3://bucket/b"), AssetAlias("new files")


def producer(dag_id, schedule, *outlets, **options) -> DAG:
    with DAG(dag_id, schedule=schedule) as dag:
        BashOperator(task_id="update", bash_command="true", outlets=outlets, **options)
    return dag


def consumer(dag_id, schedule, **options) -> DAG:
    with DAG(dag_id, schedule=schedule, **options) as dag:
        BashOperator(task_id="use", bash_command="true")
    return dag


@pytest.fixture
def simulate(tmp_path):
    """Return a function that lets DAGs run for some hours, each try for a minute unless the script says otherwise."""

    async def run(*dags, hours=3.0, script=lambda _: Outcome(duration=MINUTE), act=None) -> Simulated:
        simulation = Simulated(tmp_path, dags, script, START)
        if act is not None:
            simulation.act = lambda channels: act(simulation, channels)
        await asyncio.to_thread(simulation.run_for, hours * HOUR)
        return simulation

    return run


async def at(simulation: Simulated, dag_id: str) -> list[float]:
    """Return when each run of a DAG was created, in minutes from the start, oldest first."""
    return sorted((run.queued_at - START) / MINUTE for run in await simulation.runs(dag_id))


async def consumed(simulation: Simulated, dag_id: str) -> list[list[str]]:
    """Return the events that each run of a DAG consumed, oldest run first."""
    runs = sorted(await simulation.runs(dag_id), key=lambda run: run.run_after)
    found = [await simulation.database.read(consumed_events, run.id) for run in runs]
    return [[event.name for event in events] for events in found]


async def update(simulation: Simulated, *assets: Asset, **fields) -> None:
    """Store events from outside, without a notification."""
    now = simulation.clock.now()
    rows = [AssetEventRow(asset.name, asset.uri, {}, now, **fields) for asset in assets]
    await simulation.database.write(record_events, rows)


async def test_a_run_begins_as_soon_as_its_last_awaited_asset_is_updated(simulate):
    simulation = await simulate(
        producer("makes_a", "0 * * * *", a),
        producer("makes_b", "30 */2 * * *", b),
        consumer("both", [a, b]),
        consumer("either", a | b),
        hours=4,
    )
    assert await at(simulation, "both") == [31, 151]
    assert await consumed(simulation, "both") == [["a", "b"], ["a", "a", "b"]]
    assert await at(simulation, "either") == [1, 31, 61, 121, 151, 181]
    run = (await simulation.runs("both"))[-1]
    assert run.run_id == "asset_triggered__2026-01-01T00:31:00+00:00"
    assert (run.run_type, run.logical_date, run.data_interval_start) == ("asset_triggered", None, None)
    assert (run.run_after, run.state) == (START + 31 * MINUTE, "success")


async def test_only_a_success_updates_assets_and_a_retried_task_does_once(simulate):
    outcomes = {"fails": ["failed"], "skips": ["skipped"], "retries": ["failed", "success"]}

    def script(launch):
        states = outcomes.get(launch.run.dag_id, ["success"])
        return Outcome(states[min(launch.try_number, len(states)) - 1])

    options = {"retries": 1, "retry_delay": MINUTE}
    simulation = await simulate(
        producer("fails", "@once", a),
        producer("skips", "@once", a),
        producer("retries", "@once", b, **options),
        consumer("of_a", a),
        consumer("of_b", b),
        script=script,
    )
    assert await simulation.runs("of_a") == []
    assert len(await simulation.runs("of_b")) == 1
    [event] = await simulation.database.read(list_events)
    assert (event.name, event.source_dag_id, event.source_task_id) == ("b", "retries", "update")
    assert event.source_run_id == (await simulation.runs("retries"))[0].run_id


async def test_events_wait_at_max_active_runs_and_one_run_consumes_them_all(simulate):
    def script(launch):
        return Outcome(duration=50 * MINUTE if launch.task_id == "use" else MINUTE)

    simulation = await simulate(
        producer("makes_a", "*/10 * * * *", a), consumer("slow", a, max_active_runs=1), hours=2, script=script
    )
    assert await at(simulation, "slow") == [1, 51, 101]
    assert [len(events) for events in await consumed(simulation, "slow")] == [1, 5, 5]


async def test_a_paused_dag_misses_events_and_keeps_those_that_came_before(simulate):
    async def act(simulation, channels):
        async def pause(is_paused):
            await simulation.database.write(set_paused, "both", is_paused, simulation.clock.now())
            await channels.dag_changes.put(DagChanged("both"))

        await simulation.clock.sleep(10 * MINUTE)
        await pause(True)
        await simulation.clock.sleep(HOUR)
        await pause(False)

    simulation = await simulate(
        producer("makes_a", "@once", a),
        producer("makes_b", "30 * * * *", b),
        consumer("both", [a, b]),
        act=act,
    )
    assert await at(simulation, "both") == [91]
    assert await consumed(simulation, "both") == [["a", "b"]]


async def test_time_and_assets_trigger_beside_each_other(simulate):
    hourly = CronTriggerTimetable("15 * * * *", timezone="UTC")
    simulation = await simulate(
        producer("makes_a", "0 * * * *", a),
        consumer("both", AssetOrTimeSchedule(timetable=hourly, assets=[a])),
        hours=2,
    )
    runs = {(run.queued_at - START) / MINUTE: run.run_type for run in await simulation.runs("both")}
    assert runs == {1: "asset_triggered", 15: "scheduled", 61: "asset_triggered", 75: "scheduled"}


async def test_a_changed_condition_keeps_only_events_of_assets_still_in_it(simulate):
    async def act(simulation, channels):
        await simulation.clock.sleep(10 * MINUTE)
        report = report_of(consumer("changes", [b, Asset("c")]))
        parsed = report.dags[0].__class__(report.dags[0].dag, "f" * 64)
        changed = report.__class__(report.schema_version, report.path, (parsed,))
        await simulation.database.write(store_dag, changed, simulation.clock.now())
        pending = await simulation.database.write(pending_events, "changes")
        assert [event.asset.name for event in pending] == ["b"]
        await simulation.clock.sleep(10 * MINUTE)
        await update(simulation, Asset("c"))

    simulation = await simulate(
        producer("makes_both", "@once", a, b), consumer("changes", [a, b, Asset("c")]), act=act, hours=1
    )
    assert await consumed(simulation, "changes") == [["b", "c"]]


async def test_an_alias_stands_for_what_a_task_adds_to_it(simulate):
    def script(launch):
        told = (
            OutletEvent("b", b.uri, {"rows": 1}, alias="new files"),
            OutletEvent("later", "later", {"rows": 2}, alias="new files"),
            OutletEvent("no outlet", "no outlet", {}, alias="another alias"),
        )
        return Outcome(duration=MINUTE, outlet_events=told if launch.task_id == "update" else ())

    simulation = await simulate(
        producer("adds", "@once", alias),
        consumer("of_alias", alias),
        consumer("of_b", b),
        consumer("of_name", Asset.ref(name="later")),
        script=script,
    )
    runs = [len(await simulation.runs(dag_id)) for dag_id in ("of_alias", "of_b", "of_name")]
    assert runs == [1, 1, 1]
    assert await consumed(simulation, "of_alias") == [["b", "later"]]
    events = await simulation.database.read(list_events, EventFilter(alias="new files"))
    assert {event.name: event.extra for event in events} == {"b": {"rows": 1}, "later": {"rows": 2}}


async def test_a_lost_hint_costs_no_more_than_the_time_to_the_next_sweep(simulate):
    async def act(simulation, _):
        await simulation.clock.sleep(10.5 * MINUTE)
        await update(simulation, a)

    simulation = await simulate(consumer("of_a", a), act=act, hours=1)
    [created] = await at(simulation, "of_a")
    assert 10.5 <= created <= 10.5 + simulation.settings.sweep_interval / 60


async def test_each_instance_of_a_mapped_task_updates_its_outlets(simulate):
    with DAG("maps", schedule="@once") as maps:
        BashOperator.partial(task_id="update", outlets=[a]).expand(bash_command=["true", "true", "false"])

    def script(launch):
        told = (OutletEvent("a", "a", {"index": launch.map_index}),)
        return Outcome("failed" if launch.map_index == 2 else "success", outlet_events=told)

    simulation = await simulate(maps, consumer("of_a", a), script=script)
    events = await simulation.database.read(list_events)
    assert sorted((event.source_map_index, event.extra["index"]) for event in events) == [(0, 0), (1, 1)]
    assert sum(len(names) for names in await consumed(simulation, "of_a")) == 2


async def test_events_stored_before_a_crash_trigger_their_run_at_the_next_start(tmp_path):
    simulation = Simulated(tmp_path, [consumer("of_a", a)], lambda _: Outcome(), START)
    await simulation.prepare()
    await update(simulation, a)
    await asyncio.to_thread(simulation.run_for, HOUR)
    assert await at(simulation, "of_a") == [0]


async def test_a_cron_of_partitions_feeds_the_runs_of_rolled_up_partitions(simulate):
    hourly = CronPartitionTimetable("0 * * * *", timezone="UTC", run_offset=-1)
    segments = SegmentWindow([f"2026-01-01T{hour:02}:00:00" for hour in range(3)])
    rolled_up = RollupMapper(upstream_mapper=FixedKeyMapper("night"), window=segments)
    simulation = await simulate(
        producer("makes", hourly, a),
        consumer("each", PartitionedAssetTimetable(a)),
        consumer("night", PartitionedAssetTimetable(a, default_partition_mapper=rolled_up)),
        consumer("plain", [a]),
        hours=4.5,
    )
    made = sorted(await simulation.runs("makes"), key=lambda run: run.run_after)
    coming = [f"2026-01-01T{hour:02}:00:00" for hour in range(4)]
    assert [run.partition_key for run in made] == ["2025-12-31T23:00:00", *coming]
    assert [run.partition_date for run in made] == [START + number * HOUR for number in range(-1, 4)]
    assert {(run.logical_date, run.data_interval_start) for run in made} == {(None, None)}
    each = sorted(await simulation.runs("each"), key=lambda run: run.run_after)
    assert [(run.partition_key, run.partition_date) for run in each] == [
        (run.partition_key, run.partition_date) for run in made
    ]
    [night] = await simulation.runs("night")
    assert (night.partition_key, (night.run_after - START) / MINUTE) == ("night", 181)
    # As in Airflow, it also consumes the event of 23:00, which its window does not need.
    assert len(await simulation.database.read(consumed_events, night.id)) == 4
    assert await simulation.runs("plain") == []
