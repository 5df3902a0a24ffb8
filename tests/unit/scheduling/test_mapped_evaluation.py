"""Mapped tasks in the evaluation: their cost, and their changes when their inputs change."""

import sys
from datetime import timedelta

import msgspec
import pytest

from asynsched.protocol.messages import BranchDecision, Ended, ShortCircuitDecision
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.rules.past_depends import PastTask
from asynsched.scheduling.rules.run_end import cancelled
from asynsched.serialization.schema import MapLiteral, MapProduct, MapResult, SerializedTaskGroup
from asynsched.states import DagRunState, TaskInstanceState
from tests.support.runs import NOON, evaluation, granted, run_of, started, task

VALUE = msgspec.Raw(b"0")
MAPPED = [task("source", "mapped"), task("mapped", map_length=MapResult("source"))]
MAPPED_EARLY = [
    task("source", "mapped", "other"),
    task("other", "mapped"),
    task("mapped", map_length=MapResult("source"), trigger_rule="one_success"),
]
"""The mapped task may begin before it is known how many instances it has."""


def drive(engine, lengths=None, *, start, ends=None):
    """End every try, as given or in success, with as many values as given; return the calls."""
    n_calls = 0

    def count(_frame, event, _argument):
        nonlocal n_calls
        n_calls += event == "call"

    sys.setprofile(count)
    try:
        start()
        now = NOON
        while True:
            now += timedelta(seconds=1)
            found = granted(engine, now)
            if not found:
                return n_calls
            for ready in found:
                length = (lengths or {}).get(ready.task_id, 1)
                state = (ends or {}).get(ready.task_id, "success")
                engine.try_ended(Ended(ready.token, state, now, now, return_value=VALUE, result_length=length), now)
    finally:
        sys.setprofile(None)


def chain_of(n):
    return run_of(
        [
            task("source", "first", "x"),
            task("first", "second", "waits_for_one", map_length=MapResult("source")),
            task("second", "reduce", map_length=MapResult("first")),
            task("waits_for_one", map_length=MapLiteral(n), trigger_rule="one_success"),
            task("reduce"),
            task("x", "y", group_id="group"),
            task("y", "after", group_id="group"),
            task("after", is_empty=True),
        ],
        task_groups=(SerializedTaskGroup("group", map_length=MapResult("source")),),
    )


@pytest.mark.parametrize("parallelism", [1000000, 3])
def test_the_work_for_mapped_tasks_grows_linearly_with_their_number(parallelism):
    calls = {}
    for n in (100, 400):
        engine, run = evaluation(parallelism=parallelism, max_active_tasks=parallelism), chain_of(n)
        calls[n] = drive(engine, {"source": n}, start=lambda engine=engine, run=run: engine.start_run(run, NOON))
        assert run.state == "success"
        assert sum(1 for _ in run.all_instances()) == 5 * n + 3
    assert calls[400] < 5 * calls[100]


def across_the_border(n):
    """A mapped task before a mapped group of as many instances, and two groups in a group, one after the other."""
    return run_of(
        [
            task("source", "mapped", "x"),
            task("mapped", "y", "y_of_any", map_length=MapResult("source")),
            task("x", "y", "y_of_any", group_id="group"),
            task("y", group_id="group", trigger_rule="all_done"),
            task("y_of_any", group_id="group", trigger_rule="one_success"),
            task("a", "b", "c", group_id="first"),
            task("b", "c", group_id="second"),
            task("c", group_id="second", trigger_rule="none_failed"),
        ],
        task_groups=(
            SerializedTaskGroup("group", map_length=MapResult("source")),
            SerializedTaskGroup("around", map_length=MapLiteral(1)),
            SerializedTaskGroup("first", parent_id="around", map_length=MapLiteral(n)),
            SerializedTaskGroup("second", parent_id="around", map_length=MapLiteral(n)),
        ),
    )


@pytest.mark.parametrize("ends_as", ["success", "failed", "skipped"])
def test_dependencies_across_a_mapped_groups_border_are_counted_once(ends_as):
    calls = {}
    for n in (50, 200):
        engine, run = evaluation(parallelism=3, max_active_tasks=3), across_the_border(n)
        start = lambda engine=engine, run=run: engine.start_run(run, NOON)  # noqa: E731 - one line for two values
        calls[n] = drive(engine, {"source": n}, start=start, ends={"mapped": ends_as, "a": ends_as})
        assert run.ended_at is not None
        assert sum(1 for _ in run.all_instances()) >= 6 * n
    assert calls[200] < 5 * calls[50]


