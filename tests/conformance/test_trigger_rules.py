"""Trigger rules decide as Airflow does for the same upstream states."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from asynsched.scheduling.rules.trigger_rule import UpstreamCounts, evaluate, evaluate_setups
from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import TaskInstanceState

CASES = json.loads((Path(__file__).parent / "data" / "trigger_rules.json").read_text())["cases"]
BY_RULE: dict[str, list[dict]] = defaultdict(list)
for case in CASES:
    BY_RULE[case["rule"]].append(case)


def counts(case, *roles):
    found = UpstreamCounts()
    case_roles = case.get("roles") or ["direct"] * len(case["upstream_states"])
    for state, role in zip(case["upstream_states"], case_roles, strict=True):
        if role in roles:
            found.total += 1
            found.n_setups += role != "direct"
            if state != "running":
                found.add(TaskInstanceState(state), is_setup=role != "direct")
    return found


def decide(case) -> Verdict:
    map_index = case.get("map_index", -1)
    direct = evaluate(case["rule"], counts(case, "direct", "direct_setup"), map_index=map_index)
    setups = MET
    if case["rule"] != "always" and not case.get("is_teardown"):
        setups = evaluate_setups(counts(case, "indirect_setup"), map_index=map_index)
    return Verdict(setups.met and direct.met, ends_as=setups.ends_as or direct.ends_as)


@pytest.mark.parametrize("rule", sorted(BY_RULE))
def test_rule_decides_as_airflow_does(rule):
    for case in BY_RULE[rule]:
        verdict = decide(case)
        result = verdict.ends_as or ("run" if verdict.met else "wait")
        assert (result, verdict.met) == (case["result"], case["deps_met"]), case["id"]


def test_a_verdict_that_holds_or_settles_a_task_says_why():
    for case in CASES:
        verdict = evaluate(case["rule"], counts(case, "direct", "direct_setup"))
        if not verdict.met or verdict.ends_as:
            assert case["rule"] in verdict.reason
            assert "done" in verdict.reason
