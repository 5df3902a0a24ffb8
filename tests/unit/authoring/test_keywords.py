"""The keyword arguments that type checkers know are those of the constructors."""

import inspect

import pytest

from asynsched import BaseOperator, BaseSensorOperator, HITLOperator, PythonOperator, TaskGroup
from asynsched.authoring import keywords
from asynsched.authoring.asset_decorator import DAG_ARGUMENTS
from asynsched.authoring.dag import DagArguments
from asynsched.authoring.operators.foreign_python import BaseForeignPythonOperator


@pytest.mark.parametrize(
    ("known", "owners"),
    [
        (keywords.DagKeywords, [DagArguments]),
        (keywords.TaskKeywords, [BaseOperator]),
        (keywords.HITLKeywords, [BaseOperator, HITLOperator]),
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
    for apart in ("dag_id", "group_id", "unknown", "kwargs", "return", "options", "multiple"):
        taken.pop(apart, None)
    required = {"task_id", "python_callable", "subject"} & set(taken)
    assert _as_written(known) == taken | {name: f"Required[{taken[name]}]" for name in required}


def test_type_checkers_know_the_arguments_of_task_and_asset():
    of_tasks = _as_written(keywords.PythonKeywords) | {"task_id": "str"}
    for apart in ("python_callable", "op_args", "op_kwargs"):
        del of_tasks[apart]
    assert _as_written(keywords.TaskDecoratorKeywords) == of_tasks
    of_dags = _as_written(keywords.DagKeywords) | {"dag_id": "str"}
    assert _as_written(keywords.AssetDagKeywords) == {name: of_dags[name] for name in DAG_ARGUMENTS}


def _as_written(known):
    """Return the types of keywords as they are written: a TypedDict keeps them as forward references."""
    return {name: kind.__forward_arg__ for name, kind in inspect.get_annotations(known).items()}
