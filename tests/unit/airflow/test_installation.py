"""Plugins, policies and listeners that are loaded into the process of user code."""

import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
from msgspec.structs import astuple

from asynsched import Asset, AssetAlias, BashOperator, PartitionedAtRuntime, get_current_context, task
from asynsched.airflow import installation
from asynsched.airflow.listeners import ListenerManager, hookimpl
from asynsched.airflow.plugins_manager import Plugins
from asynsched.airflow.policies import Policies, PolicyError
from asynsched.airflow.policies import hookimpl as policy
from asynsched.authoring import defaults, macros
from asynsched.authoring.dag import DAG
from asynsched.authoring.running import execution
from asynsched.errors import DagError
from asynsched.protocol.messages import Route
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SerializedRoute
from tests.unit.authoring import one_task

PLUGIN = """
from asynsched.airflow.plugins_manager import AirflowPlugin

def greet(): return "hello"

class One(AirflowPlugin):
    name = "{name}"
    macros = [greet]
"""


@pytest.fixture(autouse=True)
def forgets_modules(monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(vars(macros))
    yield
    for name in vars(macros).keys() - before:
        delattr(macros, name)


def load(folder, entry_points="", **texts):
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    plugins = Plugins()
    plugins.load(str(folder), entry_points)
    return plugins


def test_one_bad_plugin_keeps_no_other_from_being_loaded(tmp_path):
    texts = {
        "bad": "1 / 0",
        "ends": "raise SystemExit(3)",
        "first": PLUGIN.format(name="same"),
        "second": PLUGIN.format(name="same"),
    }
    plugins = load(tmp_path, "no_such_package:Plugin", nameless=PLUGIN.format(name=""), **texts)
    assert [(plugin.name, plugin.source) for plugin in plugins.plugins] == [("same", "first.py")]
    assert {source: type(exc).__name__ for source, exc in plugins.errors.items()} == {
        "bad.py": "ZeroDivisionError",
        "ends.py": "SystemExit",
        "nameless.py": "AirflowPluginException",
        "second.py": "AirflowPluginException",
        "no_such_package:Plugin": "ModuleNotFoundError",
    }
    assert macros.same.greet() == "hello"
    assert sys.modules["airflow.macros.same"].greet() == "hello"


def test_a_plugin_file_never_takes_the_place_of_another_module(tmp_path):
    import json

    plugins = load(tmp_path, json=PLUGIN.format(name="j"), own_plugin=PLUGIN.format(name="o"))
    assert [plugin.name for plugin in plugins.plugins] == ["j", "o"]
    assert sys.modules["json"] is json
    assert sys.modules["own_plugin"].One.name == "o", "DAG files import it by its own name"


def test_policies_of_packages_come_before_those_of_the_file_which_may_hide_some(tmp_path, monkeypatch):
    (tmp_path / "airflow_local_settings.py").write_text(
        "__all__ = ['dag_policy', 'task_instance_mutation_hook']\n"
        "def dag_policy(d): d.tags = {*d.tags, 'file' if 'package' in d.tags else 'too early'}\n"
        "def task_policy(task): raise ValueError\n"
        "def task_instance_mutation_hook(ti, run=None): ti.told = run\n"
    )

    def dag_policy(dag):
        dag.tags = {"package"}

    package = SimpleNamespace(dag_policy=policy(dag_policy), task_policy=lambda task: 1 / 0)
    monkeypatch.setitem(sys.modules, "policies_of_a_package", package)
    sys.path.insert(0, str(tmp_path))
    policies = Policies()
    policies.load("policies_of_a_package")
    dag = DAG("d")
    assert policies.admits(dag)
    assert dag.tags == {"package", "file"}
    ti = SimpleNamespace()
    policies.mutate(ti, "the run")
    assert ti.told == "the run"


ROUTES = """
def task_instance_mutation_hook(task_instance):
    if task_instance.try_number >= 1:
        task_instance.queue = "retry_queue"
"""


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    """A function that loads a policy file with this text into the process, and returns its policies."""

    def load(text):
        (tmp_path / "airflow_local_settings.py").write_text(text)
        sys.path.insert(0, str(tmp_path))
        own = installation.Installation([], Plugins(), Policies(), None)
        own.policies.load("")
        monkeypatch.setattr(installation, "loaded", own)
        monkeypatch.setattr(execution, "installation", own)
        return own.policies

    return load


def routes_of(**arguments):
    with DAG("d", auto_register=False) as dag:
        first = BashOperator(task_id="first", bash_command="true", **arguments)
        first >> BashOperator(task_id="second", bash_command="true", priority_weight=5)
    return serialize_dag(dag).tasks[0].routes


def test_the_hook_of_task_instances_gives_each_try_of_a_task_its_route(hooked):
    hooked(ROUTES)
    queues = [route.queue for route in routes_of(retries=3, queue="own")]
    assert queues == ["own", "retry_queue"], "the last one is that of later tries"
    assert [route.queue for route in routes_of(retries=0)] == ["default", "retry_queue"], "a clear may add a try"
    assert routes_of(retries=1, queue="retry_queue") == ()


CHANGES_ALL = """
def task_instance_mutation_hook(ti, dag_run):
    assert dag_run is ti.dag_run and ti.task.task_id == ti.task_id and ti.map_index == -1
    ti.pool, ti.executor = "wide", "celery"
    ti.pool_slots += 1 + ti.try_number
    if not ti.try_number:
        ti.executor_config["limits"]["mem"] = "1G"
        ti.task.executor_config["limits"]["cpu"] = 2
    ti.priority_weight += 10
    ti.task.queue = "of a copy of the task"
"""
OWN_CONFIG = {"limits": {"mem": "9M"}}


def test_the_hook_can_change_all_that_says_where_a_try_runs(hooked):
    hooked(CHANGES_ALL)
    first, second = routes_of(retries=0, executor_config={"limits": {}})
    assert first == SerializedRoute("wide", 2, "default", "celery", {"limits": {"mem": "1G", "cpu": 2}}, 1 + 5 + 10)
    assert (second.pool_slots, second.executor_config) == (3, {"limits": {}})
    weighed, *_ = routes_of(weight_rule="absolute", executor_config={"limits": {}})
    assert weighed.priority_weight == 1 + 10


def test_what_the_hook_does_to_an_executor_config_stays_in_its_route(hooked):
    hooked(CHANGES_ALL)
    config = {"limits": {"mem": "9M"}}
    with DAG("d", auto_register=False, default_args={"executor_config": config}) as dag:
        BashOperator.partial(task_id="mapped").expand(bash_command=["true"])
        BashOperator(task_id="single", bash_command="true")
    tasks = serialize_dag(dag).tasks
    assert [task.executor_config for task in tasks] == [OWN_CONFIG] * 2
    assert [task.routes[1].executor_config for task in tasks] == [OWN_CONFIG] * 2
    assert config == OWN_CONFIG


@pytest.mark.filterwarnings("ignore::asynsched.errors.NoEffectWarning")
def test_an_executor_config_that_cannot_be_copied_is_left_to_the_hook_as_it_is(hooked, monkeypatch):
    monkeypatch.setattr(defaults, "runs_on_this_machine", True)
    hooked("def task_instance_mutation_hook(ti): ti.queue, ti.executor_config['own'] = 'other', 1")
    config = {"lock": threading.Lock()}
    [route] = routes_of(executor_config=config)
    assert (route.queue, list(config)) == ("other", ["lock"])


def test_a_pool_that_is_no_name_is_an_error_of_the_dag(hooked):
    hooked("def task_instance_mutation_hook(ti): ti.pool = 5")
    with pytest.raises(DagError, match=r"DAG 'd', task 'first': pool must be a string, not 5"):
        routes_of()


def test_a_hook_that_needs_a_run_leaves_tasks_their_own_routes_and_is_noted(hooked):
    policies = hooked("def task_instance_mutation_hook(ti): ti.queue = ti.run_id.split('_')[0]")
    assert routes_of(retries=2) == ()
    [said] = policies.hook_errors()
    assert "airflow_local_settings.py raised an error when" in said
    assert "for DAG 'd', task 'first' (try_number 0) and 1 more, whose tries keep the task's own pool" in said
    assert said.endswith("AttributeError: run_id is not known yet: the file is parsed before there is a run")


def test_a_mistake_in_a_hook_is_told_with_the_try_for_which_it_was_called(hooked):
    policies = hooked("def task_instance_mutation_hook(ti): ti.queue = ('a', 'b')[ti.try_number]")
    assert routes_of(retries=1) == ()
    [said] = policies.hook_errors()
    assert "for DAG 'd', task 'first' (try_number 2), whose" in said
    assert said.endswith(": IndexError: tuple index out of range")


def test_a_try_shows_where_it_runs_whatever_the_hook_says_there(hooked):
    hooked(CHANGES_ALL.replace("not ti.try_number", "True") + "    ti.note = ti.queue = f'of {ti.queue}'\n")

    @task(executor_config=OWN_CONFIG, priority_weight=3)
    def tells():
        ti = get_current_context()["ti"]
        return ti.pool, ti.pool_slots, ti.queue, ti.executor, ti.executor_config, ti.priority_weight, ti.note

    with DAG("d", auto_register=False) as dag:
        tells()
    route = Route("a pool", 2, "a queue", None, {"limits": {"mem": "1G"}}, 16)
    told = one_task.run(dag.get_task("tells"), route=route)
    assert told.value == (*astuple(route), "of a queue")


def test_the_hook_finds_the_file_s_own_objects_in_an_executor_config_of_a_try_too(hooked):
    hooked("def task_instance_mutation_hook(ti): ti.note = ti.executor_config['pod_override'].name")

    @task(executor_config={"pod_override": SimpleNamespace(name="of the file")})
    def tells():
        ti = get_current_context()["ti"]
        return ti.note, ti.executor_config

    with DAG("d", auto_register=False) as dag:
        tells()
    written = {"pod_override": {"name": "in JSON"}}
    told = one_task.run(dag.get_task("tells"), route=Route("default_pool", 1, "default", None, written, 1))
    assert told.value == ("of the file", written)


def test_a_policy_file_that_cannot_be_imported_is_an_error_that_names_it(tmp_path):
    (tmp_path / "airflow_local_settings.py").write_text("import no_such_module")
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(PolicyError, match=r"airflow_local_settings cannot be imported: .*no_such_module"):
        Policies().load("")


def test_a_listener_with_an_unknown_argument_is_refused():
    class Listener:
        @hookimpl
        def on_dag_run_failed(self, dag_run, colour):
            pass

    manager = ListenerManager()
    with pytest.raises(Exception, match="colour"):
        manager.add_listener(Listener())


def test_listeners_hear_of_the_assets_that_a_successful_task_has_updated(monkeypatch):
    heard = []

    class Listener:
        @hookimpl
        def on_asset_changed(self, asset):
            heard.append(asset.name)

        @hookimpl
        def on_asset_event_emitted(self, asset_event):
            event = asset_event
            aliases = [alias.name for alias in event.source_aliases]
            source = (event.source_dag_id, event.source_task_id, event.source_map_index)
            heard.append((event.asset.name, event.extra, source, aliases, event.partition_key))

    manager = ListenerManager()
    manager.add_listener(Listener())
    own = installation.Installation([], Plugins(), Policies(), manager)
    monkeypatch.setattr(execution, "installation", own)
    plain, split, late = Asset("plain"), Asset("split"), Asset("late")
    outlets = [plain, split, AssetAlias("one"), AssetAlias("two")]
    with DAG("d", schedule=PartitionedAtRuntime()) as dag:

        @task(outlets=outlets)
        def updates(outlet_events=None):
            outlet_events[plain].extra = {"n": 1}
            outlet_events[split].add_partitions(["b", "a"])
            for alias in outlets[2:]:
                outlet_events[alias].add(late)

        @task(outlets=[plain], trigger_rule="all_done")
        def fails():
            raise ValueError

        updates() >> fails()
    dag.test()
    source = ("d", "updates", -1)
    assert heard == [
        "plain", ("plain", {"n": 1}, source, [], None),
        "split", ("split", {}, source, [], "a"), "split", ("split", {}, source, [], "b"),
        "late", ("late", {}, source, ["one", "two"], None),
    ]  # fmt: skip


def test_the_digest_is_that_of_python_files_alone(tmp_path):
    folders = [str(tmp_path)]
    assert installation.digest_of(folders) == ""
    (tmp_path / "a.py").write_text("1")
    first = installation.digest_of(folders)
    (tmp_path / "notes.txt").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.py").write_text("1")
    assert installation.digest_of(folders) == first != ""
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert installation.digest_of(folders) != first


WITHOUT_LISTENERS = """
import sys
from asynsched.airflow.installation import Installation
from asynsched.airflow.plugins_manager import Plugins
assert Installation([], Plugins(), None, None).events == ()
assert "asynsched.airflow.listeners" not in sys.modules
"""


def test_without_a_listener_the_library_of_listeners_is_not_loaded():
    subprocess.run([sys.executable, "-c", WITHOUT_LISTENERS], check=True)
