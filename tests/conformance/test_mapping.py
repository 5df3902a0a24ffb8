"""Mapped tasks and task groups: each instance ends as in Airflow, with the same arguments."""

import pytest

from asynsched.authoring.active import forget_registered
from tests.conformance.mapping_text import CASES, HEADER, dag_text


def run_case(case):
    """Run the case in this process, by the production evaluation, and return the run and the arguments of each try."""
    names = {"__name__": "dag_file"}
    exec(compile(HEADER + dag_text(case), "dag_file.py", "exec"), names)
    forget_registered()
    run = names["dag"].test()
    return run, {(task_id, index): given for task_id, index, given in names["RECORD"]}


def observed(run, received, *, without_args=()):
    instances = []
    for task in run.tasks:
        found = {"task": task.task_id, "map_index": task.map_index, "state": task.state}
        if (task.task_id, task.map_index) in received and task.task_id not in without_args:
            found["args"] = received[task.task_id, task.map_index]
        if task.try_number > 1:
            found["tries"] = task.try_number
        if task.rendered_map_index is not None:
            found["rendered_map_index"] = task.rendered_map_index
        instances.append(found)
    return sorted(instances, key=lambda found: (found["task"], found["map_index"]))


def expected(case, without_args):
    instances = [dict(instance) for instance in case["expect"]["instances"]]
    for instance in instances:
        if instance["task"] in without_args:
            instance.pop("args", None)
    return sorted(instances, key=lambda found: (found["task"], found["map_index"]))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES if "refused" not in case])
def test_instances_end_as_in_airflow_with_the_same_arguments(case):
    run, received = run_case(case)
    without_args = case.get("args_order_sensitive", ())
    assert observed(run, received, without_args=without_args) == expected(case, without_args)
    assert run.state == case["expect"]["run_state"]
