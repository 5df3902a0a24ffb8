"""Runs that are stopped: cancelled, out of time, or failing fast."""

import gc
from datetime import timedelta

import pytest

from asynsched.protocol.messages import Ended, Started
from asynsched.scheduling.evaluation.run import ActiveRun
from asynsched.scheduling.rules.run_end import cancelled, marked_failed
from asynsched.scheduling.storing import failed_runs
from asynsched.states import TaskInstanceState
from tests.support.runs import NOON, evaluation, run_of, started, task

HOUR = timedelta(hours=1)
CALLBACKS = {"callbacks": ("on_failure", "on_retry", "on_skipped")}


class Stopped:
    """A run whose tasks are in every state that there is when it is stopped."""

    def __init__(self, **options):
        self.engine = evaluation(pools={"default_pool": None, "no_room": 0})
        self.run = run_of(
            [
                task("su", "runs", "td", is_setup=True),
                task("runs", "td", retries=5, **CALLBACKS),
                task("fails", "after", **CALLBACKS),
                task("queued", **CALLBACKS),
                task("retries", retries=1, retry_delay=60.0, **CALLBACKS),
                task("ready", pool="no_room", **CALLBACKS),
                task("td", is_teardown=True, trigger_rule="all_done_setup_success"),
                task("after", **CALLBACKS),
            ],
            callbacks=("on_failure",),
            **options,
        )
        self.engine.start_run(self.run, NOON)
        self.engine.grant(NOON)
        self.end("su")
        self.end("retries", "failed")
        self.engine.grant(NOON)
        for task_id in ("runs", "fails"):
            self.engine.try_started(Started(self.run.instance(task_id).token, NOON, 1), NOON)
        self.engine.pending.callbacks.clear()

    def end(self, task_id, state="success", begun=True, **details):
        token = self.run.instance(task_id).token
        self.engine.try_ended(Ended(token, state, NOON, NOON if begun else None, **details), NOON)

    def end_killed(self):
        """Report the ends of tries to be killed, as the executor does."""
        by_token = {task.token: task.task_id for task in self.run.all_instances()}
        killed = {by_token[token]: reason for token, reason in self.engine.pending.unwanted}
        for task_id, reason in killed.items():
            self.end(task_id, "failed", begun=task_id != "queued", reason=reason)
        return set(killed)

    @property
    def states(self):
        return {task.task_id: str(task.state) for task in self.run.all_instances()}

    @property
    def called_back(self):
        return [(row.task_id, row.event) for row in self.engine.pending.callbacks]


def test_a_failure_in_a_dag_that_fails_fast_stops_all_but_the_teardowns():
    stopped = Stopped(fail_fast=True)
    stopped.end("fails", "failed", reason="no luck")
    assert stopped.end_killed() == {"runs", "queued"}
    stopped.engine.grant(NOON)
    assert stopped.states["td"] == "queued"
    stopped.end("td")
    skipped = dict.fromkeys(("queued", "retries", "ready", "after"), "skipped")
    assert stopped.states == {"su": "success", "td": "success", "runs": "failed", "fails": "failed", **skipped}
    assert stopped.run.instance("fails").reason == "no luck"
    assert {stopped.run.instance(task_id).reason for task_id in ("runs", *skipped)} == {
        "fail_fast: task fails has failed"
    }
    assert (stopped.run.state, stopped.run.reason) == ("failed", "runs: fail_fast: task fails has failed")
    assert stopped.called_back == [("fails", "on_failure"), ("runs", "on_failure"), ("", "on_failure")]


def test_a_failure_that_is_retried_stops_nothing_in_a_dag_that_fails_fast():
    stopped = Stopped(fail_fast=True)
    stopped.end("runs", "failed")
    assert stopped.engine.pending.unwanted == []
    assert stopped.states["fails"] == "running"


def test_a_try_that_ends_before_it_is_killed_keeps_its_end_unretried():
    stopped = Stopped(fail_fast=True)
    stopped.end("queued")
    stopped.end("fails", "failed")
    stopped.end("runs", "failed", reason="its own fault")
    assert (stopped.states["queued"], stopped.states["runs"]) == ("success", "failed")
    assert stopped.run.instance("runs").reason == "its own fault"


