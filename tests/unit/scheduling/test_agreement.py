"""The evaluation, which counts by events, agrees with one that recomputes everything after each."""

from datetime import timedelta

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.serialization.schema import (
    MapConcat,
    MapLiteral,
    MapProduct,
    MapResult,
    MapZip,
    SerializedDag,
    SerializedTaskGroup,
)  # fmt: skip
from asynsched.states import FINISHED_TASK_STATES
from tests.support.naive_evaluator import NaiveEvaluator
from tests.support.runs import NOON, evaluation, run_of, task

RULES = [
    "all_success", "all_failed", "all_done", "all_done_min_one_success", "all_skipped", "one_success", "one_failed",
    "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "always",
]  # fmt: skip
MOST_INSTANCES = 30
PATIENT_RULES = ["all_success", "all_done", "none_failed", "none_skipped", "all_done_min_one_success"]
"""Rules that start nothing before every upstream has ended."""


@st.composite
def lengths(draw, earlier):
    """Inputs to map over: a literal, or the results of earlier tasks, combined."""
    literals = st.builds(MapLiteral, st.sampled_from([2, 1, 0]))
    simple = literals | st.builds(MapResult, st.sampled_from(earlier)) if earlier else literals
    kind = draw(st.sampled_from(["simple", "simple", "simple", "zip", "concat", "product"]))
    if kind == "simple" or not earlier:
        return draw(simple)
    parts = tuple(draw(st.lists(simple, min_size=1, max_size=2)))
    return {"zip": MapZip(parts, draw(st.booleans())), "concat": MapConcat(parts), "product": MapProduct(parts)}[kind]


@st.composite
def dags(draw, rules):
    """A DAG of up to six tasks: plain, mapped, in mapped groups (also nested), setups and teardowns."""
    n = draw(st.integers(1, 6))
    names = [f"t{number}" for number in range(n)]
    first_inside = draw(st.integers(0, n))
    n_inside = draw(st.integers(0, 4) | st.just(4))
    groups = {
        "outer": draw(st.just(MapLiteral(2)) | lengths(names[:first_inside])),
        "inner": draw(st.just(MapLiteral(2)) | st.none() | lengths(names[:first_inside])),
    }
    downstream = {name: set() for name in names}
    made = []
    for number, name in enumerate(names):
        is_inside = first_inside <= number < first_inside + n_inside
        group = draw(st.sampled_from(["outer", "inner"])) if is_inside else None
        mapped = draw(lengths(names[:number])) if not is_inside and draw(st.integers(0, 2)) == 0 else None
        for source in results(mapped):
            downstream[source].add(name)
        if number < n - 1:
            downstream[name].update(draw(st.lists(st.sampled_from(names[number + 1 :]), unique=True, max_size=3)))
        role = draw(st.sampled_from(["work", "work", "work", "setup", "teardown", "empty"]))
        rule = "all_done_setup_success" if role == "teardown" else draw(st.sampled_from(rules))
        made.append((name, group, mapped, rule, role, draw(st.integers(0, 1))))
    members = {
        "outer": {name for name, group, *_ in made if group},
        "inner": {name for name, group, *_ in made if group == "inner"},
    }
    for around, length in groups.items():
        for name in members[around]:
            is_first = not any(name in downstream[other] for other in members[around])
            if is_first or draw(st.booleans(), label=f"{name} is given an argument of {around}"):
                for source in results(length):
                    downstream[source].add(name)
    tasks = [
        task(
            name, *sorted(downstream[name]), group_id=group, map_length=mapped, trigger_rule=rule, retries=retries,
            is_setup=role == "setup", is_teardown=role == "teardown", is_empty=role == "empty",
        )
        for name, group, mapped, rule, role, retries in made
    ]  # fmt: skip
    serialized_groups = (
        SerializedTaskGroup("outer", map_length=groups["outer"]),
        SerializedTaskGroup("inner", parent_id="outer", map_length=groups["inner"]),
    )
    return SerializedDag(dag_id="dag", timetable={"kind": "null"}, tasks=tuple(tasks), task_groups=serialized_groups)


