"""Runs and tasks as tries begin and end: the evaluation alone, without a database or a clock."""

from datetime import timedelta

import msgspec
import pytest

from asynsched.protocol.messages import BranchDecision, Ended, OutletEvent, ShortCircuitDecision, SkipDecision, Started
from asynsched.scheduling.announcements import task_launch
from asynsched.scheduling.rules.run_end import TaskEnd, decide_run_state
from asynsched.states import TaskInstanceState as State
from asynsched.timetables.asset_condition import AssetCondition, AssetForm
from tests.support.runs import NOON, evaluation, granted, run_of, started, task


def drive(engine, run, outcomes=None, choose=None):
    """Start a run, and end every try that is granted, in the order granted, until nothing happens any more."""
    engine.start_run(run, NOON)
    now = NOON
    started = []
    while True:
        now += timedelta(seconds=1)
        engine.time_passed(now)
        found = granted(engine, now)
        if not found:
            if engine.next_timer is None:
                return started
            now = engine.next_timer
            continue
        for ready in found:
            started.append((ready.task_id, ready.try_number))
            engine.try_started(Started(ready.token, now, 1), now)
            state = (outcomes or {}).get(ready.task_id, "success")
            if isinstance(state, list):
                state = state[min(ready.try_number, len(state)) - 1]
            decision = (choose or {}).get(ready.task_id)
            engine.try_ended(Ended(ready.token, state, now, now, reason=f"it was {state}", decision=decision), now)


def states(run):
    return {task_id: str(found.state) for task_id, found in unmapped(run)}


def unmapped(run):
    return [(task_id, found[-1]) for task_id, found in run.instances.items()]


def test_a_chain_runs_in_order_and_the_run_succeeds():
    run = run_of([task("a", "b"), task("b", "c"), task("c")])
    assert drive(evaluation(), run) == [("a", 1), ("b", 1), ("c", 1)]
    assert run.state == "success"


def test_a_failure_fails_what_follows_and_is_the_runs_reason():
    run = run_of([task("a", "b"), task("b", "c"), task("c")])
    assert drive(evaluation(), run, {"a": "failed"}) == [("a", 1)]
    assert states(run) == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}
    assert run.instance("a").reason == "it was failed"
    assert "all_success" in run.instance("b").reason
    assert (run.state, run.reason) == ("failed", "a: it was failed")


def test_a_run_names_the_first_failure_that_did_it_harm_and_counts_the_others():
    tasks = [
        task("a_handled", "z_always"),
        task("z_always", trigger_rule="all_done"),
        task("first", "middle"),
        task("middle", "leaf"),
        task("another", "leaf"),
        task("leaf"),
    ]
    run = run_of(tasks)
    drive(evaluation(), run, dict.fromkeys(("a_handled", "first", "another"), "failed"))
    assert run.instance("a_handled").state == "failed"
    assert run.reason == "first: it was failed (and 1 more)"


def test_a_run_without_a_failed_task_names_why_its_task_could_not_start():
    end = TaskEnd("a", State.UPSTREAM_FAILED, True, False, name="a", reason="there is nothing to map over")
    assert decide_run_state([end]).reason == "a: there is nothing to map over"


def test_a_retry_waits_for_its_delay_and_keeps_the_failed_try():
    run = run_of([task("a", retries=2, retry_delay=60.0)])
    engine = started(run)
    engine.grant(NOON)
    token = run.instance("a").token
    engine.try_ended(Ended(token, "failed", NOON, NOON, "boom"), NOON)
    assert states(run) == {"a": "up_for_retry"}
    assert [(row.try_number, row.state, row.reason) for row in engine.pending.history] == [(1, "failed", "boom")]
    engine.time_passed(NOON + timedelta(seconds=59))
    engine.grant(NOON)
    assert states(run) == {"a": "up_for_retry"}
    engine.time_passed(NOON + timedelta(seconds=60))
    engine.grant(NOON)
    assert (states(run), run.instance("a").try_number) == ({"a": "queued"}, 2)
    assert run.instance("a").token != token


@pytest.mark.parametrize(
    "ends",
    [{}, {"cause": "machine"}, {"state": "up_for_reschedule", "reschedule_at": NOON}],
    ids=["failed", "killed", "rescheduled"],
)
def test_a_try_finds_no_xcoms_of_an_earlier_one(ends):
    run = run_of([task("a", retries=2, retry_delay=0.0)])
    engine = started(run)
    engine.grant(NOON)
    assert engine.pending.forgotten == [], "the first one has none before it"
    ended = {"state": "failed", **ends}
    engine.try_ended(Ended(run.instance("a").token, ended.pop("state"), NOON, NOON, **ended), NOON)
    engine.time_passed(NOON + timedelta(seconds=60))
    engine.grant(NOON + timedelta(seconds=60))
    assert (run.instance("a").state, len(engine.pending.forgotten)) == ("queued", 1)


