"""Which events suffice for a run that assets trigger, and which events a task's success causes."""

import operator
from functools import reduce
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched import Asset, AssetAlias, AssetAll, AssetAny
from asynsched.protocol.messages import OutletEvent
from asynsched.scheduling.rules.assets import evaluate, updates_of
from asynsched.timetables.asset_condition import AssetNames, read_condition

a, b, c = Asset("a"), Asset("b", "s3://bucket/b"), Asset("c")
A, B, C = AssetNames("a", "a"), AssetNames("b", "s3://bucket/b"), AssetNames("c", "c")


@pytest.mark.parametrize(
    ("expression", "arrived", "missing"),
    [
        (a, [], "a"),
        (a, [A], ""),
        (a, [B], "a"),
        (a & b, [A], "b"),
        (a & b, [B, A], ""),
        (a | b, [], "a or b"),
        (a | b, [B], ""),
        (a & (b | c), [A], "(b or c)"),
        (a & (b | c), [C], "a"),
        (a & (b | c), [A, C], ""),
        ((a & b) | c, [A], "b or c"),
        ((a & b) | c, [C], ""),
        (a & b & c, [B], "a and c"),
        (Asset.ref(name="b"), [B], ""),
        (Asset.ref(uri="s3://bucket/b/"), [B], ""),
        (Asset.ref(name="s3://bucket/b"), [B], "s3://bucket/b"),
        (Asset("b", "s3://bucket/other"), [B], "b"),
        (AssetAlias("b"), [B], "b"),
        (AssetAlias("x"), [B._replace(aliases=frozenset({"x"}))], ""),
        (AssetAlias("x") & b, [B._replace(aliases=frozenset({"x"}))], ""),
    ],
)
def test_a_condition_is_met_by_its_events_or_says_what_is_missing(expression, arrived, missing):
    verdict = evaluate(read_condition(expression.as_expression()), arrived)
    assert verdict.met is (missing == "")
    assert verdict.reason == (f"it waits for events of {missing}" if missing else "")


def combined(drawn):
    combine, parts = drawn
    return combine(*parts) if isinstance(combine, type) else reduce(combine, parts)


@pytest.mark.parametrize(
    ("expression", "text"),
    [(a, "a"), (a & (b | c), "a and (b or c)"), (AssetAll(AssetAny(a, b)), "(a or b)"), (AssetAny(AssetAll(a)), "a")],
)
def test_a_condition_reads_as_its_author_wrote_it(expression, text):
    assert read_condition(expression.as_expression()).text == text


names = st.sampled_from("abcde")
expressions = st.recursive(
    names.map(Asset),
    lambda parts: st.tuples(st.sampled_from([AssetAll, AssetAny, operator.and_, operator.or_]),
                            st.lists(parts, min_size=1, max_size=3)).map(combined),
    max_leaves=12,
)  # fmt: skip


def holds(expression, arrived: set[str]) -> bool:
    """Return whether an expression is met, computed from its source."""
    if isinstance(expression, Asset):
        return expression.name in arrived
    every = all if isinstance(expression, AssetAll) else any
    return every(holds(part, arrived) for part in expression.objects)


@given(expressions, st.sets(names))
def test_any_expression_means_what_its_author_wrote(expression, arrived):
    verdict = evaluate(read_condition(expression.as_expression()), {AssetNames(name, name) for name in arrived})
    assert verdict.met is holds(expression, arrived)


def leaves(*assets):
    return [read_condition(asset.as_expression()) for asset in assets]


def told(**fields):
    return OutletEvent(**{"extra": {"n": 1}, **fields})


@pytest.mark.parametrize(
    ("outlets", "events", "updates"),
    [
        ([a, b], [], [("a", "a", {}, ()), ("b", "s3://bucket/b", {}, ())]),
        ([a, b], [told(name="b", uri="s3://bucket/b")], [("a", "a", {}, ()), ("b", "s3://bucket/b", {"n": 1}, ())]),
        ([a], [told(name="other", uri="other")], [("a", "a", {}, ())]),
        ([b], [told(name="b")], [("b", "s3://bucket/b", {"n": 1}, ())]),
        ([b], [told(uri="s3://bucket/b")], [("b", "s3://bucket/b", {"n": 1}, ())]),
        ([Asset.ref(name="b")], [told(name="b", uri="s3://bucket/b")], [("b", "", {"n": 1}, ())]),
        ([AssetAlias("x")], [], []),
        ([AssetAlias("x")], [told(name="b", uri="u", alias="x")], [("b", "u", {"n": 1}, ("x",))]),
        ([AssetAlias("x")], [told(name="b", uri="u", alias="y")], []),
        (
            [AssetAlias("x"), AssetAlias("y")],
            [*(told(name="b", uri="u", alias=alias) for alias in "xy"), told(name="c", uri="u", alias="y")],
            [("b", "u", {"n": 1}, ("x", "y")), ("c", "u", {"n": 1}, ("y",))],
        ),
        (
            [AssetAlias("x")],
            [told(name="b", uri="u", alias="x"), told(name="b", uri="u", alias="x", extra={"n": 2})],
            [("b", "u", {"n": 1}, ("x",)), ("b", "u", {"n": 2}, ("x",))],
        ),
    ],
)  # fmt: skip
def test_a_success_updates_the_outlets_as_the_task_described_them(outlets, events, updates):
    found = updates_of(leaves(*outlets), events)
    assert [(update.name, update.uri, update.extra, update.aliases) for update in found] == updates


class CountedEvent(OutletEvent, frozen=True):
    """An event that counts how often it is looked at."""

    n_looks: ClassVar[int] = 0

    def __getattribute__(self, name):
        if name in ("partition_key", "extra"):
            CountedEvent.n_looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("outlet", [a, AssetAlias("x")], ids=["partitions", "alias"])
def test_the_work_for_each_event_of_an_outlet_does_not_grow_with_their_number(outlet):
    alias = outlet.name if isinstance(outlet, AssetAlias) else ""

    def looks(n_events):
        events = [
            CountedEvent("a", "a", {"n": number}, alias, partition_key="" if alias else str(number))
            for number in range(n_events)
        ]
        CountedEvent.n_looks = 0
        found = updates_of(leaves(outlet), events)
        assert [update.extra for update in found] == [{"n": number} for number in range(n_events)]
        return CountedEvent.n_looks

    assert looks(200) <= 2 * looks(100)