@pytest.mark.parametrize("ends_as", ["failed", "skipped"])
def test_a_run_cancelled_or_out_of_time_fails_with_its_teardowns_skipped(ends_as):
    stopped = Stopped(dagrun_timeout=60.0)
    if ends_as == "failed":
        stopped.engine.stop_run(stopped.run.key, cancelled("no longer wanted"), NOON)
    else:
        stopped.engine.time_passed(NOON + timedelta(seconds=60))
    assert stopped.run.state == "running"
    assert stopped.end_killed() >= {"runs", "fails", "queued"}
    waited = dict.fromkeys(("queued", "retries", "ready", "after", "td"), "skipped")
    assert stopped.states == {"su": "success", "runs": ends_as, "fails": ends_as, **waited}
    assert stopped.run.state == "failed"
    assert ("no longer wanted" if ends_as == "failed" else "dagrun_timeout of 0:01:00") in stopped.run.reason
    # As in Airflow, a person who ends a run needs no callback of its DAG.
    of_tasks, of_dag = [("fails", "on_failure"), ("runs", "on_failure")], [("", "on_failure")]
    assert sorted(stopped.called_back) == (of_tasks if ends_as == "failed" else of_dag)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_only_a_run_that_fails_by_its_tasks_may_pause_its_dag(is_stopped):
    run = run_of([task("a")], max_consecutive_failed_dag_runs=1, dagrun_timeout=60.0)
    engine = started(run)
    engine.grant(NOON)
    if is_stopped:
        engine.time_passed(NOON + HOUR)
    engine.try_ended(Ended(run.instance("a").token, "failed", NOON, NOON), NOON)
    assert (run.state, bool(failed_runs([run], 0))) == ("failed", not is_stopped)


def test_a_run_whose_tasks_wait_ends_when_it_is_cancelled():
    run = run_of([task("retries", retries=1, retry_delay=7200.0)])
    engine = started(run)
    engine.grant(NOON)
    waiting = run.instance("retries")
    engine.try_ended(Ended(waiting.token, "failed", NOON, NOON), NOON)
    engine.stop_run(run.key, cancelled("no longer wanted"), NOON + HOUR)
    assert (waiting.state, waiting.ended_at) == ("skipped", NOON + HOUR)
    assert (run.state, run.ended_at) == ("failed", NOON + HOUR)


@pytest.mark.parametrize("is_taken_up", [False, True], ids=["", "by who takes it up"])
def test_a_run_that_is_out_of_time_is_no_longer_cancelled(is_taken_up):
    stopped = Stopped(dagrun_timeout=60.0)
    stopped.engine.time_passed(NOON + timedelta(seconds=60))
    if is_taken_up:
        stopped.engine = evaluation()
        tasks = list(stopped.run.all_instances())
        stopped.engine.resume_run(stopped.run, tasks, NOON, cancelled("no longer wanted"))
    else:
        stopped.engine.stop_run(stopped.run.key, cancelled("no longer wanted"), NOON)
    for task_id in ("runs", "fails", "queued"):
        stopped.end(task_id, "failed", reason="it was killed")
    assert (stopped.run.state, stopped.states["runs"]) == ("failed", "skipped")
    assert "dagrun_timeout of 0:01:00" in stopped.run.reason


def timed(started_at):
    """Return an evaluation with a run of one task that may take an hour."""
    engine, run = evaluation(), run_of([task("a")], dagrun_timeout=3600.0)
    engine.start_run(run, started_at)
    engine.grant(started_at)
    return engine, run


def test_a_run_that_starts_again_has_its_full_time_again():
    engine, first = timed(NOON)
    engine.try_ended(Ended(first.instance("a").token, "success", NOON, NOON), NOON)
    again = run_of([task("a")], dagrun_timeout=3600.0)
    again.key = first.key
    engine.start_run(again, NOON + HOUR / 2)
    engine.time_passed(NOON + HOUR)
    assert again.stop is None
    engine.time_passed(NOON + HOUR * 1.5)
    assert again.state == "failed"


def test_a_run_whose_tasks_ended_in_time_succeeds_when_processes_end_late():
    engine, run = timed(NOON)
    engine.tries.make_wait(run, ["marked"], NOON)
    engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON), NOON)
    engine.time_passed(NOON + HOUR)
    assert run.state == "running"
    engine.try_ended(Ended("marked", "failed", NOON + HOUR), NOON + HOUR)
    assert run.state == "success"