def test_a_teardown_waits_for_all_tasks_after_its_setup_also_those_of_another_branch():
    run = run_of(
        [
            task("su", "slow", "bad", "td", is_setup=True), task("slow", "joined"), task("bad", "joined"),
            task("joined", "td"), task("td", is_teardown=True, trigger_rule="all_done_setup_success"),
        ]
    )  # fmt: skip
    engine = started(run)

    def end(task_id, state="success"):
        engine.grant(NOON)
        engine.try_ended(Ended(run.instance(task_id).token, state, NOON, NOON), NOON)

    end("su")
    end("bad", "failed")
    assert states(run) == {
        "su": "success", "slow": "queued", "bad": "failed", "joined": "upstream_failed", "td": "None",
    }  # fmt: skip
    end("slow")
    end("td")
    assert run.state == "failed"


def test_a_task_that_asks_to_fail_without_retry_gets_none():
    run = run_of([task("a", retries=5)])
    engine = started(run)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON, "no use", retry=False), NOON)
    assert run.instance("a").state == "failed"


def test_a_kill_by_the_machine_uses_up_no_retry_of_the_tasks_own():
    run = run_of([task("a", retries=1)])
    engine = started(run)
    for cause, state in (("machine", "up_for_retry"), ("task", "up_for_retry"), ("machine", "up_for_retry")):
        engine.time_passed(NOON + timedelta(days=1))
        engine.grant(NOON)
        engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON, "dead", cause=cause), NOON)
        assert run.instance("a").state == state
    engine.time_passed(NOON + timedelta(days=1))
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON, "own fault"), NOON)
    assert (run.instance("a").state, run.instance("a").try_number) == ("failed", 4)


@pytest.mark.parametrize(("wanted", "waits"), [(7.5, 7.5), (-1.0, 0), (1e300, 365 * 86400), (None, 300)])
def test_a_retry_policy_says_how_long_a_retry_waits_within_bounds(wanted, waits):
    run = run_of([task("a", retries=1, retry_delay=300.0)])
    engine = started(run)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON, retry_delay=wanted), NOON)
    assert (run.instance("a").state, engine.next_timer) == ("up_for_retry", NOON + timedelta(seconds=waits))


def test_kills_by_the_machine_do_not_lengthen_the_delay_of_own_retries():
    run = run_of([task("a", retries=1, retry_delay=600.0, retry_exponential_backoff=10.0)])
    engine = started(run)
    now = NOON
    for cause in ("machine", "machine", "task"):
        engine.grant(now)
        engine.try_ended(Ended(run.instance("a").token, "failed", now, now, cause=cause), now)
        waited, now = engine.next_timer - now, engine.next_timer
        engine.time_passed(now)
    assert timedelta(seconds=600) <= waited < timedelta(seconds=1200)


def test_the_delay_doubles_with_each_further_kill_by_the_machine():
    run = run_of([task("a")])
    engine = started(run)
    now = NOON
    for seconds in (1, 2, 4):
        engine.grant(now)
        engine.try_ended(Ended(run.instance("a").token, "failed", now, now, "dead", cause="machine"), now)
        assert (run.instance("a").state, engine.next_timer) == ("up_for_retry", now + timedelta(seconds=seconds))
        now = engine.next_timer
        engine.time_passed(now)


def test_an_interrupted_try_goes_back_with_its_number_and_gets_a_new_start():
    run = run_of([task("a")])
    engine = started(run)
    engine.grant(NOON)
    ready = run.instance("a")
    engine.try_started(Started(ready.token, NOON, 1), NOON)
    engine.try_ended(Ended(ready.token, "failed", NOON, NOON, "", cause="interrupted"), NOON)
    assert (ready.state, ready.try_number, ready.started_at, ready.ended_at) == ("scheduled", 0, None, None)
    later = NOON + timedelta(hours=1)
    engine.grant(later)
    engine.try_started(Started(ready.token, later, 2), later)
    assert (ready.state, ready.try_number, ready.started_at) == ("running", 1, later)


