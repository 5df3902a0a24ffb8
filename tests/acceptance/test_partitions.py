"""Runs of partitions, in real processes: from a cron expression or by hand, through tasks and mappers, to consumers."""

import pytest

from tests.support.up import Site

DATABASES = ("postgresql",)

PARTITIONS = """
    from datetime import datetime, timezone

    from airflow.sdk import (
        DAG, AllowedKeyMapper, Asset, CronPartitionTimetable, FixedKeyMapper, PartitionedAssetTimetable,
        PartitionedAtRuntime, PartitionMapper, RollupMapper, SegmentWindow, StartOfDayMapper, Window, asset,
        get_current_context, task,
    )
    from airflow.partition_mappers.base import PartitionMapper as of_core

    assert of_core is PartitionMapper

    hours, regions = Asset("hours"), Asset("regions")

    def what():
        context = get_current_context()
        run = context["dag_run"]
        return [run.partition_key, str(run.partition_date), context["partition_key"], "ds" in context]

    with DAG("by_cron", schedule=CronPartitionTimetable("0 * * * *", timezone="UTC", run_offset=-1), catchup=False):
        task(task_id="make", outlets=[hours])(what)()

    with DAG("by_hand", schedule=PartitionedAtRuntime()):

        @task(outlets=[regions])
        def make(*, outlet_events, dag_run):
            outlet_events[regions].extra = {"by": "make"}
            if dag_run.partition_key is None:
                outlet_events[regions].add_partitions(["us", "eu", "mars"])

        make()

    with DAG("days", schedule=PartitionedAssetTimetable(assets=hours, default_partition_mapper=StartOfDayMapper())):
        task(task_id="use")(what)()

    with DAG(
        "each_region",
        schedule=PartitionedAssetTimetable(
            assets=regions, default_partition_mapper=AllowedKeyMapper(["us", "eu", "apac"])
        ),
    ):
        @task(task_id="use")
        def use(*, triggering_asset_events):
            [event] = triggering_asset_events[regions]
            return [what()[0], event.partition_key, event.extra]

        use()

    with DAG(
        "all_regions",
        schedule=PartitionedAssetTimetable(
            assets=regions,
            default_partition_mapper=RollupMapper(
                upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(["us", "eu", "apac"])
            ),
        ),
    ):
        task(task_id="use")(what)()

    @asset(schedule=PartitionedAtRuntime())
    def live(self, outlet_events):
        outlet_events[self].add_partitions("now")

    class Continent(PartitionMapper):
        def to_downstream(self, key):
            return {"us": ["america", "north"], "eu": "europe"}[key]

        def to_partition_date(self, downstream_key):
            return {"america": datetime(1507, 4, 25, tzinfo=timezone.utc), "north": None}[downstream_key]

    class Coasts(Window):
        def to_upstream(self, decoded_downstream):
            return ["us", "apac"]

    with DAG(
        "continents", schedule=PartitionedAssetTimetable(assets=regions, default_partition_mapper=Continent())
    ):
        task(task_id="use")(what)()

    with DAG(
        "coasts",
        schedule=PartitionedAssetTimetable(
            assets=regions,
            default_partition_mapper=RollupMapper(upstream_mapper=FixedKeyMapper("sea"), window=Coasts()),
        ),
    ):
        task(task_id="use")(what)()

    with DAG("without_partitions", schedule=[regions, hours]):
        task(task_id="use")(what)()
"""


def result(site: Site, run: dict, task_id: str = "use"):
    [value] = site.json("tasks", "xcom", run["dag_id"], run["run_id"], task_id)
    return value["value"]


def keys(site: Site, dag_id: str) -> list[str]:
    """Return the partition keys of a DAG's successful runs."""
    return sorted(run["partition_key"] for run in site.runs(dag_id) if run["state"] == "success")


