"""Partition mappers and windows of users' own: what a parse answers, and what the scheduler makes of it."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count

import msgspec
import pytest

from asynsched import Asset, FixedKeyMapper, IdentityMapper, PartitionMapper, RollupMapper, SegmentWindow, Window
from asynsched.errors import KeysNeeded
from asynsched.scheduling.rules.partitions import judge, map_events
from asynsched.timetables.asset_condition import AssetNames, PartitionEvent, read_condition
from asynsched.timetables.own_partitions import AssetAnswers, answers_to, keys_to_ask
from asynsched.timetables.partitions import Partitioning, WaitPolicy, read_partitioning

NOW, DAY = datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 13, tzinfo=UTC)
A = AssetNames("a", "a")
WAITS_FOR_A = read_condition(Asset("a").as_expression())


class Initial(PartitionMapper):
    """Has no call of `super().__init__`, as a class of attrs has none."""

    def __init__(self, allowed="abc"):
        self.allowed = allowed

    def to_downstream(self, key):
        if key == "many":
            return map(str, count())
        if key[0] not in self.allowed:
            raise LookupError(f"no key begins with {key[0]}")
        return [key[0], key[0].upper()]

    def to_partition_date(self, downstream_key):
        return DAY if downstream_key == "a" else None

    def carry_partition_date(self, source_partition_date):
        return source_partition_date.replace(day=1)


class Vowels(Window):
    def to_upstream(self, decoded_downstream):
        return "aeiou"


class Most(WaitPolicy):
    def is_satisfied(self, matched, expected):
        return matched > expected / 2


def rollup(window=None, policy=None):
    return RollupMapper(
        upstream_mapper=FixedKeyMapper("all"), window=window or SegmentWindow("aeiou"), wait_policy=policy
    )


def events(*keys: str, run_key="", date=None) -> list[PartitionEvent]:
    return [PartitionEvent(number, A, NOW, key, date, run_key) for number, key in enumerate(keys, start=1)]


def scheduled(mapper: PartitionMapper, answers: Iterable[AssetAnswers] = ()) -> Partitioning:
    """Return the mappers as the scheduler has them, with answers that have been stored."""
    form = json.loads(json.dumps(Partitioning(mapper).serialize()))
    stored = msgspec.json.decode(msgspec.json.encode(tuple(answers)), type=tuple[AssetAnswers, ...])
    return read_partitioning(form).answered(stored)


def asked(mapper: PartitionMapper, waiting: list[PartitionEvent]) -> Partitioning:
    return scheduled(mapper, answers_to(keys_to_ask(waiting), Partitioning(mapper)))


@pytest.mark.parametrize("mapper", [Initial(), rollup(Vowels()), rollup(policy=Most())])
def test_the_scheduler_knows_that_a_mapper_has_user_code_and_waits_for_its_answers(mapper):
    assert Partitioning(mapper).needs_user_code
    partitioning = scheduled(mapper)
    assert partitioning.needs_user_code
    with pytest.raises(KeysNeeded, match="which is code of the DAG file"):
        partitioning.keys_of_event("a", "a", "apple")
    found = map_events(partitioning, events("apple"))
    assert (found.mapped, found.unmapped, found.no_longer_unmapped) == ([], (), [])
    assert found.unanswered == events("apple")
    [waits] = judge(partitioning, WAITS_FOR_A, events("apple", run_key="all"))
    assert (waits.is_ready, waits.is_answered) == (False, False)


def test_mappers_of_airflow_alone_need_no_answers():
    assert not Partitioning(rollup()).needs_user_code
    assert answers_to(keys_to_ask(events("a")), Partitioning(IdentityMapper())) == ()


def test_a_parse_maps_the_keys_that_wait_and_says_which_it_cannot():
    waiting = events("apple", "zebra", "many", "line\nbreak")
    found = map_events(asked(Initial("abl"), waiting), waiting)
    assert [(event.key, event.run_key) for event in found.mapped] == [
        ("apple", "a"), ("apple", "A"), ("line\nbreak", "l"), ("line\nbreak", "L")
    ]  # fmt: skip
    assert found.no_longer_unmapped == [1, 2, 3, 4]
    assert "'zebra' of the asset 'a' cannot be mapped: LookupError: no key begins with z" in found.unmapped[0]
    assert "is mapped to 1001 keys; at most 1000 are allowed" in found.unmapped[1]


def test_a_run_has_the_date_that_the_code_reads_from_its_key_or_carries_over():
    waiting = events("apple", "banana", date=DAY.replace(hour=5))
    partitioning = asked(Initial(), waiting)
    judged = judge(partitioning, WAITS_FOR_A, map_events(partitioning, waiting).events)
    assert {one.key: (one.is_ready, one.date) for one in judged} == {
        "a": (True, DAY),
        "A": (True, DAY.replace(day=1, hour=5)),
        "b": (True, DAY.replace(day=1, hour=5)),
        "B": (True, DAY.replace(day=1, hour=5)),
    }


@pytest.mark.parametrize(
    ("mapper", "keys", "reason"),
    [
        (rollup(Vowels()), "aeio", "4 of the 5 keys of a have arrived"),
        (rollup(Vowels()), "aeiouxyz", ""),
        (rollup(policy=Most()), "aex", "2 of the 5 keys of a have arrived"),
        (rollup(policy=Most()), "aei", ""),
        (rollup(Window()), "a", "the window of a cannot be computed: NotImplementedError: Window has no to_upstream()"),
    ],
)
def test_a_window_or_wait_policy_of_a_users_own_holds_back_a_run(mapper, keys, reason):
    waiting = events(*keys, run_key="all")
    [judged] = judge(asked(mapper, waiting), WAITS_FOR_A, waiting)
    assert (judged.is_ready, judged.is_answered) == (not reason, True)
    assert judged.reason.endswith(reason)
