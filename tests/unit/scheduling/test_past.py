"""Tasks that look at the run before: they wait for it, follow it as it goes on, and take their dates from the run."""

from datetime import timedelta

import pytest

from asynsched.protocol.messages import BranchDecision, Ended, SkipDecision
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.decisions import verdict_of
from asynsched.scheduling.rules.past_depends import PastTask, past_depends
from asynsched.serialization.schema import MapLiteral
from tests.support.runs import NOON, evaluation, run_of, started, task


def consecutive(n, *tasks, **options):
    """Return runs of one DAG on consecutive days; each knows the one before."""
    runs = [run_of(tasks, **options) for _ in range(n)]
    for number, run in enumerate(runs):
        run.logical_date = NOON + timedelta(days=number)
        run.key_before = runs[number - 1].key if number else None
    return runs


def end(engine, run, task_id, state="success", decision=None):
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance(task_id).token, state, NOON, NOON, retry=False, decision=decision), NOON)
    engine.grant(NOON)


def states(*runs):
    return ["".join(str(found.state or "-")[0] for found in run.all_instances()) for run in runs]


def test_each_run_waits_for_the_same_task_of_the_run_before():
    first, second, third = consecutive(3, task("a", "b", depends_on_past=True), task("b"))
    engine = evaluation()
    for run in (first, second, third):
        engine.start_run(run, NOON)
    engine.grant(NOON)
    assert states(first, second, third) == ["q-", "--", "--"]
    end(engine, first, "a")
    assert states(first, second, third) == ["sq", "q-", "--"]
    end(engine, second, "a", "skipped")
    assert states(first, second, third) == ["sq", "ss", "q-"]
    assert second.state == "success"


def test_a_run_that_waits_for_its_past_says_so_and_is_not_deadlocked():
    first, second = consecutive(2, task("a", "b", depends_on_past=True), task("b"))
    engine = started(first, second)
    end(engine, first, "a", "failed")
    assert (first.state, second.state) == ("failed", "running")
    assert states(second) == ["--"]


def test_wait_for_downstream_also_waits_for_the_tasks_after_it():
    first, second = consecutive(2, task("a", "b", depends_on_past=True, wait_for_downstream=True), task("b"))
    engine = started(first, second)
    end(engine, first, "a")
    assert states(first, second) == ["sq", "--"]
    end(engine, first, "b")
    assert states(first, second) == ["ss", "q-"]


def test_a_skip_is_held_back_until_the_past_lets_it_pass():
    tasks = [task("pick", "left", "right", is_branch=True), task("left")]
    waits = task("right", depends_on_past=True, wait_for_past_depends_before_skipping=True, trigger_rule="all_success")
    first, second = consecutive(2, *tasks, waits)
    engine = started(first, second)
    end(engine, second, "pick", decision=BranchDecision(("left",)))
    end(engine, second, "left")
    assert (states(second), second.state) == (["ss-"], "running")
    end(engine, first, "pick", decision=BranchDecision(("right",)))
    end(engine, first, "right")
    assert (states(second), second.state) == (["sss"], "success")


def test_a_task_that_another_skips_by_name_is_skipped_whatever_its_past():
    options = {"depends_on_past": True, "wait_for_past_depends_before_skipping": True, "trigger_rule": "all_success"}
    first, second = consecutive(2, task("decides"), task("named", **options))
    engine = started(first, second)
    end(engine, second, "decides", decision=SkipDecision(("named",)))
    assert (states(second), second.state) == (["ss"], "success")
    assert second.instance("named").state == "skipped"
    end(engine, first, "named")
    assert second.instance("named").state == "skipped"


def test_a_task_does_not_wait_for_a_run_outside_its_own_dates():
    since = NOON + timedelta(days=1)
    tasks = [
        task("a", depends_on_past=True, start_date=since),
        task("up", "down", depends_on_past=True, wait_for_downstream=True),
        task("down", start_date=since),
    ]
    first, second = consecutive(2, *tasks, catchup=True)
    engine = started(first, second)
    end(engine, first, "up")
    assert states(first, second) == ["rsr", "qq-"]
    assert first.state == "success"


PASTS = [
    ({}, None, True, ""),
    ({"depends_on_past": False}, PastTask("r", 1, 1, 0), True, ""),
    ({}, PastTask("r", 1, 0, 3), True, ""),
    ({}, PastTask("r", 1, 1, 0), False, "it has not succeeded in the run before, r"),
    ({}, PastTask("r", 5, 2, 0), False, "2 of its 5 instances have not succeeded"),
    ({}, PastTask("r", 0, 0, 0), False, "the run before, r, has no such task"),
    ({"ignore_first_depends_on_past": True}, PastTask("r", 0, 0, 0, has_earlier=False), True, ""),
    ({"ignore_first_depends_on_past": True}, PastTask("r", 0, 0, 0, has_earlier=True), False, "no such task"),
    ({"wait_for_downstream": True}, PastTask("r", 1, 0, 1), False, "1 task downstream"),
    ({}, PastTask("r", 0, 0, 0, is_too_early=True), True, ""),
]


@pytest.mark.parametrize(("options", "past", "met", "reason"), PASTS)
def test_the_run_before_decides(options, past, met, reason):
    verdict = past_depends(task("a", **{"depends_on_past": True} | options), past)
    assert verdict.met is met
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("dates", "run_type", "expected"),
    [
        ({"start_date": NOON + timedelta(days=1)}, "scheduled", "rs"),
        ({"end_date": NOON - timedelta(days=1)}, "manual", "rs"),
        ({"start_date": NOON, "end_date": NOON}, "scheduled", "ss"),
        ({"start_date": NOON + timedelta(days=1)}, "backfill", "ss"),
    ],
)
def test_a_task_is_not_part_of_a_run_outside_of_its_own_dates(dates, run_type, expected):
    (run,) = consecutive(1, task("a", "b", is_empty=True, **dates), task("b", is_empty=True))
    run.run_type = run_type
    evaluation().start_run(run, NOON)
    assert (states(run), run.state) == ([expected], "success")


def test_only_the_last_instance_of_the_run_before_wakes_the_next_run(monkeypatch):
    looked_at = []
    monkeypatch.setattr(decisions, "verdict_of", lambda found: looked_at.append(found) or verdict_of(found))
    first, second = consecutive(2, task("a", depends_on_past=True, map_length=MapLiteral(100)))
    engine = started(first, second)
    engine.grant(NOON)
    for instance in list(first.all_instances()):
        engine.try_ended(Ended(instance.token, "success", NOON, NOON), NOON)
    assert {instance.state for instance in second.all_instances()} == {"scheduled"}
    assert len(looked_at) < 1000


def test_nothing_is_decided_about_an_edited_run_until_it_is_taken_up_again():
    """What memory has of it is outdated, and would be stored beside the decisions on what is stored."""
    first, second = consecutive(2, task("a", "b", depends_on_past=True), task("b"))
    engine = started(first, second)
    engine.suspend(second.key)
    end(engine, first, "a")
    assert states(first, second) == ["sq", "--"]