def resumed(earlier, cleared):
    """Return the run as it is taken up after tasks were cleared, with its instances."""
    run = run_of(earlier.structure.dag.tasks, task_groups=earlier.structure.dag.task_groups)
    run.state = run.stored_state = DagRunState.RUNNING
    tasks = []
    for found in earlier.all_instances():
        is_cleared = found.task_id in cleared
        state, length = (None, None) if is_cleared else (found.state, found.result_length)
        tasks.append(ActiveTask(run, found.task, found.map_index, state=state, result_length=length))
    return run, tasks


def run_through(run, lengths):
    """Return the run after an evaluator has taken it to its end, with results of these lengths."""
    engine = evaluation()
    drive(engine, lengths, start=lambda: engine.start_run(run, NOON))
    return run


def taking_up(run, tasks):
    """Return an evaluator that has taken a run up, and begun what it may."""
    engine = evaluation()
    engine.resume_run(run, tasks, NOON)
    engine.grant(NOON)
    return engine


def end_source(engine, run, length, **more):
    token = run.instance("source").token
    engine.try_ended(Ended(token, "success", NOON, NOON, return_value=VALUE, result_length=length, **more), NOON)


def states(run, task_id):
    return [(found.map_index, found.state) for found in run.instances[task_id].values()]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [(0, "success"), (1, "removed")]),
        (2, [(0, "success"), (1, "success")]),
        (3, [(0, "success"), (1, "success"), (2, "success")]),
        (0, [(0, "removed"), (1, "removed")]),
    ],
)
def test_instances_follow_the_new_length_of_a_cleared_task(length, expected):
    first = run_of(
        [
            task("source", "mapped", "x"),
            task("mapped", "reduce", "follows", map_length=MapResult("source")),
            task("reduce", trigger_rule="all_done"),
            task("follows"),
            task("x", "y", group_id="group"),
            task("y", group_id="group"),
        ],
        task_groups=(SerializedTaskGroup("group", map_length=MapResult("source")),),
    )
    run_through(first, {"source": 2})
    assert states(first, "mapped") == [(0, "success"), (1, "success")]
    engine = evaluation()
    run, tasks = resumed(first, {"source", "mapped", "reduce", "follows", "x", "y"})
    drive(engine, {"source": length}, start=lambda: engine.resume_run(run, tasks, NOON))
    for task_id in ("mapped", "x", "y"):
        assert sorted(states(run, task_id)) == expected
    assert states(run, "reduce") == states(run, "follows") == [(-1, "success")], (
        "also where none is left, as in Airflow"
    )
    assert run.state == "success"


def test_a_mapped_task_that_its_list_has_just_skipped_gets_no_more_instances():
    first = run_through(run_of(MAPPED), {"source": 1})
    run, tasks = resumed(first, {"source", "mapped"})
    engine = taking_up(run, tasks)
    end_source(engine, run, 2, decision=ShortCircuitDecision(ignore_downstream_trigger_rules=True))
    assert states(run, "mapped") == [(0, "skipped")]


def test_no_instance_begins_after_a_stop_when_a_list_is_longer_than_before():
    first = run_through(run_of(MAPPED_EARLY), {"source": 1})
    run, tasks = resumed(first, {"source", "mapped"})
    engine = taking_up(run, tasks)
    mapped = run.instance("mapped", 0)
    assert (run.instance("source").state, mapped.state) == ("queued", "queued")
    engine.stop_run(run.key, cancelled("ada"), NOON)
    end_source(engine, run, 3)
    assert states(run, "mapped") == [(0, "queued")]
    engine.try_ended(Ended(mapped.token, "failed", NOON, NOON), NOON)
    assert (states(run, "mapped"), run.state) == ([(0, "failed")], "failed")


def test_instances_that_wait_for_room_are_removed_when_the_list_shrinks():
    """By their trigger rule they need not have waited for that; they would find no value to run with."""
    first = run_through(run_of(MAPPED_EARLY), {"source": 3})
    run, tasks = resumed(first, {"source", "mapped"})
    engine = evaluation(parallelism=2)
    engine.resume_run(run, tasks, NOON)
    assert states(run, "mapped") == [(index, "scheduled") for index in range(3)]
    engine.grant(NOON)
    end_source(engine, run, 2)
    assert states(run, "mapped") == [(0, "queued"), (1, "scheduled"), (2, "removed")]
    drive(engine, start=lambda: None)
    assert states(run, "mapped") == [(0, "success"), (1, "success"), (2, "removed")]
    assert run.state == "success"


