"""Subclasses of operators override the methods that Airflow's have."""

from collections.abc import Mapping
from typing import Any

from asynsched import DAG, Asset, EmptyOperator, PythonOperator


class Timed(PythonOperator):
    def execute_callable(self) -> Any:
        return {"wrapped": super().execute_callable()}


class Filled(PythonOperator):
    def determine_kwargs(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**super().determine_kwargs(context), "y": 42}


def test_the_call_of_a_function_and_its_arguments_can_be_overridden():
    with DAG("d"):
        timed = Timed(task_id="timed", python_callable=lambda x: x + 1, op_args=[1])
        filled = Filled(task_id="filled", python_callable=lambda x, y=0: (x, y), op_kwargs={"x": 1})
    assert timed.execute({}) == {"wrapped": 2}
    assert filled.execute({}) == (1, 42)


class Updates(EmptyOperator):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_inlets([Asset("read")])
        self.add_outlets([Asset("written"), Asset("also")])


def test_an_operator_can_add_the_assets_that_it_reads_and_updates():
    with DAG("d"):
        task = Updates(task_id="updates", outlets=Asset("first"))
    assert [asset.name for asset in task.inlets] == ["read"]
    assert [asset.name for asset in task.outlets] == ["first", "written", "also"]