def test_a_task_interrupted_after_a_reschedule_keeps_its_first_start_until_a_retry():
    # A mapped sensor may not say its mode, and an operator that reschedules itself has none.
    run = run_of([task("a", retries=1)])
    engine = started(run)
    engine.grant(NOON)
    assert task_launch(run.instance("a"), 1).reschedule_started_at is None
    ready, later = run.instance("a"), NOON + timedelta(minutes=1)
    engine.try_ended(Ended(ready.token, "up_for_reschedule", NOON, NOON, reschedule_at=later), NOON)
    engine.time_passed(later)
    engine.grant(later)
    engine.try_ended(Ended(ready.token, "failed", later, later, cause="interrupted"), later)
    engine.grant(later)
    assert (ready.state, ready.started_at, task_launch(ready, 1).reschedule_started_at) == ("queued", NOON, NOON)
    engine.try_ended(Ended(ready.token, "failed", later, later), later)
    engine.time_passed(engine.next_timer)
    engine.grant(later + timedelta(hours=1))
    assert (ready.state, task_launch(ready, 1).reschedule_started_at) == ("queued", None)


def test_a_message_of_an_earlier_try_changes_nothing_and_is_counted():
    run = run_of([task("a", retries=1)])
    engine = started(run)
    engine.grant(NOON)
    old = run.instance("a").token
    engine.try_ended(Ended(old, "failed", NOON, NOON), NOON)
    engine.try_ended(Ended(old, "success", NOON, NOON), NOON)
    engine.try_started(Started(old, NOON, 1), NOON)
    assert run.instance("a").state == "up_for_retry"
    assert engine.pending.n_stale == 2


def test_a_branch_skips_what_it_does_not_follow_but_not_the_join():
    tasks = [task("pick", "left", "right", "join"), task("left", "join"), task("right", "join")]
    run = run_of([*tasks, task("join", trigger_rule="none_failed_min_one_success")])
    drive(evaluation(), run, choose={"pick": BranchDecision(("left",))})
    assert states(run) == {"pick": "success", "left": "success", "right": "skipped", "join": "success"}
    assert run.instance("right").reason == "the branch pick chose left"


def test_a_task_skips_others_anywhere_in_the_run_but_not_what_has_begun():
    tasks = [
        task("pick", "next", is_branch=True),
        task("next", "last"),
        task("last"),
        task("beside"),
        task("far", "end"),
    ]
    run = run_of([*tasks, task("end", trigger_rule="all_done"), task("first", "far")])
    choose = {"pick": SkipDecision(("last", "far", "beside", "pick", "gone"))}
    drive(evaluation(), run, choose=choose)
    skipped = {"last": "skipped", "far": "skipped"}
    assert states(run) == dict.fromkeys(("pick", "next", "first", "beside", "end"), "success") | skipped
    assert run.instance("far").reason == "the task pick skipped it"


def test_a_branch_keeps_tasks_after_a_chosen_task_that_it_does_not_precede():
    run = run_of([task("pick", "last", "other"), task("first", "last"), task("last"), task("other")])
    drive(evaluation(), run, choose={"pick": BranchDecision(("first",))})
    assert states(run) == {"pick": "success", "first": "success", "last": "success", "other": "skipped"}


def test_a_run_is_not_taken_for_deadlocked_while_a_branch_is_being_settled():
    run = run_of([task("pick", "left", "right"), task("left", "join"), task("right", "join"), task("join")])
    drive(evaluation(), run, choose={"pick": BranchDecision(("right",))})
    assert states(run) == {"pick": "success", "left": "skipped", "right": "success", "join": "skipped"}
    assert (run.state, run.reason) == ("success", "all tasks have ended")


def test_a_branch_also_skips_a_task_that_was_ready_and_waited_for_room():
    tasks = [task("first", "any"), task("pick", "any", "other"), task("any", trigger_rule="one_success"), task("other")]
    run = run_of(tasks)
    engine = started(run, parallelism=2)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("first").token, "success", NOON, NOON), NOON)
    assert run.instance("any").state == "scheduled"
    engine.try_ended(
        Ended(run.instance("pick").token, "success", NOON, NOON, decision=BranchDecision(("other",))), NOON
    )
    engine.grant(NOON)
    assert states(run) | {"other": ""} == {"first": "success", "pick": "success", "any": "skipped", "other": ""}


