"""Runs that do not go on by themselves, and those that do."""

from datetime import timedelta

import pytest

from asynsched.protocol.messages import AwaitedInput, Deferral, Ended
from asynsched.scheduling.evaluation.evaluation import stand_still
from tests.support.runs import NOON, evaluation, run_of, started, task


def scene(end=None, **options):
    """Return an evaluation of two runs: one whose task has no room, and one whose task was granted, and ended so."""
    engine = started(run_of([task("waits", pool="no_room")], dag_id="held"), pools={"default_pool": None, "no_room": 0})
    other = run_of([task("goes", retries=1, retry_delay=60.0)], dag_id="other", **options)
    engine.start_run(other, NOON)
    engine.grant(NOON)
    if end is not None:
        engine.try_ended(Ended(other.instance("goes").token, end, NOON, NOON, reschedule_at=NOON + timedelta(1)), NOON)
    return engine.runs.values()


@pytest.mark.parametrize(
    ("end", "expected"),
    [(None, False), ("failed", False), ("up_for_reschedule", False), ("success", True)],
    ids=["running", "to be retried", "to look again", "ended"],
)
def test_runs_stand_still_when_none_of_them_goes_on_by_itself(end, expected):
    assert stand_still(scene(end), NOON) is expected


@pytest.mark.parametrize(("timeout", "expected"), [(60.0, False), (61.0, True), (86400.0, True)])
def test_a_run_that_only_its_timeout_ends_stands_still_unless_it_is_due_in_a_minute(timeout, expected):
    engine = started(run_of([task("waits")], dagrun_timeout=timeout), pools={"default_pool": 0})
    assert stand_still(engine.runs.values(), NOON) is expected


@pytest.mark.parametrize(("timeout", "expected"), [(60.0, False), (86400.0, True), (None, True)])
def test_a_question_whose_timeout_is_far_away_stands_still(timeout, expected):
    engine, run = evaluation(), run_of([task("asks")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    asks = run.instance("asks")
    awaited = Deferral("", {}, "go_on", timeout=timeout, input=AwaitedInput("Go on?"))
    engine.try_ended(Ended(asks.token, "deferred", NOON, NOON, deferral=awaited), NOON)
    assert stand_still(engine.runs.values(), NOON) is expected


def test_where_no_run_is_active_none_stands_still():
    assert not stand_still([], NOON)
