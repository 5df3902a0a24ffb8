"""Failed tries are retried when Airflow retried them, and the run ends as in Airflow."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from asynsched.authoring.operators.arguments import backoff
from asynsched.protocol.messages import Ended
from asynsched.scheduling.rules.try_end import retry_delay, retry_jitter_seed
from tests.support.runs import NOON, run_of, started, task

CASES = json.loads((Path(__file__).parent / "data" / "retries.json").read_text())["cases"]
DUE_AT_ONCE = "ready/60"
"""Airflow waits until the instant has passed; asynsched retries at the instant itself."""


def cases(kind):
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


@pytest.mark.parametrize("case", cases("delay"))
def test_delays_grow_and_spread_as_in_airflow(case):
    retried = task(
        "a",
        retry_delay=float(case["retry_delay_seconds"]),
        retry_exponential_backoff=backoff("task 'a'", case["retry_exponential_backoff"]),
        max_retry_delay=case["max_retry_delay_seconds"],
    )
    inputs = case["hash_inputs"]
    date = datetime.fromisoformat(inputs["logical_date"]).astimezone(UTC)

    def delay(seed, number):
        return retry_delay(retried, jitter_seed=seed, try_number=number, n_failures=number).total_seconds()

    for expected in case["tries"]:
        number = expected["try_number"]
        assert delay(retry_jitter_seed(inputs["dag_id"], inputs["task_id"], date), number) == expected["delay_seconds"]
        for other in range(20):
            seed = retry_jitter_seed(f"other_{other}", "a", None)
            assert expected["lower"] <= delay(seed, number) <= expected["upper"]


@pytest.mark.parametrize("case", cases("sequence"))
def test_states_after_each_try_and_at_the_end_are_as_in_airflow(case):
    run = run_of([task("a", "b", retries=case["retries"]), task("b")])
    engine = started(run)
    now, attempts = NOON, []
    for outcome in [*case["outcomes"], "success"]:
        engine.grant(now)
        a = run.instance("a")
        if a.state != "queued":
            break
        state = "failed" if outcome == "failed_no_retry" else outcome
        engine.try_ended(Ended(a.token, state, now, now, retry=outcome != "failed_no_retry"), now)
        attempts.append({"task": "a", "try_number": a.try_number, "state": str(a.state)})
        now += timedelta(days=1)
        engine.time_passed(now)
    if (token := run.instance("b").token) is not None:
        engine.try_ended(Ended(token, "success", now, now), now)
    final = {"a": str(run.instance("a").state), "b": str(run.instance("b").state), "run": str(run.state)}
    assert (attempts, final) == (case["attempts"], case["final"])


@pytest.mark.parametrize("case", cases("ready"))
def test_a_retry_is_due_as_in_airflow_or_an_instant_sooner(case):
    run = run_of([task("a", retries=1, retry_delay=float(case["retry_delay_seconds"]))])
    engine = started(run)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON), NOON)
    now = NOON + timedelta(seconds=case["seconds_since_end"])
    engine.time_passed(now)
    engine.grant(now)
    assert (run.instance("a").state == "queued") == (case["ready"] or case["id"] == DUE_AT_ONCE)
