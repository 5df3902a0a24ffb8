"""The keyword arguments that type checkers know are those of the constructors."""

import inspect

import pytest

from asynsched import BaseOperator, BaseSensorOperator, PythonOperator, TaskGroup
from asynsched.authoring import keywords
from asynsched.authoring.dag import DagArguments
from asynsched.authoring.operators.foreign_python import BaseForeignPythonOperator


@pytest.mark.parametrize(
    ("known", "owners"),
    [
        (keywords.DagKeywords, [DagArguments]),
        (keywords.TaskKeywords, [BaseOperator]),
        (keywords.SensorKeywords, [BaseOperator, BaseSensorOperator]),
        (keywords.PythonKeywords, [BaseOperator, PythonOperator]),
        (keywords.ForeignPythonKeywords, [BaseOperator, PythonOperator, BaseForeignPythonOperator]),
        (keywords.TaskGroupKeywords, [TaskGroup]),
    ],
)
def test_type_checkers_know_the_arguments_of_a_constructor(known, owners):
    taken = {}
    for owner in owners:
        taken |= inspect.get_annotations(inspect.unwrap(owner.__init__))
    for apart in ("dag_id", "group_id", "unknown", "kwargs", "return"):
        taken.pop(apart, None)
    # As they are written: a TypedDict keeps them as forward references.
    said = {name: kind.__forward_arg__ for name, kind in inspect.get_annotations(known).items()}
    required = {"task_id", "python_callable"} & set(taken)
    assert said == taken | {name: f"Required[{taken[name]}]" for name in required}
