"""Counters of upstreams report news whenever a verdict could change."""

from itertools import product

import pytest

from asynsched.scheduling.rules.trigger_rule import _RULES, UpstreamCounts, evaluate
from asynsched.states import FINISHED_TASK_STATES

WAITING = [(rule, -1) for rule in _RULES if rule != "always"] + [("all_success", index) for index in range(3)]
"""Trigger rules and map indexes of task instances that depend on the counted upstreams."""


@pytest.mark.parametrize("counter_of", ["0000", "0001", "0011", "0101"])
def test_a_count_that_changes_a_verdict_is_news(counter_of):
    """For all ends of four upstreams, each in either of two counters."""
    for ends in product(sorted(FINISHED_TASK_STATES), repeat=4):
        counters = {"0": UpstreamCounts(), "1": UpstreamCounts()}
        for name in counter_of:
            counters[name].add_expected(1, is_setup=False)
            counters[name].has_news = False
        undecided = set(WAITING)
        for name, end in zip(counter_of, ends, strict=True):
            counters[name].add(end, is_setup=False)
            both = counters["0"].together(counters["1"])
            verdicts = {(rule, index): evaluate(rule, both, map_index=index) for rule, index in undecided}
            decided = {key for key, verdict in verdicts.items() if verdict.met or verdict.ends_as}
            assert counters[name].has_news or not decided, (ends, decided)
            undecided -= decided
            counters[name].has_news = False
