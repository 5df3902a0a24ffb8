"""A deferred task instance in the evaluation: its slots, its wait, and its resumption."""

from datetime import timedelta

import msgspec
import pytest

from asynsched.channels import TriggerUnwanted, TriggerWanted
from asynsched.protocol.messages import Deferral, Ended, Resume, Started, TriggerOutcome
from asynsched.scheduling.announcements import task_launch
from asynsched.scheduling.rules.run_end import cancelled
from tests.support.runs import NOON, evaluation, granted, run_of, started, task

SECOND = timedelta(seconds=1)


def defer(engine, ready, *, timeout=None, now=NOON):
    """Run a task that was granted until it defers; return its trigger's id."""
    engine.try_started(Started(ready.token, now, 1), now)
    deferral = Deferral("module.Trigger", {"a": 1}, "go_on", {"x": 2}, timeout)
    engine.try_ended(Ended(ready.token, "deferred", now, now, "waits", deferral=deferral), now)
    return ready.token


def deferred_run(*, timeout=None, **options):
    engine, run = evaluation(parallelism=1), run_of([task("a", "b", **options), task("b")])
    engine.start_run(run, NOON)
    [ready] = granted(engine)
    return engine, run, ready, defer(engine, ready, timeout=timeout)


def test_a_deferred_task_holds_no_slot_and_asks_for_its_trigger_with_code():
    engine, run, ready, token = deferred_run()
    assert ready.state == "deferred"
    [wanted] = [message for message in engine.pending.triggers if isinstance(message, TriggerWanted)]
    assert wanted.code is run.code
    trigger = wanted.trigger
    assert (trigger.id, trigger.classpath, trigger.kwargs) == (token, "module.Trigger", {"a": 1})
    assert (trigger.dag_id, trigger.task_id, trigger.try_number) == ("dag", "a", 1)
    other = run_of([task("c")])
    engine.start_run(other, NOON)
    assert [found.task_id for found in granted(engine)] == ["c"]


def test_an_event_has_the_same_try_go_on_in_a_new_process():
    engine, _, ready, token = deferred_run()
    engine.trigger_fired(TriggerOutcome(token, "event", payload=[3]), NOON)
    assert TriggerUnwanted(token) in engine.pending.triggers
    [again] = granted(engine)
    assert again is ready
    assert again.token != token
    assert engine.pending.forgotten == [], "it keeps its XComs"
    launch = task_launch(again, 1024)
    assert (launch.try_number, launch.resume) == (1, Resume("go_on", {"x": 2, "event": [3]}))
    engine.try_ended(Ended(again.token, "success", NOON, NOON), NOON)
    assert (again.state, again.deferral) == ("success", None)
    assert [found.task_id for found in granted(engine)] == ["b"]


@pytest.mark.parametrize(
    ("how", "resumes"), [({"cause": "interrupted"}, True), ({"cause": "machine"}, False), ({}, False)]
)
def test_what_is_handed_back_is_resumed_again_and_a_retry_begins_anew(how, resumes):
    engine, _, ready, token = deferred_run(retries=1, retry_delay=1.0)
    engine.trigger_fired(TriggerOutcome(token, "event"), NOON)
    granted(engine)
    engine.try_ended(Ended(ready.token, "failed", NOON, NOON, "gone", **how), NOON)
    engine.time_passed(NOON + timedelta(seconds=60))
    [again] = granted(engine)
    assert again.started_at == (NOON if resumes else None)
    assert (task_launch(again, 1024).resume is not None) == resumes
    assert again.try_number == (1 if resumes else 2)


