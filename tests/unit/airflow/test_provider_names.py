"""What provider packages build on: XCom, decorators, scripts for other Pythons, and parts of the standard provider."""

import asyncio
import logging
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from asynsched import (
    DAG,
    AsynschedException,
    AsynschedFailException,
    BaseOperator,
    DagError,
    ExceptionRetryPolicy,
    task,
)
from asynsched.airflow import python_virtualenv, standard
from asynsched.airflow.decorator import result
from asynsched.airflow.resource_details import AssetDetails, DagDetails
from asynsched.airflow.session import SerializedDAG, clear_task_instances, expand_alias_to_assets
from asynsched.authoring import timezone
from asynsched.authoring.exceptions import DagIsPaused
from asynsched.authoring.operators.subprocess_hook import working_directory
from asynsched.authoring.providers import hook_paths
from asynsched.authoring.xcom import BaseXCom as XCom
from asynsched.errors import SerializationError
from asynsched.serialization.encode import serialize_dag
from tests.unit.airflow.test_names import airflow  # noqa: F401 - a fixture
from tests.unit.authoring.conftest import dag, supervisor  # noqa: F401 - fixtures
from tests.unit.authoring.one_task import run

HERE = {"dag_id": "d", "run_id": "r1", "task_id": "uses"}


class Uses(BaseOperator):
    """Calls a function with the task instance."""

    def __init__(self, *, call, **kwargs):
        super().__init__(**kwargs)
        self.call = call

    def execute(self, context):
        return self.call(context["ti"])


def value_in_task(dag, supervisor, call):  # noqa: F811
    """Return what a function returns in a task."""
    supervisor.running_task = "uses"
    return run(Uses(task_id="uses", dag=dag, call=call)).value


def test_a_task_writes_reads_and_deletes_its_xcoms(dag, supervisor):  # noqa: F811
    def uses(ti):
        XCom.set("key", [1], **HERE)
        asyncio.run(XCom.aset("other", {"a": 2}, **HERE))
        found = [XCom.get_one(key="key", **HERE), XCom.get_all(key="key", **HERE)]
        found += [XCom.get_value(ti_key=ti, key="other"), asyncio.run(XCom.aget_all(key="none", **HERE))]
        XCom.delete("key", **HERE)
        XCom.delete("key", **HERE)
        asyncio.run(ti.axcom_push("third", 3))
        found.append(asyncio.run(ti.axcom_pull("uses", key="third")))
        return [*found, XCom.get_one(key="key", **HERE), asyncio.run(XCom.aget_one(key="other", **HERE))]

    assert value_in_task(dag, supervisor, uses) == [[1], [[1]], {"a": 2}, None, 3, None, {"a": 2}]


@pytest.mark.parametrize("change", [{"task_id": "other"}, {"dag_id": "e"}, {"run_id": "r2"}, {"map_index": 0}])
@pytest.mark.parametrize("method", ["set", "delete"])
def test_a_task_cannot_change_the_xcoms_of_others(dag, supervisor, method, change):  # noqa: F811
    def changes(_ti):
        getattr(XCom, method)(key="key", **({"value": 1} if method == "set" else {}), **(HERE | change))

    with pytest.raises(AsynschedException, match=rf"XCom\.{method}\(\) for task .*: only the task itself"):
        value_in_task(dag, supervisor, changes)


def empty(a, b=1):
    """Does nothing."""


def test_a_stub_is_a_task_of_the_dag_that_nothing_here_can_run(dag):  # noqa: F811
    with dag:
        made = task.stub(retries=1)(empty)(1).operator
    assert (made.task_id, made.retries, made.operator_name) == ("empty", 1, "@task.stub")
    assert serialize_dag(dag).tasks[0].task_id == "empty"
    with pytest.raises(AsynschedFailException, match="no runtimes of other languages"):
        run(made)


def test_a_stub_whose_function_does_something_is_refused(dag):  # noqa: F811
    with dag, pytest.raises(DagError, match="must be empty: only `pass`"):
        task.stub(task_id="does")(lambda: 1)()
    with dag, pytest.raises(DagError, match="takes no retry_policy; use retries"):
        task.stub(retry_policy=ExceptionRetryPolicy(rules=[]))(empty)(1)


def test_the_result_of_a_run_is_marked_above_a_task_or_added_to_the_dag(dag):  # noqa: F811
    with dag:
        one = result(task(empty))(1)
        two = dag.add_result(task(task_id="two")(empty).expand(a=[1]))
        other = task(task_id="other")(empty)(1)
    with pytest.raises(DagError, match="must be the whole return value of a task"):
        dag.add_result(other["key"])
    marked = {named.task_id for named in serialize_dag(dag).tasks if named.returns_dag_result}
    assert marked == {one.operator.task_id, two.operator.task_id}
    with pytest.raises(TypeError, match="@result must be written above @task"):
        result(empty)


