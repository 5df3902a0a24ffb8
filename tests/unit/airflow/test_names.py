"""Airflow's modules, as DAG files import them."""

import importlib
import sys
from datetime import timedelta

import pytest

import asynsched
from asynsched.airflow import names
from asynsched.airflow.finder import is_provider, serve_airflow
from asynsched.authoring.providers import Provider
from asynsched.errors import MovedNameWarning
from sandbox.parsing.explain import advise_on_module, advise_on_name, missing_name


@pytest.fixture(autouse=True)
def airflow(request):
    """Serve Airflow's names in this process while the test runs."""
    before = set(sys.meta_path)
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "airflow"}
    for name in kept:
        del sys.modules[name]
    serve_airflow(getattr(request, "param", "ours"))
    [served] = set(sys.meta_path) - before
    yield
    sys.meta_path.remove(served)  # another library's finder, which the test has imported, stays
    for name in [name for name in sys.modules if name.partition(".")[0] == "airflow"]:
        del sys.modules[name]
    sys.modules.update(kept)


def pairs(modules):
    """Yield each module with one of its names, the place of that, and its name there."""
    for module, places in modules.items():
        for place, texts in places.items():
            for text in texts.split():
                theirs, _, there = text.partition("=")
                yield module, theirs, place, there or theirs


@pytest.mark.filterwarnings("ignore:.* can be imported, but its use is an error")
def test_every_name_of_the_table_is_the_one_of_asynsched_that_it_says():
    for module, name, place, ours in pairs(names.SERVED):
        assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(place), ours)
    for module, place in names.WHOLE.items():
        public = {name for name in dir(importlib.import_module(place)) if not name.startswith("_")}
        assert public <= set(dir(importlib.import_module(module)))


def test_names_of_airflow_2_work_and_say_where_they_are_now(recwarn):
    for module, name, place, now in pairs(names.MOVED):
        if is_provider(place):
            with pytest.raises(ModuleNotFoundError, match=r"airflow\.providers"):
                getattr(importlib.import_module(module), name)
            recwarn.clear()
            continue
        found = getattr(importlib.import_module(module), name)
        assert found is getattr(importlib.import_module(place), now)
        warned = recwarn.pop(MovedNameWarning)
        assert warned.message.args == (f"{module}.{name} is {place}.{now} in Airflow 3",)
    assert not recwarn.list
    from airflow.utils import timezone

    assert timezone.utcnow is asynsched.timezone.utcnow


def test_submodules_are_there_after_an_import_of_airflow_alone():
    airflow = importlib.import_module("airflow")
    assert airflow.utils.dates.days_ago(1) == asynsched.timezone.utcnow().replace(
        hour=0, minute=0, second=0, microsecond=0
    ) - timedelta(days=1)
    assert not hasattr(airflow, "no_such_module")


def test_the_import_statement_is_warned_of_and_not_what_is_behind_it(recwarn):
    from airflow.operators.bash import BashOperator

    assert BashOperator is asynsched.BashOperator
    assert recwarn.pop(MovedNameWarning).filename == __file__


def test_all_names_of_the_public_module_are_imported_with_a_star():
    namespace: dict[str, object] = {}
    exec("from airflow.sdk import *", namespace)
    assert namespace["DAG"] is asynsched.DAG
    assert {name for _, name, _, _ in pairs({"": names.SERVED["airflow.sdk"]})} <= set(namespace)


def test_a_star_takes_no_name_of_the_module_itself():
    namespace: dict[str, object] = {"__name__": "mine"}
    exec("from airflow.utils.dates import *", namespace)
    assert callable(namespace["days_ago"])
    assert namespace["cron_presets"]["@daily"] == "0 0 * * *"
    assert namespace["__name__"] == "mine"


