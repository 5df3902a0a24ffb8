"""Partitions: what mappers make of keys, what windows consist of, and what the scheduler reads of them."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from asynsched import (
    AllowedKeyMapper,
    Asset,
    AssetAlias,
    ChainMapper,
    CronPartitionTimetable,
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    PartitionedAssetTimetable,
    PartitionMapper,
    ProductMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    WeekWindow,
    Window,
    YearWindow,
)
from asynsched.errors import TimetableError
from asynsched.timetables import decode
from asynsched.timetables.base import DataInterval, TimeRestriction
from asynsched.timetables.partitions import Partitioning, read_partitioning

BACKWARD = Window.Direction.BACKWARD
TIME = "2024-03-13T10:42:15"
DAYS = StartOfDayMapper(input_format="%Y-%m-%d")
HUNDRED = FanOutMapper(
    upstream_mapper=IdentityMapper(),
    window=SegmentWindow(map(str, range(100))),
    downstream_mapper=IdentityMapper(),
)


def copied(mapper: PartitionMapper) -> PartitionMapper:
    """Return a mapper as the scheduler reads it."""
    return read_partitioning(json.loads(json.dumps(Partitioning(mapper).serialize()))).default


@pytest.mark.parametrize(
    ("mapper", "key", "keys"),
    [
        (IdentityMapper(), "any key", ["any key"]),
        (AllowedKeyMapper(["us", "eu"]), "eu", ["eu"]),
        (FixedKeyMapper("all"), "eu", ["all"]),
        (StartOfHourMapper(), TIME, ["2024-03-13T10"]),
        (StartOfDayMapper(), TIME, ["2024-03-13"]),
        (StartOfWeekMapper(), TIME, ["2024-03-11 (W11)"]),
        (StartOfMonthMapper(), TIME, ["2024-03"]),
        (StartOfQuarterMapper(), TIME, ["2024-Q1"]),
        (StartOfYearMapper(), TIME, ["2024"]),
        (StartOfDayMapper(input_format="%Y-%m-%dT%H:%M:%S%z", timezone="Asia/Tokyo"), TIME + "-0900", ["2024-03-14"]),
        (StartOfQuarterMapper(output_format="{quarter}. %Y"), "2024-12-31T00:00:00", ["4. 2024"]),
        (ProductMapper(IdentityMapper(), StartOfDayMapper()), f"us|{TIME}", ["us|2024-03-13"]),
        (ProductMapper(StartOfYearMapper(), IdentityMapper(), delimiter="/"), f"{TIME}/us", ["2024/us"]),
        (ChainMapper(StartOfHourMapper(), StartOfDayMapper(input_format="%Y-%m-%dT%H")), TIME, ["2024-03-13"]),
        (
            FanOutMapper(upstream_mapper=StartOfQuarterMapper(), window=QuarterWindow()),
            TIME,
            ["2024-01", "2024-02", "2024-03"],
        ),
        (
            FanOutMapper(upstream_mapper=StartOfMonthMapper(), window=QuarterWindow(direction=BACKWARD)),
            TIME,
            ["2024-01", "2024-02", "2024-03"],
        ),
        (
            FanOutMapper(
                upstream_mapper=IdentityMapper(), window=SegmentWindow(["b", "a"]), downstream_mapper=IdentityMapper()
            ),
            "x",
            ["a", "b"],
        ),
    ],
)
def test_a_mapper_gives_the_keys_that_airflow_gives_also_in_the_scheduler(mapper, key, keys):
    assert sorted(Partitioning(mapper).keys_of_event("a", "a", key)) == keys
    assert sorted(Partitioning(copied(mapper)).keys_of_event("a", "a", key)) == keys


@pytest.mark.parametrize(
    ("window", "upstream", "key", "n", "first", "last"),
    [
        (HourWindow(), StartOfHourMapper(), "2024-03-13T10", 60, "2024-03-13T10:00:00", "2024-03-13T10:59:00"),
        (DayWindow(), StartOfDayMapper(), "2024-03-13", 24, "2024-03-13T00:00:00", "2024-03-13T23:00:00"),
        (DayWindow(direction=BACKWARD), StartOfDayMapper(), "2024-03-13", 24,
         "2024-03-12T01:00:00", "2024-03-13T00:00:00"),
        (WeekWindow(), StartOfWeekMapper(), "2024-03-11 (W11)", 7, "2024-03-11T00:00:00", "2024-03-17T00:00:00"),
        (MonthWindow(), StartOfMonthMapper(), "2024-02", 29, "2024-02-01T00:00:00", "2024-02-29T00:00:00"),
        (MonthWindow(direction=BACKWARD), StartOfMonthMapper(), "2024-03", 29,
         "2024-02-02T00:00:00", "2024-03-01T00:00:00"),
        (QuarterWindow(), StartOfQuarterMapper(), "2024-Q4", 3, "2024-10-01T00:00:00", "2024-12-01T00:00:00"),
        (YearWindow(), StartOfYearMapper(), "2024", 12, "2024-01-01T00:00:00", "2024-12-01T00:00:00"),
        (SegmentWindow(["us", "eu", "us"]), FixedKeyMapper("all"), "all", 2, "eu", "us"),
    ],
)  # fmt: skip
def test_a_rollup_needs_the_keys_of_its_window(window, upstream, key, n, first, last):
    keys = sorted(copied(RollupMapper(upstream_mapper=upstream, window=window)).to_upstream(key))
    assert (len(keys), keys[0], keys[-1]) == (n, first, last)


@pytest.mark.parametrize(
    ("mapper", "key", "date"),
    [
        (StartOfDayMapper(timezone="Europe/Berlin"), "2024-03-13", datetime(2024, 3, 12, 23, tzinfo=UTC)),
        (StartOfWeekMapper(), "2024-03-11 (W11)", datetime(2024, 3, 11, tzinfo=UTC)),
        (StartOfQuarterMapper(), "2024-Q2", datetime(2024, 4, 1, tzinfo=UTC)),
        (ProductMapper(IdentityMapper(), StartOfYearMapper()), "us|2024", datetime(2024, 1, 1, tzinfo=UTC)),
        (ProductMapper(StartOfYearMapper(), StartOfYearMapper()), "2023|2024", None),
        (IdentityMapper(), "2024-03-13", None),
    ],
)
def test_the_date_of_a_partition_is_read_from_its_key(mapper, key, date):
    assert copied(mapper).to_partition_date(key) == date


@pytest.mark.parametrize(
    ("mapper", "key", "reason"),
    [
        (AllowedKeyMapper(["us"]), "eu", "'eu' is not one of the allowed keys us"),
        (StartOfDayMapper(), "yesterday", "does not match format"),
        (ProductMapper(IdentityMapper(), IdentityMapper()), "a", "has 1 segments, not 2"),
        (FanOutMapper(upstream_mapper=DAYS, window=DayWindow(), max_downstream_keys=23), "2024-03-13", "at most 23"),
        (FixedKeyMapper("x" * 251), "a", "has 251 characters"),
        (ChainMapper(HUNDRED, HUNDRED, HUNDRED), "a", "a ChainMapper gives it more than 1000 keys"),
        (ChainMapper(HUNDRED, HUNDRED, max_downstream_keys=9), "a", "more than 9 keys"),
    ],
)
def test_a_key_that_cannot_be_mapped_is_told_with_its_asset(mapper, key, reason):
    with pytest.raises(TimetableError, match=f"partition key '{key}' of the asset 'a' .*{reason}"):
        Partitioning(mapper).keys_of_event("a", "a", key)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: RollupMapper(upstream_mapper=IdentityMapper(), window=DayWindow()), "window of datetime values"),
        (lambda: MinimumCount(0), "other than 0"),
        (lambda: FanOutMapper(upstream_mapper=StartOfHourMapper(), window=HourWindow()), "needs a downstream_mapper"),
        (lambda: StartOfWeekMapper(output_format="%Y %Y"), "twice"),
        (lambda: read_partitioning({"default": {"kind": "os.system"}, "by_name": {}, "by_uri": {}}), "malformed"),
        (lambda: read_partitioning({"default": {"kind": "DayWindow"}, "by_name": {}, "by_uri": {}}), "malformed"),
        (lambda: PartitionedAssetTimetable(Asset("a"), partition_mapper_config={AssetAlias("x"): DAYS}), "alias"),
        (lambda: CronPartitionTimetable("@daily", timezone="UTC", run_offset=timedelta(1)), "whole number"),
    ],
)
def test_a_wrong_partitioning_is_told(make, reason):
    with pytest.raises((TimetableError, ValueError, TypeError), match=reason):
        make()


def test_an_asset_has_the_mapper_of_its_name_or_uri():
    a, b = Asset("a", "s3://a"), Asset("b", "s3://b")
    config = {a: DAYS, Asset.ref(uri="s3://c/d"): StartOfYearMapper()}
    found = PartitionedAssetTimetable(a & b, partition_mapper_config=config).partitioning
    assert found.mapper_of("a", "s3://a") is DAYS
    assert isinstance(found.mapper_of("", "s3://c/d"), StartOfYearMapper)
    assert isinstance(found.mapper_of("b", "s3://b"), IdentityMapper)


@pytest.mark.parametrize(
    ("options", "date", "key"),
    [
        ({}, datetime(2024, 3, 31, 22, tzinfo=UTC), "2024-04-01T00:00:00"),
        ({"run_offset": -1, "key_format": "%Y-%m-%d"}, datetime(2024, 3, 30, 23, tzinfo=UTC), "2024-03-31"),
        ({"run_offset": 2, "key_format": "%d"}, datetime(2024, 4, 2, 22, tzinfo=UTC), "03"),
    ],
)
def test_a_cron_expression_gives_each_run_the_partition_of_its_offset(options, date, key):
    timetable = decode(CronPartitionTimetable("@daily", timezone="Europe/Berlin", **options).serialize())
    last = datetime(2024, 3, 30, 23, tzinfo=UTC)
    info = timetable.next_run(DataInterval.exact(last), TimeRestriction(None, None, catchup=True), last)
    assert (info.run_after, info.partition_date, info.partition_key) == (
        datetime(2024, 3, 31, 22, tzinfo=UTC), date, key,
    )  # fmt: skip
    if "%Y" in options.get("key_format", "%Y"):
        assert timetable.date_of(key) == date