@pytest.mark.parametrize("state", ["success", "skipped", "failed"])
def test_a_trigger_may_end_its_task_without_a_process(state):
    engine, _, ready, token = deferred_run(retries=3, callbacks=("on_success", "on_skipped", "on_failure"))
    engine.trigger_fired(TriggerOutcome(token, state, xcoms={"key": {"a": 1}}), NOON + SECOND)
    assert (ready.state, ready.try_number, ready.ended_at) == (state, 1, NOON + SECOND)
    assert [(row.key, msgspec.json.decode(row.value)) for row in engine.pending.batch().xcoms] == [("key", {"a": 1})]
    expected = {"success": "on_success", "skipped": "on_skipped", "failed": "on_failure"}[state]
    assert [(row.event, row.try_number) for row in engine.pending.callbacks] == [(expected, 1)]


@pytest.mark.parametrize("key", ["", "k" * 513, "\0"])
def test_a_trigger_that_ends_its_task_with_an_xcom_that_cannot_be_stored_fails_it(key):
    engine, run, ready, token = deferred_run(retries=1)
    engine.trigger_fired(TriggerOutcome(token, "success", xcoms={"good": 1, key: 2}), NOON + SECOND)
    assert (ready.state, engine.pending.xcoms) == ("failed", {})
    assert "XCom key" in ready.reason
    assert run.state == "failed"


def test_a_deferral_that_takes_too_long_is_resumed_in_order_to_fail():
    engine, _, ready, token = deferred_run(timeout=60.0)
    engine.time_passed(NOON + timedelta(seconds=59))
    assert ready.state == "deferred"
    engine.time_passed(NOON + timedelta(seconds=60))
    [again] = granted(engine, NOON + timedelta(seconds=60))
    resume = task_launch(again, 1024).resume
    assert (resume.method_name, resume.kwargs["error"]) == ("__fail__", "Trigger timeout")
    engine.trigger_fired(TriggerOutcome(token, "event"), NOON)
    assert engine.pending.n_stale == 1


def test_a_failed_trigger_is_told_with_its_traceback():
    engine, _, _, token = deferred_run()
    engine.trigger_fired(TriggerOutcome(token, "error", detail="ValueError: x", traceback=("line",)), NOON)
    [again] = granted(engine)
    kwargs = {"error": "Trigger failure", "detail": "ValueError: x", "traceback": ["line"]}
    assert task_launch(again, 1024).resume == Resume("__fail__", kwargs)


def test_a_pool_counts_deferred_tasks_where_it_is_told_to():
    run = run_of([task("a", pool="p"), task("b", pool="p"), task("c", pool="p", pool_slots=2)])
    engine = started(run, pools={"p": 2})
    engine.ready.resize_pools({"p": 2}, {"p"})
    ready = {found.task_id: found for found in granted(engine)}
    assert ready.keys() == {"a", "b"}
    tokens = {name: defer(engine, found) for name, found in ready.items()}
    assert granted(engine) == []
    engine.trigger_fired(TriggerOutcome(tokens["a"], "success"), NOON)
    assert granted(engine) == []
    engine.trigger_fired(TriggerOutcome(tokens["b"], "success"), NOON)
    assert [found.task_id for found in granted(engine)] == ["c"]


@pytest.mark.parametrize(
    ("end", "is_killed"),
    [
        (lambda engine, run, _: engine.stop_run(run.key, cancelled("cancelled"), NOON), True),
        (lambda engine, run, _: engine.drop_run(run.key, NOON), False),
        (lambda engine, _, token: engine.trigger_fired(TriggerOutcome(token, "event"), NOON), False),
        (lambda engine, _, token: engine.trigger_fired(TriggerOutcome(token, "success"), NOON), False),
        (lambda engine, _, token: engine.trigger_fired(TriggerOutcome(token, "error"), NOON), False),
        (lambda engine, *_: engine.time_passed(NOON + timedelta(seconds=60)), False),
    ],
    ids=["cancelled", "dropped", "fired", "ended by it", "failed", "too late"],
)
def test_a_trigger_is_killed_only_if_its_task_ends_without_its_outcome(end, is_killed):
    engine, run, _, token = deferred_run(timeout=60.0)
    engine.pending.clear()
    end(engine, run, token)
    assert engine.pending.triggers == [TriggerUnwanted(token, is_killed)]