@pytest.mark.parametrize(
    ("given", "has_strings"), [({"args": [2], "kwargs": {"b": 3}}, False), ({"args": [], "kwargs": {}}, True)]
)
def test_the_script_calls_a_function_in_another_python(tmp_path, given, has_strings):
    strings = "{'s': virtualenv_string_args}" if has_strings else "{}"
    source = f"def add(a=0, b=0):\n    return ({{'sum': a + b}} | {strings})"
    script = tmp_path / "script.py"
    python_virtualenv.write_python_script(
        {
            "op_args": given["args"], "op_kwargs": given["kwargs"], "pickling_library": "pickle",
            "python_callable": "add", "python_callable_source": source, "string_args_global": has_strings,
        },
        filename=script,
    )  # fmt: skip
    paths = [tmp_path / name for name in ("in", "out", "strings", "error")]
    paths[0].write_bytes(python_virtualenv.SERIALIZERS["pickle"].dumps(given))
    paths[2].write_text("x\ny \n")
    subprocess.run([sys.executable, script, *paths], check=True)
    expected = {"sum": sum(given["args"]) + given["kwargs"].get("b", 0)} | ({"s": ["x", "y"]} if has_strings else {})
    assert pickle.loads(paths[1].read_bytes()) == expected
    script.write_text(script.read_text().replace("return", "raise ValueError"))
    assert subprocess.run([sys.executable, script, *paths], check=False, capture_output=True).returncode == 1
    assert paths[3].read_text().startswith("{'sum'")


def test_a_backend_of_airflow_2_may_use_what_the_web_page_called():
    class Marked(XCom):
        def orm_deserialize_value(self):
            return f"stored: {XCom.orm_deserialize_value(self)}"

    assert Marked.orm_deserialize_value(SimpleNamespace(value=XCom.serialize_value([1, (2,)]))) == "stored: [1, (2,)]"


def test_what_the_database_would_answer_says_why_it_cannot():
    with pytest.raises(AsynschedException, match="use `asynsched tasks clear`"):
        clear_task_instances([], session=None)
    with pytest.raises(AsynschedException, match="the assets of the alias 'a'"):
        expand_alias_to_assets("a")
    with pytest.raises(AsynschedException, match="no access to the database"):
        SerializedDAG("d")


def test_the_links_of_standard_operators_are_commands(dag, caplog):  # noqa: F811
    ti = SimpleNamespace(xcom_pull=lambda key: {"trigger_run_id": "my run"}[key])
    operator = SimpleNamespace(trigger_dag_id="d", external_dag_id="e")
    assert standard.TriggerDagRunLink().get_link(operator, ti_key=ti) == "asynsched runs show d 'my run'"
    assert standard.ExternalDagLink().get_link(operator, ti_key=ti) == "asynsched dags show e"
    with caplog.at_level(logging.INFO):
        run(standard.SmoothOperator(task_id="smooth", dag=dag))
    assert "https://www.youtube.com/watch" in caplog.text
    assert str(DagIsPaused("d")) == "DAG d is paused"


def test_small_values_have_airflows_form(tmp_path):
    assert (AssetDetails(id="1").id, DagDetails()) == ("1", (None, None))
    assert standard.get_base_airflow_version_tuple() >= (3, 3, 0)
    connections = {one["connection-type"] for one in standard.get_provider_info()["connection-types"]}
    assert connections == {"fs", "package_index"} <= set(hook_paths())
    with working_directory() as made:
        assert made != str(tmp_path)
    with working_directory(str(tmp_path)) as given:
        assert given == str(tmp_path)


def test_instants_become_naive_and_come_from_numbers():
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    zone = ZoneInfo("Europe/Berlin")
    assert timezone.make_naive(noon, zone) == datetime(2026, 7, 1, 14)
    assert timezone.from_timestamp(noon.timestamp(), zone).isoformat() == "2026-07-01T14:00:00+02:00"
    with pytest.raises(ValueError, match="expects an aware datetime"):
        timezone.make_naive(datetime(2026, 7, 1))


def test_a_mapped_task_has_the_links_of_its_operator_in_the_dag():
    class Linked(BaseOperator):
        operator_extra_links = (standard.TriggerDagRunLink(),)

        def __init__(self, *, n, **kwargs):
            super().__init__(**kwargs)

    class Broken(Linked):
        operator_extra_links = ("no link",)

    with DAG("links", schedule=None) as made:
        Linked.partial(task_id="mapped").expand(n=[1, 2])
    assert serialize_dag(made).tasks[0].extra_links == {"Triggered DAG": "_link_TriggerDagRunLink"}
    Broken(task_id="broken", n=1, dag=made)
    with pytest.raises(SerializationError, match=r"'broken'.* operator_extra_links cannot be read: AttributeError"):
        serialize_dag(made)
