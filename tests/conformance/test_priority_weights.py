"""Total priority weights agree with Airflow's."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from asynsched.scheduling.rules.branching import descendants
from asynsched.scheduling.rules.priority import MAX_WEIGHT, MIN_WEIGHT, total_weights
from asynsched.serialization.schema import SerializedTask

CASES = json.loads((Path(__file__).parent / "data" / "priority_weights.json").read_text())["cases"]


def test_total_weights_are_as_airflow_computes_them():
    for case in CASES:
        tasks = tuple(
            SerializedTask(
                task_id=task["id"],
                task_type="EmptyOperator",
                priority_weight=task.get("priority_weight", 1),
                weight_rule=task.get("weight_rule", "downstream"),
                downstream_task_ids=tuple(b for a, b in case["dag"]["edges"] if a == task["id"]),
            )
            for task in case["dag"]["tasks"]
        )
        assert total_weights(tasks) == case["expect"], case["id"]


@st.composite
def tasks_in_order(draw: st.DrawFn) -> tuple[SerializedTask, ...]:
    n_tasks = draw(st.integers(1, 12))
    return tuple(
        SerializedTask(
            task_id=str(place),
            task_type="EmptyOperator",
            priority_weight=draw(st.integers(-9, 9) | st.sampled_from([MIN_WEIGHT - 1, MIN_WEIGHT, MAX_WEIGHT + 1])),
            weight_rule=draw(st.sampled_from(["downstream", "upstream", "absolute"])),
            downstream_task_ids=tuple(str(after) for after in range(place + 1, n_tasks) if draw(st.booleans())),
        )
        for place in range(n_tasks)
    )


@given(tasks_in_order(), st.randoms())
def test_a_task_counts_once_however_many_paths_lead_to_it(tasks, random):
    own = {task.task_id: min(max(task.priority_weight, MIN_WEIGHT), MAX_WEIGHT) for task in tasks}
    downstream = {task.task_id: task.downstream_task_ids for task in tasks}
    upstream = {task_id: [other for other in downstream if task_id in downstream[other]] for task_id in downstream}
    edges = {"downstream": downstream, "upstream": upstream, "absolute": dict.fromkeys(downstream, ())}
    expected = {
        task.task_id: own[task.task_id]
        + sum(own[other] for other in descendants([task.task_id], edges[task.weight_rule]))
        for task in tasks
    }
    assert total_weights(tuple(random.sample(tasks, len(tasks)))) == expected


def test_the_weights_of_a_long_chain_are_the_lengths_below():
    chain = [
        SerializedTask(task_id=str(n), task_type="EmptyOperator", downstream_task_ids=(str(n - 1),) if n else ())
        for n in reversed(range(3000))
    ]
    assert total_weights(tuple(chain)) == {str(n): n + 1 for n in range(3000)}
