"""What Dask promises of its workers holds for tries, and what it does not promise is made good."""

import os
import sys
from collections.abc import Iterator

import anyio
import pytest
from sqlalchemy import select

from asynsched.errors import SettingsError
from asynsched.executors.engines import dask as engine
from asynsched.store.schema import ticket
from tests.engines.dask_site import DaskSite
from tests.integration.remote.dags import DAGS, SAYS
from tests.integration.remote.machines import MARKS, ROOT, free_port
from tests.integration.remote.test_contract import (
    test_a_try_is_ended_for_a_user_and_runs_again_after_that,
    test_callbacks_run_where_a_setting_says,
    test_many_tries_end_once_each,
    test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values,
    test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs,
)
from tests.support.waiting import eventually, eventually_true

__all__ = [
    "test_a_try_is_ended_for_a_user_and_runs_again_after_that",
    "test_callbacks_run_where_a_setting_says",
    "test_many_tries_end_once_each",
    "test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values",
    "test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs",
]


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[DaskSite]:
    site = DaskSite(tmp_path)
    monkeypatch.setenv(MARKS, str(site.marks))
    site.start_dask()
    yield site
    site.close()


WISHES = """
    from asynsched import DAG, task

    with DAG("wishes"):

        @task(queue="gpu")
        def by_queue():
            pass

        @task(executor_config={"resources": {"gpu": 2}, "priority": 5})
        def by_resources():
            pass

        @task(executor_config={"workers": ["m2"]})
        def by_worker():
            pass

        @task(executor_config={"memory": "1 GB"})
        def wrong():
            pass

        by_queue(), by_resources(), by_worker(), wrong()
"""

PLACED = (
    SAYS
    + """
    with DAG("here"):

        @task(executor_config={"workers": ["m1"]})
        def here(run_id=None):
            say(f"{run_id} begins")
            wait()
            say(f"{run_id} ends")

        here()

    with DAG("there"):

        @task(executor_config={"workers": ["m2"]})
        def there():
            pass

        there()
"""
)

DATA = """
    from asynsched import DAG, task

    with DAG("data"):

        @task
        def adds(address):
            from distributed import Client

            with Client(address) as client:
                return client.submit(sum, client.map(lambda n: 2 * n, range(10))).result(30)

        adds("ADDRESS")
"""


async def test_a_task_computes_with_the_data_of_the_cluster_that_runs_it(site: DaskSite):
    site.program.write(DATA.replace("ADDRESS", site.address))
    site.machine("m1", "--no-nanny", "--nthreads", "2")
    async with site.serving() as scheduler:
        run = await scheduler.run("data")
    assert [(task.state, task.result) for task in run.tasks] == [("success", 90)]


async def test_a_task_that_dask_starts_again_after_a_loss_is_refused_and_the_try_goes_on(site: DaskSite):
    site.program.write(DAGS)
    first = site.machine("m1")
    await site.until_workers(1)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        other = site.machine("m2")
        first.kill_worker()
        await eventually(lambda: "ticket.refused" in other.log, "Dask gives the task to the other worker")
        first.start()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", first.log + other.log
    assert site.said() == ["begins 1", "ends 1"]


async def test_a_worker_that_its_nanny_starts_again_goes_on_with_its_try(site: DaskSite):
    site.program.write(DAGS)
    machine = site.machine("m1", "--nthreads", "2")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.kill_nannys_worker()
        await site.until_workers(1)
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machine.log
    assert site.said() == ["begins 1", "ends 1"]


async def test_the_try_of_a_killed_worker_keeps_its_thread_in_the_next_one(site: DaskSite):
    site.program.write(PLACED)
    machine = site.machine("m1", "--no-nanny", "--nthreads", "1")
    async with site.serving() as scheduler:
        first = await scheduler.trigger("here", run_id="first")
        await site.until_said("first begins")
        machine.kill_worker()
        await eventually(lambda: "Remove worker" in site.dask_log, "Dask has noticed it, and takes another of its name")
        machine.start()
        await site.until_workers(1)
        site.machine("m2")
        other = await scheduler.trigger("here", run_id="other")
        assert (await scheduler.run("there")).state == "success", "the other one has had time to begin"
        site.let_go()
        runs = [await site.end_of(scheduler, key) for key in (first, other)]
    assert [run.state for run in runs] == ["success", "success"], machine.log
    assert site.said() == ["first begins", "first ends", "other begins", "other ends"]


