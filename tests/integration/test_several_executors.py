"""Several executors at once: a task names the one that runs it, and each has room of its own."""

import os

import anyio
import pytest

from asynsched import Scheduler
from asynsched.errors import SettingsError
from asynsched.executors.registry import executor_factory
from asynsched.settings import CallbacksSettings, Settings
from asynsched.store.engines.opening import open_direct
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.runs.task_instances import load_task_instances
from tests.support.narrow_executor import NarrowExecutor
from tests.support.waiting import DEADLINE_SECONDS, eventually

NARROW = "narrow=tests.support.narrow_executor:NarrowExecutor"
DAG_FILE = """
    import os
    from asynsched import DAG, task

    with DAG("mixed"):

        @task
        def here():
            return os.getpid()

        @task(executor="narrow")
        def there(n):
            return n

        here() >> [there.override(task_id=f"there_{n}")(n) for n in range(3)]

    with DAG("lost"):

        @task(executor="nowhere")
        def lost():
            pass

        @task(executor="elsewhere")
        def also_lost():
            pass

        lost(), also_lost()
"""
OF_AIRFLOW = """
    from airflow.sdk import DAG, task

    with DAG("moved", default_args={"executor": "KubernetesExecutor"}):

        @task
        def short():
            pass

        @task(executor="airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor")
        def long():
            pass

        @task(executor="LocalExecutor")
        def here():
            return 1

        short() >> long() >> here()
"""


async def test_each_task_runs_in_the_executor_that_it_names_and_within_its_room(program):
    program.write(DAG_FILE)
    NarrowExecutor.seen.clear()
    options = program.options()
    scheduler = Scheduler(executor=f"local,{NARROW}", **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        run = await scheduler.run("mixed")
        lost = await scheduler.trigger("lost")
        with open_direct(options["settings"].database_url) as database:
            reasons = await eventually(lambda: database.read(reasons_of, lost), "the tasks wait, and say why")
        scheduler.request_stop()
    assert run.state == "success"
    assert run.tasks[0].result != os.getpid()
    assert NarrowExecutor.seen == [("there_0", 0), ("there_1", 0), ("there_2", 0)]
    assert reasons == {f"there is no executor {name!r}; known: local, narrow" for name in ("nowhere", "elsewhere")}


def reasons_of(conn, key):
    """Return the reasons of the tasks that wait, once both do."""
    found = {row.reason for row in load_task_instances(conn, get_run(conn, *key).id) if row.state == "scheduled"}
    return found if len(found) == 2 else None


async def test_airflow_s_name_of_an_executor_calls_the_one_of_that_kind(program):
    program.write(OF_AIRFLOW)
    NarrowExecutor.seen.clear()
    scheduler = Scheduler(executor="local,kubernetes=tests.support.narrow_executor:NarrowExecutor", **program.options())
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        with anyio.fail_after(DEADLINE_SECONDS):
            run = await scheduler.run("moved")
        scheduler.request_stop()
    assert run.state == "success"
    assert [task_id for task_id, _ in NarrowExecutor.seen] == ["short", "long"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("local,sequential", "cannot be combined"),
        ("local,local", "named twice"),
        ("local,nowhere", "package.module:Class"),
        (f"{NARROW},{NARROW}", "'narrow' is named twice"),
    ],
)
def test_executors_that_cannot_be_together_are_refused(names, message):
    with pytest.raises(SettingsError, match=message):
        executor_factory(names)


async def test_callbacks_may_run_on_the_only_executor_by_its_own_name(program):
    program.write(DAG_FILE)
    options = program.options(executor=NARROW, callbacks=CallbacksSettings(executor="narrow"))
    async with Scheduler(**options) as scheduler:
        assert scheduler.running().is_nothing


@pytest.mark.parametrize(("executor", "known"), [("local", "local"), (f"local,{NARROW}", "local, narrow")])
async def test_callbacks_on_an_executor_that_there_is_not_are_refused(executor, known, tmp_path):
    (tmp_path / "dags").mkdir()
    given = {"home": str(tmp_path / "home"), "executor": executor, "callbacks": CallbacksSettings(executor="celery")}
    with pytest.raises(SettingsError, match=f"callbacks.executor: there is no executor 'celery'.*names {known}"):
        await Scheduler(settings=Settings(dags_folder=str(tmp_path / "dags"), **given)).serve()
