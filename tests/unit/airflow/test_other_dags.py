"""Airflow's functions and tables about other DAGs, as far as a task can ask for them."""

import datetime as dt
import importlib

import pytest

from asynsched.airflow.exceptions import DagNotFound
from asynsched.airflow.other_dags import DagBag, DagModel, SerializedDagModel, trigger_dag
from asynsched.authoring.exceptions import AsynschedException, DagRunAlreadyExists
from asynsched.authoring.supervisor import SupervisorError, SupervisorNotFound, set_supervisor
from asynsched.errors import DagWarning
from tests.unit.airflow.test_names import airflow  # noqa: F401 - a fixture

NOON = "2026-01-05T12:00:00+00:00"
KNOWN = {"dag_id": "child", "file_path": "a/child.py", "is_active": True, "is_paused": True, "has_errors": False}


class Scheduler:
    """Notes requests, and knows the DAG `child`, whose run `taken` exists."""

    def __init__(self):
        self.asked = []

    def request(self, operation, **arguments):
        self.asked.append(arguments)
        if arguments["dag_id"] != "child":
            raise SupervisorNotFound("no such DAG")
        if operation == "dag_get":
            return KNOWN
        if operation == "dag_run":
            run = {"dag_id": "child", "run_type": "operator_triggered", "run_after": NOON, "state": "queued"}
            return run | {"run_id": arguments["run_id"], "logical_date": NOON, "conf": {"n": 1}}
        return {"status": "exists", "reason": "it exists"} if arguments["run_id"] == "taken" else {
            "status": "created", "run_id": arguments["run_id"] or "named by the scheduler"
        }  # fmt: skip


@pytest.fixture
def scheduler():
    found = Scheduler()
    set_supervisor(found)
    yield found
    set_supervisor(None)


def test_a_task_triggers_a_run_and_gets_it(scheduler):
    date = dt.datetime(2026, 1, 5, 12, 0, 0, 7, tzinfo=dt.UTC)
    run = trigger_dag("child", "r", '{"n": 1}', date, triggered_by="anything", session=None)
    asked = scheduler.asked[0]
    assert (asked["run_id"], asked["conf"], asked["logical_date"]) == ("r", {"n": 1}, NOON)
    assert (run.run_id, run.conf, run.state, run.logical_date.minute) == ("r", {"n": 1}, "queued", 0)
    trigger_dag(dag_id="child", logical_date=date, replace_microseconds=False)
    assert scheduler.asked[2]["logical_date"].startswith("2026-01-05T12:00:00.000007")


@pytest.mark.parametrize(
    ("given", "has_date"), [({}, True), ({"run_after": NOON}, False), ({"run_after": NOON, "logical_date": NOON}, True)]
)
def test_a_triggered_run_has_a_logical_date_unless_it_only_starts_later(scheduler, given, has_date):
    trigger_dag("child", **given)
    assert scheduler.asked[0]["has_logical_date"] is has_date


def test_a_run_that_cannot_be_triggered_is_an_error_of_airflow_s_class(scheduler):
    with pytest.raises(DagNotFound, match="there is no DAG 'nobody'"):
        trigger_dag("nobody")
    with pytest.raises(DagRunAlreadyExists, match="it exists"):
        trigger_dag("child", run_id="taken")
    with pytest.raises(ValueError, match="the conf is no JSON"):
        trigger_dag("child", conf="{")


def test_a_task_can_ask_whether_a_dag_exists_and_is_paused(scheduler):
    found = DagModel.get_dagmodel("child")
    assert (found.is_paused, found.get_is_paused(), found.is_active, found.is_stale) == (True, True, True, False)
    assert found.fileloc.endswith("/a/child.py")
    assert DagModel.get_current("nobody", session=None) is None
    with pytest.raises(AttributeError, match="a DagModel has no 'next_dagrun' here: a task can read dag_id, is_paused"):
        found.next_dagrun  # noqa: B018
    with pytest.raises(AsynschedException, match="a task cannot pause or unpause the DAG 'child'"):
        found.set_is_paused(is_paused=False)


def test_what_needs_airflow_s_database_is_an_error_where_it_is_used():
    with pytest.raises(AsynschedException, match="user code has no access to the database"):
        DagModel.is_paused  # noqa: B018
    with pytest.raises(AsynschedException, match="user code has no access to the database"):
        SerializedDagModel.get("child")
    with pytest.raises(AsynschedException, match="DAG files cannot read the other DAG files"):
        DagBag(include_examples=False)
    with pytest.raises(SupervisorError, match="while a task runs, not while a DAG file is imported"):
        trigger_dag("child")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("airflow.models", "DagBag"), ("airflow.models.dagbag", "DagBag"),
        ("airflow.models.serialized_dag", "SerializedDagModel"),
    ],
)  # fmt: skip
def test_the_import_of_what_no_task_can_use_is_warned_of(airflow, module, name):  # noqa: F811 - the fixture
    with pytest.warns(DagWarning, match=rf"{name} can be imported, but its use is an error: ") as told:
        exec(f"from {module} import {name}", {})
    assert told[0].filename == "<string>", "the importing statement is named"
    assert name not in dir(importlib.import_module(module)), "nor does `import *` take it"
