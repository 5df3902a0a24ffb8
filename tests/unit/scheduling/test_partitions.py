"""The rules of partitions: which runs events count for, when they suffice, and which date a run has."""

from datetime import UTC, datetime

import pytest

from asynsched import (
    Asset,
    DayWindow,
    FixedKeyMapper,
    IdentityMapper,
    MinimumCount,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfYearMapper,
)
from asynsched.scheduling.rules.partitions import judge, map_events, waits_for
from asynsched.timetables.asset_condition import AssetNames, PartitionEvent, read_condition
from asynsched.timetables.partitions import AllowedKeyMapper, Partitioning

NOW, DAY, OTHER_DAY = (datetime(2024, 3, day, tzinfo=UTC) for day in (1, 13, 14))
a, b = Asset("a"), Asset("b")
REGIONS = SegmentWindow(["us", "eu", "apac"])


def events(*told: tuple[str, str] | tuple[str, str, datetime]) -> list[PartitionEvent]:
    """Return unmapped events of (asset, key, date of its partition)."""
    return [
        PartitionEvent(number, AssetNames(name, name), NOW, key, date[0] if date else None, "")
        for number, (name, key, *date) in enumerate(told, start=1)
    ]


def judged(partitioning: Partitioning, expression, *told) -> dict[str, tuple[bool, datetime | None]]:
    found = map_events(partitioning, events(*told))
    condition = read_condition(expression.as_expression())
    return {one.key: (one.is_ready, one.date) for one in judge(partitioning, condition, found.events)}


def test_each_key_has_a_run_of_its_own_once_all_assets_have_it():
    found = judged(Partitioning(IdentityMapper()), a & b, ("a", "x"), ("b", "y"), ("a", "y"), ("a", "z"))
    assert found == {"x": (False, None), "y": (True, None), "z": (False, None)}
    assert judged(Partitioning(IdentityMapper()), a | b, ("a", "x")) == {"x": (True, None)}


@pytest.mark.parametrize(
    ("policy", "keys", "is_ready"),
    [
        (None, ["us", "eu"], False),
        (None, ["us", "eu", "apac"], True),
        (None, ["us", "us", "mars", "eu"], False),
        (MinimumCount(2), ["us"], False),
        (MinimumCount(2), ["us", "eu"], True),
        (MinimumCount(-1), ["us"], False),
        (MinimumCount(-1), ["us", "eu"], True),
        (MinimumCount(4), ["us", "eu", "apac"], False),
    ],
)
def test_a_rollup_waits_for_as_many_keys_of_its_window_as_its_policy_says(policy, keys, is_ready):
    mapper = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=REGIONS, wait_policy=policy)
    found = judged(Partitioning(mapper), a, *(("a", key) for key in keys))
    assert found == {"all": (is_ready, None)}


def test_the_reason_names_the_partitions_and_what_they_lack():
    partitioning = Partitioning(RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow()))
    condition = read_condition(a.as_expression())
    found = map_events(partitioning, events(("a", "2024-03-13T01:00:00"), ("a", "2024-03-13T02:00:00")))
    assert waits_for(condition, judge(partitioning, condition, found.events)) == (
        "for the partition '2024-03-13', it waits for events of a; 2 of the 24 keys of a have arrived"
    )
    assert waits_for(condition, []) == "it waits for events of a with a partition key"


def test_an_event_that_cannot_be_mapped_counts_for_no_run_and_is_told():
    found = map_events(Partitioning(AllowedKeyMapper(["us"])), events(("a", "eu"), ("a", "us")))
    assert [(event.event_id, event.run_key) for event in found.events] == [(2, "us")]
    assert found.no_longer_unmapped == [1, 2]
    assert "'eu' of the asset 'a' cannot be mapped" in found.unmapped[0]


@pytest.mark.parametrize(
    ("mappers", "told", "date"),
    [
        ({}, [("a", "x", DAY), ("b", "x")], DAY),
        ({}, [("a", "x"), ("b", "x", DAY)], DAY),
        ({}, [("a", "x", DAY), ("b", "x", OTHER_DAY)], None),
        ({}, [("a", "x", DAY), ("b", "x", OTHER_DAY), ("a", "x", OTHER_DAY)], OTHER_DAY),
        ({"a": StartOfDayMapper()}, [("a", "2024-03-13T04:00:00"), ("b", "2024-03-13", OTHER_DAY)], DAY),
        (
            {"a": StartOfDayMapper(), "b": StartOfDayMapper(timezone="Europe/Berlin")},
            [("a", "2024-03-13T04:00:00"), ("b", "2024-03-13T04:00:00")],
            None,
        ),
        ({"a": StartOfYearMapper(output_format="%Y-%m-%d")}, [("a", "2024-03-13T04:00:00"), ("b", "2024-01-01")],
         datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_the_date_of_a_run_is_that_on_which_its_assets_agree(mappers, told, date):
    [found] = judged(Partitioning(IdentityMapper(), mappers), a & b, *told).values()
    assert found == (True, date)
