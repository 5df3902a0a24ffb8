"""The end of a task costs the same beside any other runs and tasks: counted in calls, not in seconds."""

import sys

import pytest

from asynsched.protocol.messages import Ended
from asynsched.scheduling.rules.run_end import cancelled
from tests.support.runs import NOON, evaluation, run_of, started, task


def calls_of(act) -> int:
    """Return how many functions are called, C functions included."""
    n_calls = 0

    def count(_frame, event, _argument):
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return n_calls


def calls_of_one_end(engine, ended) -> int:
    """End a task, let the next one go, and return the number of calls."""
    engine.pending.mark_stored()
    engine.pending.clear()

    def act():
        engine.try_ended(Ended(ended.token, "success", NOON, NOON), NOON)
        engine.grant(NOON)

    return calls_of(act)


def behind_a_gate(engine, n):
    """One run in which n tasks wait for one that runs; a chain runs beside them."""
    run = run_of([task("gate", *[f"waits_{k}" for k in range(n)]), *[task(f"waits_{k}") for k in range(n)],
                  task("first", "second"), task("second", "third"), task("third")])  # fmt: skip
    engine.start_run(run, NOON)
    engine.grant(NOON)
    return run.instance("first")


def many_runs(engine, n):
    """n runs, of DAGs of their own, whose first tasks want to run."""
    runs = [run_of([task("first", "second"), task("second")], f"dag_{k:05}") for k in range(n)]
    for run in runs:
        engine.start_run(run, NOON)
    engine.grant(NOON)
    return runs[0].instance("first")


def beside_a_cancelled_run(engine, n):
    """A run whose n ready tasks were cancelled while another one's task had all the room."""
    run = run_of([task("first", "second"), task("second")])
    engine.start_run(run, NOON)
    engine.grant(NOON)
    crowd = run_of([task(f"cancelled_{k}", priority_weight=2) for k in range(n)])
    engine.start_run(crowd, NOON)
    engine.stop_run(crowd.key, cancelled("ada"), NOON)
    return run.instance("first")


SURROUNDINGS = {
    "blocked tasks": ({}, behind_a_gate),
    "ready tasks of other runs, under a full pool": ({"pools": {"default_pool": 2}}, many_runs),
    "ready tasks of other runs, with all of parallelism in use": ({"parallelism": 2}, many_runs),
    "tasks that no longer want to run": ({"parallelism": 1}, beside_a_cancelled_run),
    "ready tasks of other runs, for a full executor": ({"executors": {"local": 2, "other": 5}}, many_runs),
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_the_end_of_a_task_costs_the_same_however_many_others_wait(what):
    options, surround = SURROUNDINGS[what]
    calls = {n: calls_of_one_end(engine, surround(engine, n)) for n in (50, 2000) for engine in [evaluation(**options)]}
    # A heap of forty times as many is a few steps deeper.
    assert calls[2000] <= calls[50] + 40


def test_a_full_executor_holds_up_no_other_and_its_best_task_goes_first():
    urgent = [task(f"here_{n}", priority_weight=5 + n) for n in range(3)]
    run = run_of([*urgent, task("there", executor="other")])
    engine = started(run, executors={"local": 1, "other": 1}, pools={"default_pool": 10})
    engine.grant(NOON)
    assert [ready.task_id for ready in engine.pending.granted] == ["here_2", "there"]
    calls_of_one_end(engine, run.instance("here_2"))
    assert [ready.task_id for ready in engine.pending.granted] == ["here_1"]