async def test_a_worker_that_cannot_keep_tickets_closes_and_leaves_them_to_others(site: DaskSite):
    site.program.write(DAGS)
    broken = site.machine("m1")
    async with site.serving() as scheduler:
        await eventually((broken.home / "tickets").is_dir, "it takes tickets")
        (broken.home / "tickets").rmdir()
        (broken.home / "tickets").write_text("in the way")
        key = await scheduler.trigger("counts")
        await eventually(lambda: broken.worker.poll() is not None, "it has closed")
        site.machine("m2")
        run = await site.end_of(scheduler, key)
    assert run.state == "success", broken.log
    assert {task.try_number for task in run.tasks} == {1}
    assert "worker.failed" in broken.log


async def test_the_tries_of_a_retired_worker_are_interrupted_and_run_again_elsewhere(site: DaskSite):
    site.program.write(DAGS)
    retired = site.machine("m1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        other = site.machine("m2")
        await site.until_workers(2)
        async with site.client() as client:
            await client.retire_workers(names=["m1"], close_workers=True)
        await site.until_said("begins 1", "begins 1")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", retired.log + other.log
    assert site.said()[-1] == "ends 1", "the try that was interrupted does not count"


async def test_a_try_goes_on_while_one_scheduler_stops_and_another_takes_its_run(site: DaskSite):
    site.program.write(DAGS)
    machine = site.machine("m1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
    async with site.serving("home", 1) as scheduler:
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machine.log
    assert site.said() == ["begins 1", "ends 1"]


async def test_jobs_that_a_dask_scheduler_takes_with_it_are_submitted_to_the_next(site: DaskSite, monkeypatch):
    monkeypatch.setattr(engine, "YOUNG_SECONDS", 3.0)
    site.program.write(DAGS)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("counts")
        await eventually_true(scheduler._database, all_are_waiting)
        site.kill_dask()
        site.start_dask()
        machine = site.machine("m1")
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machine.log
    assert sorted(site.said()) == sorted(f"count {n}" for n in range(20))


def all_are_waiting(conn) -> bool:
    """Whether Dask has as many tasks as a DAG may have at once."""
    return sum("no Dask worker is connected" in sight for sight in conn.scalars(select(ticket.c.sight))) == 16


async def test_wishes_name_resources_and_workers_and_why_says_which_nobody_offers(site: DaskSite, monkeypatch):
    monkeypatch.setattr(engine, "YOUNG_SECONDS", 3.0)
    site.program.write(WISHES)
    site.machine("m1")
    await site.until_workers(1)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wishes")
        await eventually_true(scheduler._database, has_sights)
        why = str(await scheduler.client().why(*key, "by_resources"))
        assert "none of 1 Dask workers offers gpu=2" in why
        site.machine("m2", "--no-nanny", "--resources", "gpu=2")
        run = await site.end_of(scheduler, key)
    states = {task.task_id: (task.state, task.reason) for task in run.tasks}
    state, reason = states.pop("wrong")
    assert state == "failed"
    assert "executor_config of Dask has resources, workers and priority" in reason
    assert {state for state, _ in states.values()} == {"success"}


def has_sights(conn) -> bool:
    return sum("offers" in sight for sight in conn.scalars(select(ticket.c.sight))) == 3


async def test_a_function_can_make_a_cluster_that_grows_with_its_tasks(site: DaskSite):
    site.program.write(DAGS)
    site.cluster = "tests.engines.dask_site:adaptive_cluster"
    async with site.serving() as scheduler:
        run = await scheduler.run("counts")
    assert run.state == "success"
    assert len(site.said()) == 20


async def test_the_example_runs_by_its_own_settings_with_a_cluster_of_this_machine(tmp_path):
    port, home = free_port(), tmp_path / "home"
    own = {"WEB__LISTEN": f"127.0.0.1:{port}", "WORKERS__ADDRESSES": f"http://127.0.0.1:{port}", "HOME": str(home)}
    command = [sys.executable, "-m", "asynsched", "up", "dags", "--until-idle", "--fail-on", "errors,failed"]
    ran = await anyio.run_process(
        command, cwd=ROOT / "examples" / "dask", env=os.environ | {f"ASYNSCHED_{name}": of for name, of in own.items()}
    )
    log = b"".join(path.read_bytes() for path in home.glob("logs/*/*/*total*/*.log"))
    assert b"the sum is 499500" in log, ran.stdout + ran.stderr


async def test_dask_without_a_cluster_is_refused_in_one_sentence(site: DaskSite):
    site.program.write(DAGS)
    site.is_addressed = False
    with pytest.raises(SettingsError, match=r"dask\.address: Dask needs the address of its scheduler"):
        async with site.serving():
            pass
