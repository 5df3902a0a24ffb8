"""Total priority weights agree with Airflow's."""

import json
from pathlib import Path

from asynsched.scheduling.rules.priority import total_weights
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