def test_the_parts_of_an_installed_provider_are_found_and_its_core_is_not(tmp_path, monkeypatch):
    for file in ("providers/acme/__init__.py", "providers/acme/hooks/acme.py", "__init__.py", "models/mine.py"):
        path = tmp_path / "airflow" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("from airflow.sdk import BaseHook\n" if "hooks" in file else "")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = importlib.import_module("airflow.providers.acme.hooks.acme")
    assert found.BaseHook is asynsched.BaseHook
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'airflow\.models\.mine'"):
        importlib.import_module("airflow.models.mine")


def test_airflows_examples_import_one_another_where_they_lie_on_the_path(tmp_path, monkeypatch):
    plugin = tmp_path / "airflow" / "example_dags" / "plugins" / "workday.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("from airflow.timetables.base import Timetable\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("airflow.example_dags.plugins.workday").Timetable is asynsched.Timetable


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import airflow.operators.subdag", "put the tasks into a TaskGroup"),
        ("from airflow.contrib.hooks.aws_hook import AwsHook", r"base_aws\.AwsBaseHook in place of AwsHook"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(statement, said):
    with pytest.raises(ImportError, match=said):
        exec(statement)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("airflow.providers.http.hooks.http", "asynsched providers install http"),
        ("airflow.providers.cncf.kubernetes", "asynsched providers install cncf-kubernetes"),
        ("airflow.operator.bash", "did you mean airflow.operators.bash"),
        ("airflow.www.app", "asynsched does not have this module of Airflow"),
    ],
)
def test_a_module_that_is_not_there_is_told_with_what_to_do(module, said):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(module)
    assert said in advise_on_module(module)


def test_what_an_installed_provider_has_no_more_is_told_with_what_to_write(tmp_path, monkeypatch):
    place = tmp_path / "airflow" / "providers" / "http" / "operators" / "http.py"
    place.parent.mkdir(parents=True)
    place.write_text("")
    (tmp_path / "airflow" / "providers" / "postgres").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("airflow.providers.http.operators.http")
    said = advise_on_name("airflow.providers.http.operators.http", "SimpleHttpOperator")
    assert said == "the installed version of the provider http does not have this name; it is now HttpOperator"
    said = advise_on_module("airflow.providers.postgres.operators")
    assert said.startswith("the installed version of the provider postgres does not have this module; use SQLExecute")


def test_a_name_that_is_not_there_is_told_with_near_names():
    importlib.import_module("airflow.sdk")
    assert advise_on_name("airflow.sdk", "Assset").endswith("; did you mean Asset or asset?")
    assert advise_on_name("airflow.models", "Log") == "user code has no access to the database"


@pytest.mark.parametrize("airflow", ["off"], indirect=True)
def test_where_airflow_is_off_its_import_says_so():
    with pytest.raises(ModuleNotFoundError, match="the setting airflow is off"):
        importlib.import_module("airflow.sdk")
    assert "import the same names from asynsched" in advise_on_module("airflow")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Dataset", "; did you mean Asset?"),
        ("DatasetOrTimeSchedule", "; did you mean AssetOrTimeSchedule?"),
        ("AirflowException", "; did you mean AsynschedException?"),
        ("BashOperater", "; did you mean BashOperator"),
        ("days_ago", "; give start_date a date, such as datetime(2026, 1, 1)"),
    ],
)
def test_a_name_that_is_not_here_is_told_what_it_is_called_here(name, hint):
    assert missing_name(name).startswith(f"asynsched has no name {name!r}{hint}")


def test_a_table_of_airflows_can_be_imported_and_not_used():
    from airflow.models import TaskReschedule

    with pytest.raises(asynsched.AsynschedException, match="no access to the database"):
        assert TaskReschedule.dag_id


def test_the_providers_manager_tells_the_message_queues(monkeypatch):
    from airflow.providers_manager import ProvidersManager

    queues = [Provider("b", "1", {"queues": ["b.Queue", "a.Queue"]}), Provider("c", "1", {})]
    monkeypatch.setattr("asynsched.airflow.providers_manager.providers", lambda: queues)
    manager = ProvidersManager()
    manager.initialize_providers_queues()
    assert manager.queue_class_names == ["a.Queue", "b.Queue"]