@pytest.mark.parametrize(
    "decision", [BranchDecision(("other",)), ShortCircuitDecision(ignore_downstream_trigger_rules=False)]
)
def test_a_decision_also_skips_what_a_failure_had_settled_before_it(decision):
    tasks = [
        task("bad", "next", "pick"), task("pick", "next", "other", trigger_rule="all_done"),
        task("next", "after", "told"), task("other", "slow"), task("slow", "told"), task("after"),
        task("told", trigger_rule="none_skipped"),
    ]  # fmt: skip
    run = run_of(tasks)
    drive(evaluation(), run, {"bad": "failed"}, choose={"pick": decision})
    # Tasks that the failure had settled further down stay as they are; waiting ones see the skip.
    expected = {"bad": "failed", "pick": "success", "next": "skipped", "after": "upstream_failed", "told": "skipped"}
    assert {name: state for name, state in states(run).items() if name in expected} == expected


@pytest.mark.parametrize(("ignore", "last"), [(True, "skipped"), (False, "success")])
def test_a_false_short_circuit_skips_everything_or_only_what_is_next(ignore, last):
    run = run_of([task("check", "next"), task("next", "last"), task("last", trigger_rule="all_done")])
    drive(evaluation(), run, choose={"check": ShortCircuitDecision(ignore)})
    assert states(run) == {"check": "success", "next": "skipped", "last": last}


def test_an_empty_task_succeeds_without_a_process_which_counts_as_a_try():
    run = run_of([task("start", "a", is_empty=True), task("a", "end"), task("end", is_empty=True)])
    assert drive(evaluation(), run) == [("a", 1)]
    assert (run.state, run.instance("start").try_number) == ("success", 1)


def test_a_run_without_tasks_succeeds_at_once():
    run = run_of([])
    drive(evaluation(), run)
    assert run.state == "success"


def test_a_run_that_takes_too_long_ends_as_failed_and_its_tries_are_unwanted():
    run = run_of([task("a", "b"), task("b")], dagrun_timeout=30.0)
    engine = started(run)
    engine.grant(NOON)
    engine.time_passed(NOON + timedelta(seconds=30))
    assert [token for token, _ in engine.pending.unwanted] == [run.instance("a").token]
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON, "killed", cause="machine"), NOON)
    assert states(run) == {"a": "skipped", "b": "skipped"}
    assert run.state == "failed"
    assert "dagrun_timeout" in run.reason


def test_a_return_value_is_stored_with_the_success():
    run = run_of([task("a")])
    engine = started(run)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON, return_value=msgspec.Raw(b'{"n":1}')), NOON)
    assert [(row.key, row.value) for row in engine.pending.batch().xcoms] == [("return_value", '{"n":1}')]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["us", "x" * 251], "its outlet events: the partition key 'xxxx"),
        (["nul \0 here"], "its outlet events: a partition key is a string that is neither blank nor has NUL"),
        (
            [f"k{number}" for number in range(1001)],
            "at most 1000 partition keys and events of aliases in all, not 1001",
        ),
        ([""] * 1001, "at most 1000 partition keys and events of aliases in all, not 1001: divide them among"),
    ],
    ids=["length", "NUL", "number", "aliases"],
)
def test_a_try_fails_whose_process_sends_outlet_events_that_cannot_be_stored(keys, reason):
    run = run_of([task("a", outlets=(AssetCondition(asset=AssetForm("x", "x")),), retries=1)])
    engine = started(run)
    engine.grant(NOON)
    told = tuple(OutletEvent("x", "x", partition_key=key, alias="" if key else "known later") for key in keys)
    engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON, outlet_events=told), NOON)
    assert run.instance("a").state == "up_for_retry"
    assert reason in run.instance("a").reason
    assert engine.pending.batch().asset_events == []


def test_callbacks_are_requested_only_where_the_author_wrote_them():
    waits = {"callbacks": ("on_failure", "on_skipped", "on_retry")}
    tasks = [task("a", "b", callbacks=("on_success",)), task("b", "c"), task("c", **waits)]
    run = run_of(tasks, callbacks=("on_failure",))
    engine = started(run)
    for state in ("success", "failed"):
        engine.grant(NOON)
        ready = engine.pending.granted.pop()
        engine.try_ended(Ended(ready.token, state, NOON, NOON), NOON)
    assert states(run)["c"] == "upstream_failed"
    assert [(row.task_id, row.event) for row in engine.pending.callbacks] == [("a", "on_success"), ("", "on_failure")]


def test_a_run_that_is_dropped_leaves_the_tries_whose_ends_the_executor_will_report():
    engine, run = evaluation(), run_of([task("a"), task("b")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    known, other = run.instance("a").token, run.instance("b").token
    engine.tries.strays.add(known)
    assert set(engine.drop_run(run.key, NOON)) == {known, other}
    assert engine.tries.strays == {known}