def results(length):
    if length is None or isinstance(length, MapLiteral):
        return []
    if isinstance(length, MapResult):
        return [length.task_id]
    return [source for part in length.parts for source in results(part)]


class Comparison:
    """A run, ended try after try in an order and with outcomes that hypothesis draws, and its naive double."""

    def __init__(self, data, dag):
        self.data = data
        self.dag = dag
        self.at_once = data.draw(st.sampled_from([100, 1, 2, 3]), label="task instances looked at in a slice")
        self.engine = evaluation(at_once=self.at_once)
        self.run = run_of(dag.tasks, task_groups=dag.task_groups)
        self.naive = NaiveEvaluator(dag)
        self.queued = []

    def start(self):
        self.engine.start_run(self.run, NOON)
        self.drive()

    def clear_and_resume(self, cleared):
        """Clear some tasks, as a user does, and take the run up again from its rows."""
        earlier = self.run
        self.engine = evaluation(at_once=self.at_once)
        self.run = run_of(self.dag.tasks, task_groups=self.dag.task_groups)
        kept = [
            ActiveTask(
                self.run, found.task, map_index=found.map_index,
                state=None if found.task_id in cleared else found.state,
                result_length=None if found.task_id in cleared else found.result_length,
            )
            for found in earlier.all_instances()
        ]  # fmt: skip
        states = {(found.task_id, found.map_index): found.state for found in kept}
        self.naive = NaiveEvaluator(
            self.dag, states, {(found.task_id, found.map_index): found.result_length for found in kept}
        )
        self.engine.resume_run(self.run, kept, NOON)
        self.drive()

    def drive(self):
        now = NOON
        self.settle(now)
        self.compare()
        while True:
            now += timedelta(seconds=1)
            self.engine.time_passed(now)
            self.settle(now)
            self.engine.grant(now)
            self.queued += self.engine.pending.granted
            self.engine.pending.mark_stored()
            self.engine.pending.clear()
            if self.queued:
                self.end(self.queued.pop(self.data.draw(st.integers(0, len(self.queued) - 1))), now)
                self.settle(now)
                self.compare()
            elif self.engine.next_timer is None:
                return
            else:
                now = self.engine.next_timer

    def settle(self, now):
        while self.engine.has_undecided:
            self.engine.go_on(now)

    def end(self, task, now):
        state = self.data.draw(st.sampled_from(["success", "success", "failed", "skipped"]), label=f"{task.key} ends")
        length = self.data.draw(st.sampled_from([2, 1, 0, 3, -1, None]))
        value = msgspec.UNSET if length is None else msgspec.Raw(b"0")
        self.engine.try_ended(Ended(task.token, state, now, now, return_value=value, result_length=length), now)

    def compare(self):
        instances = {(found.task_id, found.map_index): found for found in self.run.all_instances()}
        # Recomputing everything takes long for large runs; errors show with few instances, too.
        assume(len(instances) <= MOST_INSTANCES)
        self.naive.take_up(
            {key: (found.state, found.result_length) for key, found in instances.items() if found.started_at}
        )
        assume(not self.naive.has_lost_a_place())
        ended = {key: found.state for key, found in instances.items() if found.is_finished}
        assert ended == self.naive.finished()
        unfinished = {key for key, found in instances.items() if found.state and not found.is_finished}
        assert unfinished == self.naive.may_run()
        assert set(instances) == set(self.naive.states)


@given(st.data())
@settings(max_examples=100)
def test_counting_by_events_always_agrees_with_recomputing_everything(data):
    comparison = Comparison(data, data.draw(dags(RULES)))
    comparison.start()
    assert all(found.state in FINISHED_TASK_STATES for found in comparison.run.all_instances())


@given(st.data())
@settings(max_examples=100)
def test_so_it_does_when_tasks_are_cleared_and_lengths_become_others(data):
    dag = data.draw(dags(PATIENT_RULES))
    comparison = Comparison(data, dag)
    comparison.start()
    cleared = {data.draw(st.sampled_from(dag.tasks)).task_id}
    for found in dag.tasks:
        if found.task_id in cleared:
            cleared.update(found.downstream_task_ids)
    comparison.clear_and_resume(cleared)