@pytest.mark.usefixtures("new_site")
def test_keys_travel_from_runs_through_events_and_mappers_to_runs(new_site):
    site = new_site()
    site.write("partitions.py", PARTITIONS)
    with site.up() as up:
        site.wait_for_dag("without_partitions")
        site.run("dags", "trigger", "by_cron", "--partition-key", "2024-03-13T05:00:00", "--wait")
        site.until(lambda: "2024-03-13" in keys(site, "days"), "the day of the hour has its run")
        [by_day] = [run for run in site.runs("days") if run["partition_key"] == "2024-03-13"]
        assert result(site, by_day) == ["2024-03-13", "2024-03-13 00:00:00+00:00", "2024-03-13", False]
        [by_hand] = [run for run in site.runs("by_cron") if run["run_type"] == "manual"]
        assert by_hand["partition_date"] == "2024-03-13T05:00:00Z"

        site.run("dags", "trigger", "by_hand", "--wait")
        site.until(lambda: keys(site, "each_region") == ["eu", "us"], "each allowed region has its run")
        assert sorted(result(site, run) for run in site.runs("each_region")) == [
            [key, key, {"by": "make"}] for key in ("eu", "us")
        ]
        site.until(lambda: "partition.unmapped" in up.log and "'mars'" in up.log, "the key without a run is told")
        why = site.run("why", "all_regions").stdout
        assert "for the partition 'all', it waits for events of regions; 2 of the 3 keys of regions have arrived" in why
        of_own = ["america", "europe", "north"]
        site.until(lambda: keys(site, "continents") == of_own, "the file's own mapper was asked where it is parsed")
        site.until(lambda: "KeyError: 'mars'" in up.log, "its error is told")
        site.until(
            lambda: "1 of the 2 keys of regions have arrived" in site.run("why", "coasts").stdout, "its window too"
        )
        site.run("dags", "trigger", "continents", "--partition-key", "america", "--run-id", "by-hand", "--wait")
        [by_hand] = [run for run in site.runs("continents") if run["run_id"] == "by-hand"]
        assert result(site, by_hand)[:2] == ["america", "1507-04-25 00:00:00+00:00"], "the file's own mapper says it"
        refused = site.run("dags", "trigger", "continents", "--partition-key", "lost", code=1).stderr
        assert "DAG 'continents' has no partition 'lost': KeyError: 'lost'" in refused
        said = site.run("assets", "event", "regions", "--partition-key", "apac").stdout
        assert said == "Asset 'regions' was updated. It waits for all_regions, coasts, continents, each_region.\n"
        site.until(lambda: keys(site, "coasts") == ["sea"], "the file's own window is complete")
        site.until(lambda: keys(site, "all_regions") == ["all"], "the rollup runs once all regions are there")
        site.until(lambda: keys(site, "each_region") == ["apac", "eu", "us"], "so does the region")
        [event] = site.json("assets", "events", "regions", "--limit", "1")
        assert event["partition_key"] == "apac"

        site.run("dags", "trigger", "live", "--wait")
        [event] = site.json("assets", "events", "live")
        assert event["partition_key"] == "now"
        assert site.runs("without_partitions") == []

        wrong = site.run("dags", "trigger", "by_cron", "--partition-key", "yesterday", code=1).stderr
        assert "has no partition 'yesterday'" in wrong
        wrong = site.run("dags", "trigger", "without_partitions", "--partition-key", "x", code=1).stderr
        assert "is not scheduled by partitions" in wrong
        span = ("backfill", "create", "by_cron", "--from", "2024-03-13T04:00", "--to", "2024-03-13T06:30")
        assert [(date["logical_date"], date["exception_reason"]) for date in site.json(*span, "--dry-run")] == [
            ("2024-03-13T04:00:00Z", None), ("2024-03-13T05:00:00Z", "already exists"), ("2024-03-13T06:00:00Z", None),
        ]  # fmt: skip
        site.run(*span)
        site.until(lambda: site.json("backfill", "list")[0]["state"] == "completed", "the backfill has ended")
        made = [run for run in site.runs("by_cron") if run["run_type"] == "backfill"]
        assert sorted((run["partition_key"], run["state"], run["logical_date"]) for run in made) == [
            ("2024-03-13T04:00:00", "success", None), ("2024-03-13T06:00:00", "success", None),
        ]  # fmt: skip
        site.run(*span, "--reprocess", "completed")
        site.until(lambda: site.json("backfill", "list")[0]["state"] == "completed", "all have run again")
        assert len([run for run in site.runs("by_cron") if run["run_type"] == "backfill"]) == 3
        coming = site.json("dags", "next", "by_cron", "--now", "2030-01-01T00:00:00Z", "-n", "1")
        assert [(run["partition_key"], run["run_after"]) for run in coming] == [
            ("2029-12-31T23:00:00", "2030-01-01T00:00:00Z")
        ]