def test_removing_instances_shortens_tasks_that_are_mapped_over_them():
    chain = [
        task("source", "mapped"),
        task("mapped", "again", map_length=MapResult("source")),
        task("again", map_length=MapResult("mapped")),
    ]
    first = run_through(run_of(chain), {"source": 1, "mapped": -1})
    run, tasks = resumed(first, {"source", "mapped"})
    still_runs = next(found for found in tasks if found.task_id == "again")
    still_runs.state, still_runs.token = TaskInstanceState.RUNNING, "old"
    engine = taking_up(run, tasks)
    end_source(engine, run, 0)
    assert states(run, "mapped") == states(run, "again") == [(0, "removed")]


def test_a_run_waits_for_the_process_of_an_instance_removed_while_running():
    first = run_through(run_of(MAPPED), {"source": 2})
    run, tasks = resumed(first, {"source", "mapped"})
    still_runs = next(found for found in tasks if found.map_index == 1)
    still_runs.state, still_runs.token = TaskInstanceState.RUNNING, "old"
    engine = taking_up(run, tasks)
    end_source(engine, run, 1)
    assert states(run, "mapped") == [(0, "scheduled"), (1, "removed")]
    assert engine.pending.unwanted == [("old", "it is mapped over 1 values now")]
    drive(engine, start=lambda: None)
    assert states(run, "mapped") == [(0, "success"), (1, "removed")]
    assert run.state == "running", "cleared, it might be begun beside that process"
    engine.try_ended(Ended("old", "failed", NOON), NOON)
    assert run.state == "success"


def in_a_group_whose_number_changes():
    """A task of a mapped group that starts before it is known how many instances the group has, and one after it."""
    return run_of(
        [
            task("source", "x", "y", "other"),
            task("other", "x"),
            task("x", "y", group_id="group", trigger_rule="one_done"),
            task("y", group_id="group", trigger_rule="all_done"),
        ],
        task_groups=(SerializedTaskGroup("group", map_length=MapResult("source")),),
    )


def test_what_ran_in_a_group_that_has_fewer_instances_now_holds_up_nothing():
    first = run_through(in_a_group_whose_number_changes(), {"source": 3})
    run, tasks = resumed(first, {"source", "x", "y"})
    engine = taking_up(run, tasks)
    for key in (("x", 0), ("x", 2), ("source", -1), ("x", 1)):
        ended = Ended(run.instance(*key).token, "success", NOON, NOON, return_value=VALUE, result_length=2)
        engine.try_ended(ended, NOON)
    drive(engine, start=lambda: None)
    assert run.state == "success"
    assert states(run, "y")[:2] == [(0, "success"), (1, "success")]


def test_a_task_skipped_for_an_empty_list_is_expanded_once_it_has_values():
    first = run_through(run_of(MAPPED), {"source": 0})
    assert states(first, "mapped") == [(-1, "skipped")]
    assert first.instance("mapped").reason == "it is mapped over nothing"
    engine = evaluation()
    run, tasks = resumed(first, {"source", "mapped"})
    drive(engine, {"source": 2}, start=lambda: engine.resume_run(run, tasks, NOON))
    assert states(run, "mapped") == [(0, "success"), (1, "success")]


def test_nothing_can_be_mapped_over_the_result_of_a_task_in_a_mapped_group():
    run = run_of(
        [task("inside", "mapped", group_id="group"), task("mapped", map_length=MapResult("inside"))],
        task_groups=(SerializedTaskGroup("group", map_length=MapLiteral(2)),),
    )
    run_through(run, {"inside": 3})
    assert states(run, "mapped") == [(-1, "upstream_failed")]
    assert "inside" in run.instance("mapped").reason


def test_a_decision_skips_its_own_instances_and_mapped_tasks_further_down():
    run = run_of(
        [
            task("pick", "left", "right", group_id="group"),
            task("left", group_id="group"),
            task("right", group_id="group"),
            task("check", "next"),
            task("next", "mapped"),
            task("mapped", map_length=MapLiteral(2), trigger_rule="all_done"),
        ],
        task_groups=(SerializedTaskGroup("group", map_length=MapLiteral(2)),),
    )
    engine = started(run)
    engine.grant(NOON)
    for ready in list(engine.pending.granted):
        follow = BranchDecision(("left" if ready.map_index == 0 else "right",))
        decision = follow if ready.task_id == "pick" else ShortCircuitDecision(ignore_downstream_trigger_rules=True)
        engine.try_ended(Ended(ready.token, "success", NOON, NOON, decision=decision), NOON)
    assert states(run, "left") == [(0, "scheduled"), (1, "skipped")]
    assert states(run, "right") == [(0, "skipped"), (1, "scheduled")]
    assert states(run, "mapped") == [(0, "skipped"), (1, "skipped")]