def test_a_run_that_is_kept_open_outlasts_the_processes_it_waited_for():
    engine, run = timed(NOON)
    engine.tries.keep_open(run)
    engine.tries.make_wait(run, ["marked"], NOON)
    for token in (run.instance("a").token, "marked"):
        engine.try_ended(Ended(token, "success", NOON, NOON), NOON)
    assert run.state == "running"
    assert engine.drop_run(run.key, NOON) == [], "no try is left to end"


def test_no_timer_keeps_an_ended_run_in_memory():
    engine, run = timed(NOON)
    engine.try_ended(Ended(run.instance("a").token, "success", NOON, NOON), NOON)
    engine.pending.clear()
    row_id = run.id
    del run
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, ActiveRun) and found.id == row_id]


def test_a_large_run_is_stopped_in_slices_and_ends_with_its_last_task():
    names = [f"t{number}" for number in range(150)]
    run = run_of(
        [*(task(name, "last", pool="no_room") for name in names), task("last", "td"), task("td", is_teardown=True)]
    )
    engine = started(run, pools={"default_pool": None, "no_room": 0}, at_once=20)
    while engine.has_undecided:
        engine.go_on(NOON)
    engine.stop_run(run.key, cancelled("enough"), NOON)
    n_skipped = []
    while engine.has_undecided:
        before = run.n_unfinished
        assert run.state == "running"
        engine.go_on(NOON)
        n_skipped.append(before - run.n_unfinished)
    assert max(n_skipped) <= 20
    assert run.state == "failed"
    assert {found.state for found in run.all_instances()} == {"skipped"}


def test_ends_during_the_stop_of_a_large_run_do_not_end_it_early():
    waiting = [task(f"t{number}", "td", pool="no_room") for number in range(50)]
    run = run_of([task("runs"), *waiting, task("td", is_teardown=True, trigger_rule="all_done")])
    engine = started(run, pools={"default_pool": None, "no_room": 0}, at_once=20)
    while engine.has_undecided:
        engine.go_on(NOON)
    engine.grant(NOON)
    engine.stop_run(run.key, marked_failed("wrong"), NOON)
    engine.try_ended(Ended(run.instance("runs").token, "failed", NOON, NOON), NOON)
    assert run.state == "running"
    while engine.has_undecided:
        engine.go_on(NOON)
    assert (run.state, run.instance("td").state) == ("running", "scheduled")
    assert {found.state for found in run.all_instances()} == {"failed", "skipped", "scheduled"}


def test_a_second_stop_during_the_stop_of_a_large_run_is_done_as_well():
    waiting = [task(f"t{number}", "td" if number == 0 else "last", pool="no_room") for number in range(50)]
    teardown = task("td", is_teardown=True, trigger_rule="all_done")
    run = run_of([task("fails"), *waiting, task("last"), teardown], fail_fast=True)
    engine = started(run, pools={"default_pool": None, "no_room": 0}, at_once=20)
    while engine.has_undecided:
        engine.go_on(NOON)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("fails").token, "failed", NOON, NOON), NOON)
    assert (run.instance("t0").state, run.instance("t49").state) == ("skipped", "scheduled")
    engine.stop_run(run.key, marked_failed("wrong"), NOON)
    while engine.has_undecided:
        engine.go_on(NOON)
    assert (run.state, run.instance("td").state) == ("running", "scheduled")
    assert {run.instance(found.task_id).state for found in waiting} == {"skipped"}


@pytest.mark.parametrize(
    "end",
    [{"state": "failed"}, {"state": "failed", "cause": "machine"}, {"state": "failed", "cause": "interrupted"}],
    ids=["with retries left", "by the machine", "interrupted"],
)
def test_a_cleared_teardown_runs_again_although_its_run_is_stopped_meanwhile(end):
    run = run_of([task("work", "td"), task("td", is_teardown=True, retries=2, trigger_rule="all_done")])
    engine = started(run)
    engine.grant(NOON)
    engine.try_ended(Ended(run.instance("work").token, "success", NOON, NOON), NOON)
    engine.grant(NOON)
    teardown = run.instance("td")
    teardown.state = teardown.stored_state = TaskInstanceState.RESTARTING
    engine.stop_run(run.key, marked_failed("wrong"), NOON)
    engine.try_ended(Ended(teardown.token, ended_at=NOON, started_at=NOON, **end), NOON)
    assert (run.state, teardown.state) == ("running", "scheduled")
