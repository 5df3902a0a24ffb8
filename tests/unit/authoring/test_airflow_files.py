"""DAG files of Airflow run when their import lines are changed."""

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest

from asynsched.authoring import defaults
from asynsched.errors import DagError
from asynsched.serialization.encode import serialize_dag
from tests.unit.authoring import dag_files
from tests.unit.authoring.loading import load, load_one

DATE = datetime(2024, 5, 1, tzinfo=UTC)


def states(run):
    return {task.task_id: str(task.state) for task in run.tasks}


def results(run):
    return {task.task_id: task.result for task in run.tasks if task.result is not None}


def test_tutorial_runs_with_its_defaults():
    dag = load_one(dag_files.TUTORIAL)
    assert [task.retries for task in dag.tasks] == [1, 3, 1]
    run = dag.test(logical_date=DATE)
    assert run.state == "success"
    assert run.task("templated").result == "2024-05-08"
    serialized = serialize_dag(dag)
    assert serialized.tags == ("example",)
    assert serialized.start_date == datetime(2021, 1, 1, tzinfo=UTC)
    assert serialized.tasks[0].downstream_task_ids == ("sleep", "templated")
    assert serialized.tasks[0].doc_md.startswith("#### Task Documentation")
    assert (serialized.catchup, serialized.doc_md) == (False, "This is a documentation placed anywhere")


def test_taskflow_passes_results():
    dag = load_one(dag_files.TASKFLOW)
    run = dag.test()
    assert dag.doc_md == "Load three orders."
    assert [task.task_id for task in run.tasks] == ["extract", "transform", "load"]
    assert run.task("load").result == 1236.7


def test_branch_follows_tasks_and_groups():
    run = load_one(dag_files.BRANCHING).test()
    assert [name for name, state in states(run).items() if state == "skipped"] == ["branch_a", "after_branch_a"]
    assert run.state == "success"
    assert run.task("branching").result == ["branch_b", "group"]


def test_short_circuit_skips_with_and_without_trigger_rules():
    run = load_one(dag_files.SHORT_CIRCUIT).test()
    skipped = {name for name, state in states(run).items() if state == "skipped"}
    assert skipped == {"skipped", "later", "near"}


def test_decorators_make_all_kinds_of_tasks():
    dag = load_one(dag_files.DECORATED)
    run = dag.test(logical_date=DATE, run_conf={"n": 3})
    found = results(run)
    assert states(run)["greet"] == "skipped"
    assert found["there"] == "found"
    assert (run.task("many").state, run.task("many").reason) == ("skipped", "too few")
    assert found["context_of"] == ["conn", "dag_run", "ds", "logical_date", "run_id", "ti", "var"]
    assert found["pipeline.triple"] == found["pipeline__1.triple"] == [18, 24]
    assert [states(run)[name] for name in ("make", "work", "clean")] == ["success", "skipped", "success"]
    small = dag.test(run_conf={"n": 1})
    assert small.task("greet").result == "x you HI"


def test_operators_of_ones_own_get_defaults_templates_and_results():
    dag = load_one(dag_files.CLASSIC)
    assert [(task.retries, task.owner) for task in dag.tasks] == [(2, "ops")] * 2 + [(7, "ops")] + [(2, "ops")] * 3
    run = dag.test(logical_date=DATE)
    found = results(run)
    assert found["named"] == "Hello Hello default!!"
    assert found["fixed"] == "Hello classic!"
    assert found["shown"] == ["shown", ["manual"], "2024-05-01", {"n": "1"}]
    assert run.state == "success"
    # Rendering has changed a copy: the next run renders again.
    assert dag.get_task("fixed").name == "{{ dag.dag_id }}"


def test_work_inside_a_teardown_block_lies_between_setup_and_teardown():
    dag = load_one(dag_files.SETUPS)
    assert dag.get_task("one").upstream_task_ids == {"make"}
    assert dag.get_task("clean").upstream_task_ids == {"make", "two"}
    run = dag.test()
    assert states(run) == {"make": "success", "one": "success", "two": "failed", "clean": "success"}
    assert run.state == "failed"


def test_files_may_use_pendulums_dates_lengths_and_zones():
    dag = load_one(dag_files.PENDULUM)
    serialized = serialize_dag(dag)
    assert serialized.start_date == datetime(2024, 1, 1, 5, tzinfo=UTC)
    assert serialized.timezone == "America/New_York"
    assert [task.retry_delay for task in dag.tasks] == [timedelta(minutes=5)] * 2
    assert serialized.tasks[0].retry_delay == 300
    run = dag.test(logical_date=DATE)
    assert results(run) == {"shown": "2024-04-30", "reckoned": "Wednesday, 1 May"}


