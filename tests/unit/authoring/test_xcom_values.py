"""XComs of types that JSON does not have: as results, arguments and map inputs; and refused types."""

import dataclasses
import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pendulum
import pytest

from asynsched import DAG, Asset, PartitionedAtRuntime, PythonOperator, task
from asynsched.authoring.running.try_context import SourceTaskInstance
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.transport import to_transport

VALUES = {
    "aware": dt.datetime(2024, 7, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    "naive": dt.datetime(2024, 7, 1, 2),
    "instant": pendulum.datetime(2024, 7, 1),
    "day": dt.date(2024, 7, 1),
    "length": dt.timedelta(days=-1, microseconds=3),
    "zone": ZoneInfo("Asia/Tokyo"),
    "set": {1, 2},
    "frozen": frozenset({"a"}),
    "tuple": (1, [2, (3,)]),
    "price": Decimal("0.10"),
    "id": UUID(int=7),
    "bytes": b"\0",
}
"""Each is mapped over, too: equal and of the same type again, or the run fails."""


def _same(one, other):
    return type(one) is type(other) and one == other


def test_values_of_other_types_are_passed_on_as_they_are():
    with DAG("d") as dag:

        @task
        def give():
            return VALUES

        @task(multiple_outputs=True)
        def give_each(ti=None):
            ti.xcom_push(key="pushed", value=VALUES)
            return VALUES

        @task
        def names_of_values():
            return tuple(VALUES.values())

        @task
        def position(value):
            return {[_same(value, known) for known in VALUES.values()].index(True)}

        @task
        def compare(given, pushed, tuple_, positions):
            return all(
                [
                    all(_same(given[name], value) and _same(pushed[name], value) for name, value in VALUES.items()),
                    _same(tuple_, VALUES["tuple"]),
                    positions[1] == {1},
                    list(positions) == [{index} for index in range(len(VALUES))],
                ]
            )

        @task.branch
        def choose(value):
            return {"chosen"} if value == VALUES["set"] else None

        each = give_each()
        compare(give(), each["pushed"], each["tuple"], position.expand(value=names_of_values()))
        choose(each["set"]) >> PythonOperator(task_id="chosen", python_callable=lambda: VALUES["price"])

    run = dag.test()
    assert run.state == "success", [(found.task_id, found.reason) for found in run.tasks]
    assert run.task("compare").result is True
    assert run.task("choose").result == ["chosen"]
    assert _same(run.task("chosen").result, Decimal("0.10"))


@pytest.mark.parametrize(
    ("value", "passed_on"),
    [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), ([np.uint8(7)], [7])],
)
def test_numbers_of_numpy_are_passed_on_as_those_of_python(value, passed_on):
    written = to_transport(value, "x")
    assert _same(written, passed_on)


def test_the_task_that_updated_an_asset_is_asked_for_such_values_too():
    class Answers:
        def request(self, operation, **arguments):
            assert operation == "xcom_pull"
            return {"found": [["t", -1, to_transport(VALUES)]], "place": None}

    fields = {"source_dag_id": "d", "source_run_id": "r", "source_task_id": "t", "source_map_index": -1}
    set_supervisor(Answers())
    try:
        assert SourceTaskInstance(SimpleNamespace(**fields)).xcom_pull() == VALUES
    finally:
        set_supervisor(None)


@dataclasses.dataclass
class Row:
    name: str


def _circle():
    circle = []
    circle.append(circle)
    return circle


def _deep():
    inner = []
    for _ in range(5000):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([object()], "contains a value of type object, which cannot be passed on: pass on JSON types, dates"),
        ({"a": Row("x")}, r"test_xcom_values.Row, which cannot be passed on: pass on dataclasses.asdict\(value\)"),
        ({1: 2}, "contains a dict with the key 1 of type int: keys must be strings"),
        (_circle(), "is nested too deeply, or contains itself"),
        (_deep(), "is nested too deeply, or contains itself"),
        (
            "a\ud800b",
            r"with half of a surrogate pair, '\\ud800', which cannot be passed on: replace it",
        ),
        ([{"\udfff": 1}], "contains a string with half of a surrogate pair"),
        (-(10**4300), r"contains an int of more than 4300 digits, which cannot be passed on: pass on hex\(value\)"),
    ],
    ids=["type", "class", "key", "circle", "depth", "surrogate", "surrogate in a key", "digits"],
)
def test_what_cannot_be_passed_on_fails_the_task_and_names_task_and_type(value, words):
    def push(ti):
        ti.xcom_push(key="k", value=value)

    with DAG("d") as dag:
        PythonOperator(task_id="returns", python_callable=lambda: value)
        PythonOperator(task_id="pushes", python_callable=push)
        PythonOperator(task_id="keeps", python_callable=lambda: value, do_xcom_push=False)
    run = dag.test()
    assert [found.state for found in run.tasks] == ["failed", "failed", "success"]
    for task_id, what in (("returns", "what task 'returns' returned"), ("pushes", "XCom 'k' of task 'pushes'")):
        with pytest.raises((TypeError, ValueError), match=f"{what} .*{words}"):
            raise run.task(task_id).exception


def test_an_extra_that_is_not_json_fails_the_task_not_the_run():
    with DAG("d") as dag:

        @task(outlets=[Asset("a")])
        def update(outlet_events=None):
            outlet_events[Asset("a")].extra = {"half": "\ud800"}

        @task
        def other():
            return 1

        update() >> other()
    run = dag.test()
    assert [found.state for found in run.tasks] == ["failed", "upstream_failed"]
    assert "surrogates not allowed" in run.task("update").reason


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"x" * 251}, "has 251 characters; at most 250 are allowed"),
        ({7, "us"}, "a partition key is a string .*, not 7"),
        ({"half \ud800"}, "has half of a surrogate pair, which no database stores"),
        (
            {f"k{number}" for number in range(1001)},
            "at most 1000 partition keys and events of aliases in all, not 1001",
        ),
    ],
    ids=["length", "type", "surrogate", "number"],
)
def test_partition_keys_set_without_a_check_fail_the_task_when_it_ends(keys, words):
    with DAG("d", schedule=PartitionedAtRuntime()) as dag:

        @task(outlets=[Asset("a")])
        def update(outlet_events=None):
            outlet_events[Asset("a")].partition_keys |= keys

        update()
    failed = dag.test().task("update")
    assert failed.state == "failed"
    with pytest.raises(ValueError, match=words):
        raise failed.exception