def test_an_emptied_inner_group_is_removed_in_each_instance_of_the_outer():
    groups = (
        SerializedTaskGroup("outer", map_length=MapLiteral(2)),
        SerializedTaskGroup("inner", parent_id="outer", map_length=MapResult("source")),
    )
    first = run_of(
        [task("source", "inside"), task("beside", "inside", group_id="outer"), task("inside", group_id="inner")],
        task_groups=groups,
    )
    run_through(first, {"source": 1})
    assert states(first, "inside") == [(0, "success"), (1, "success")]
    engine = evaluation()
    run, tasks = resumed(first, {"source", "inside"})
    drive(engine, {"source": 0}, start=lambda: engine.resume_run(run, tasks, NOON))
    assert states(run, "inside") == [(0, "removed"), (1, "removed")]
    assert run.state == "success"


def too_many(*parts):
    """Return a run with a task that is mapped over a product of billions of values, and a task after it."""
    return run_of(
        [task("source", "mapped"), task("mapped", "after", map_length=MapProduct(parts)), task("after")],
    )


@pytest.mark.parametrize("n_known", [10**10, 10**5], ids=["known", "by a result"])
def test_a_task_that_would_have_billions_of_instances_fails(n_known):
    parts = (MapLiteral(n_known),) if n_known > 10**5 else (MapLiteral(n_known), MapResult("source"))
    run = run_through(too_many(*parts), {"source": 2**31 - 1})
    assert states(run, "mapped") == [(-1, "failed")]
    assert "map it over fewer values" in run.instance("mapped").reason
    assert (run.state, run.instance("after").state) == ("failed", "upstream_failed")


def test_a_cleared_task_fails_if_its_list_has_grown_to_billions():
    run, engine = run_through(too_many(MapResult("source")), {"source": 2}), evaluation()
    again, tasks = resumed(run, {"source", "mapped", "after"})
    drive(engine, {"source": 2**31 - 1}, start=lambda: engine.resume_run(again, tasks, NOON))
    assert states(again, "mapped") == [(0, "failed"), (1, "failed")]
    assert again.state == "failed"


RUNNING = {"state": TaskInstanceState.RUNNING, "token": "runs", "try_number": 1}


def taken_up(run, *found):
    """Take a run up as it is stored, with a failed instance of the run before; return the engine."""
    run.state = run.stored_state = DagRunState.RUNNING
    run.past = {task.task_id: PastTask("before", 3, 1, 0) for task in run.structure.dag.tasks if task.depends_on_past}
    engine = evaluation()
    engine.resume_run(run, [ActiveTask(run, run.structure.tasks[name], **values) for name, values in found], NOON)
    return engine


@pytest.mark.parametrize("forced", [0, 1])
def test_a_forced_instance_starts_where_its_siblings_wait_for_the_past(forced):
    run = run_of([task("source", "mapped"), task("mapped", map_length=MapLiteral(3), depends_on_past=True)])
    ignoring = {forced: frozenset({"depends_on_past"})}
    mapped = [("mapped", {"map_index": n, "ignored": ignoring.get(n, frozenset())}) for n in range(3)]
    engine = taken_up(run, ("source", RUNNING), *mapped)
    engine.try_ended(Ended("runs", "success", NOON, NOON), NOON)
    assert [found.map_index for found in run.instances["mapped"].values() if found.state == "scheduled"] == [forced]


def test_a_failed_list_ends_all_tasks_of_the_group_over_it():
    run = run_of(
        [task("source", "a"), task("a", "b", group_id="group"), task("b", group_id="group", depends_on_past=True)],
        task_groups=(SerializedTaskGroup("group", map_length=MapResult("source")),),
    )
    marked = {"state": TaskInstanceState.SUCCESS}
    engine = taken_up(run, ("source", RUNNING), ("a", marked), ("b", {}))
    engine.try_ended(Ended("runs", "failed", NOON, NOON), NOON)
    assert (states(run, "b"), run.state) == ([(-1, "upstream_failed")], "failed")