def test_retry_delays_are_kept_as_lengths():
    text = dag_files.CLASSIC.replace('"retries": 2', '"retries": 2, "retry_delay": 90, "execution_timeout": 5')
    task = load_one(text).get_task("hello")
    assert (task.retry_delay, task.execution_timeout) == (timedelta(seconds=90), timedelta(seconds=5))


DATED = """
from datetime import datetime

import pendulum
from asynsched import DAG, DagRunType, task

with DAG(
    "dated", start_date=pendulum.datetime(2024, 1, 1, tz="Europe/Amsterdam"), end_date=datetime(2030, 1, 1),
    allowed_run_types=[DagRunType.MANUAL, DagRunType.BACKFILL_JOB],
) as dag:

    @task(start_date=datetime(2020, 1, 1))
    def early(): ...

    @task(start_date=datetime(2025, 1, 1), end_date=datetime(2029, 1, 1))
    def late(dag_run):
        return [DagRunType(dag_run.run_type).name, DagRunType.from_run_id(dag_run.run_id).name]

    early() >> late()
"""


def test_dates_are_pendulums_that_a_task_has_from_its_dag_and_keeps_its_own():
    dag = load_one(DATED)
    early, late = dag.tasks
    assert dag.start_date.subtract(days=1).format("YYYY-MM-DD HH:mm zz") == "2023-12-30 23:00 UTC"
    assert (early.start_date, early.end_date) == (dag.start_date, dag.end_date)
    assert [late.start_date.year, late.end_date.year] == [2025, 2029]
    stored = serialize_dag(dag)
    assert [task.start_date.year for task in stored.tasks] == [2020, 2025], "only a task's own dates are its own"
    assert stored.tasks[0].end_date is None
    assert stored.allowed_run_types == ("backfill", "manual")
    dag.start_date = "2024-06-01"
    assert serialize_dag(dag).start_date == early.start_date == datetime(2024, 6, 1, tzinfo=UTC)
    assert dag.test().task("late").result == ["MANUAL", "MANUAL"]


PULLED = """
from asynsched import DAG, Asset, TaskGroup, Label, task, task_group

with DAG("pulled", params={"n": 1, "text": "a"}, max_active_runs=3) as dag:

    @task
    def one():
        return 5

    @task
    def each(v):
        return v

    @task_group(group_id="g")
    def group(v):
        return each.override(task_id="inner")(v)

    @task(params={"n": 2})
    def pulls(grouped, ti, task, triggering_asset_events):
        return {
            "several": ti.xcom_pull(task_ids=["one", "each", "gone"]),
            "mapped": ti.xcom_pull(task_ids="each"),
            "chosen": ti.xcom_pull(task_ids=["each", "one"], map_indexes=[1, -1]),
            "of_one": [ti.xcom_pull(task_ids="each", map_indexes=1), ti.xcom_pull(task_ids="one", map_indexes=None)],
            "none": ti.xcom_pull(task_ids="each", map_indexes=[]),
            "elsewhere": ti.xcom_pull(task_ids="one", dag_id="other", default=0),
            "grouped": grouped + [3],
            "events": [triggering_asset_events[Asset("x")], triggering_asset_events.get(Asset("y"))],
            "params": task.params.dump(),
        }

    ended = one()
    ended >> each.expand(v=[1, 2]) >> pulls(group.expand(v=[1, 2]))
    with TaskGroup("empty") as empty:
        task(task_id="inside")(print)()
    ended >> empty
"""


def test_a_task_pulls_flat_lists_and_knows_the_params_of_its_dag():
    dag = load_one(PULLED)
    run = dag.test()
    assert run.task("pulls").result == {
        "several": [5, 1, 2, None],
        "mapped": [1, 2],
        "chosen": [2, None, None, 5],
        "of_one": [2, 5],
        "none": [],
        "elsewhere": 0,
        "grouped": [1, 2, 3],
        "events": [[], []],
        "params": {"n": 2, "text": "a"},
    }
    assert (dag.owner, dag.has_task_group("g"), dag["g"].group_id, dag["one"].task_id) == ("airflow", True, "g", "one")
    assert [task.task_id for task in dag["empty"].upstream_list] == ["one"]
    assert dag.get_task("pulls").params.pop("n") == 2
    assert dag.params["n"] == 1


TOLD = """
import logging, os, sys

from asynsched import DAG, task

said = []

def tell(context):
    said.append((context["ti"].task_id, str(context["ti"].state), str(context["dag_run"].state)))

def leave(context):
    sys.exit(3)

for fails in (True, False):
    with DAG(f"told_{fails}", on_failure_callback=tell, on_success_callback=tell):

        @task(on_success_callback=leave)
        def forks():
            logging.getLogger("mine").info("heard in %s", os.getpid())
            if os.fork() == 0:
                return "in the fork"
            os.wait()

        @task
        def ends(fails):
            assert not fails

        @task
        def follows(): ...

        forks() >> ends(fails) >> follows()
"""


def test_callbacks_of_a_dag_are_about_the_task_that_decided_its_end(caplog):
    dags = load(TOLD)
    for dag in dags:
        caplog.set_level("INFO")
        dag.test()
        assert len([record for record in caplog.records if "heard in" in record.message]) == 1
        assert "callbacks of forks have ended with 3" in caplog.text
        caplog.clear()
    assert dags[0].on_failure_callback[0].__globals__["said"] == [
        ("ends", "failed", "failed"),
        ("follows", "success", "success"),
    ]


MAPPED_BRANCH = """
from asynsched import DAG, EmptyOperator, task

with DAG("mapped_branch") as dag:

    @task.branch
    def choose(i):
        return ["a", "b"][i]

    choose.expand(i=[0, 1]) >> [EmptyOperator(task_id=name) for name in "abc"]

    @task.short_circuit
    def go_on(i):
        return bool(i)

    go_on.expand(i=[0, 1]) >> EmptyOperator(task_id="one_says_yes")
    go_on.override(task_id="stop").expand(i=[0, 0]) >> EmptyOperator(task_id="all_say_no")
"""


def test_instances_of_a_mapped_branch_skip_together_only_what_none_of_them_chose():
    found = states(load_one(MAPPED_BRANCH).test())
    assert {name: found[name] for name in ("a", "b", "c", "one_says_yes", "all_say_no")} == {
        "a": "success",
        "b": "success",
        "c": "skipped",
        "one_says_yes": "success",
        "all_say_no": "skipped",
    }


@pytest.fixture
def factory(monkeypatch, tmp_path):
    """A module `factory` of another folder, whose `make` makes a DAG."""
    text = (
        "from asynsched import DAG, dag\ndef make(*args, **kwargs): return DAG(*args, **kwargs)\n@dag\ndef made(): pass"
    )
    module = ModuleType("factory")
    exec(compile(text, str(tmp_path / "lib" / "factory.py"), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "factory", module)
    (tmp_path / "lib").mkdir()


def test_a_dag_of_a_factory_belongs_to_the_dag_file(factory, tmp_path):
    file = tmp_path / "dags" / "file.py"
    text = "from factory import made, make\none, two = make('one', on_success_callback=print), made()"
    dags = {dag.dag_id: dag for dag in load(text, str(file))}
    one, two = dags["one"], dags["made"]
    assert [one.fileloc, two.fileloc, one.folder] == [str(file), str(file), str(file.parent)]
    assert one.relative_fileloc == str(file)
    defaults.set_defaults({"core.dags_folder": str(tmp_path)})
    found = one.relative_fileloc
    defaults.set_defaults({})
    assert found == "dags/file.py"
    assert [one.has_on_success_callback, one.has_on_failure_callback] == [True, False]


def test_an_unset_limit_of_a_dag_reads_as_the_installation_s_and_is_not_stored():
    dag = load_one("from asynsched import DAG\ndag = DAG('d', max_active_tasks=5)")
    limits = "max_active_runs", "max_active_tasks", "max_consecutive_failed_dag_runs"
    usual = [getattr(dag, name) for name in limits]
    defaults.set_defaults({"core.max_active_runs_per_dag": "3", "core.max_active_tasks_per_dag": "8"})
    found = [getattr(dag, name) for name in limits]
    stored = [getattr(serialize_dag(dag), name) for name in limits]
    defaults.set_defaults({})
    assert (usual, found, stored) == ([16, 5, 0], [3, 5, 0], [None, 5, None])
    dag.max_active_runs = 2
    assert (dag.max_active_runs, serialize_dag(dag).max_active_runs) == (2, 2)
    with pytest.raises(DagError, match="max_active_runs must be a whole number"):
        dag.max_active_runs = "many"


def test_documents_are_files_beside_the_dag_file_or_its_factory_or_texts(factory, tmp_path):
    (tmp_path / "dags").mkdir()
    for name, text in (("dags/a.md", "of a"), ("lib/a.md", "no"), ("lib/b.md", "of b")):
        (tmp_path / name).write_text(text)
    (tmp_path / "dags" / "no_text.md").write_bytes(b"\xff")
    names = ("a", "b", "c", "no_text")
    text = "from factory import make\n" + "".join(f"{name} = make('{name}', doc_md='{name}.md')\n" for name in names)
    docs = [dag.doc_md for dag in load(text, str(tmp_path / "dags" / "file.py"))]
    assert docs == ["of a", "of b", "c.md", "no_text.md"]
