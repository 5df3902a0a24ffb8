"""Pods that stay warm run several tries, one after another, and nothing is lost with them; on a double."""

import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from sqlalchemy import select

from asynsched.executors import warm_workers
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.settings import CallbacksSettings
from asynsched.store.schema import ticket
from tests.engines.kubernetes_site import KubernetesSite
from tests.integration.remote.dags import CALLBACKS, DAGS
from tests.integration.remote.machines import SHORT_LEASE
from tests.integration.remote.test_contract import (
    has_ended,
    test_a_try_is_ended_for_a_user_and_runs_again_after_that,
    test_callbacks_run_where_a_setting_says,
    test_many_tries_end_once_each,
    test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs,
)
from tests.support.waiting import DEADLINE_SECONDS, eventually, eventually_true

__all__ = [
    "test_a_try_is_ended_for_a_user_and_runs_again_after_that",
    "test_callbacks_run_where_a_setting_says",
    "test_many_tries_end_once_each",
    "test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs",
]

HOPS = (
    DAGS
    + """
    RED = {"pod_override": {"spec": {"containers": [{"name": "base", "env": [{"name": "COLOUR", "value": "red"}]}]}}}
    LIMITED = {"pod_override": {"spec": {"activeDeadlineSeconds": 600}}}

    def colour(before=None):
        return os.environ.get("COLOUR", "none")

    with DAG("hops"):
        tasks = [task(colour, task_id=f"hop_{n}") for n in range(3)]
        tasks[2](tasks[1](tasks[0]()))

    with DAG("colours"):
        configs = [{}, RED, {}, RED, LIMITED, LIMITED]
        before = None
        for n, config in enumerate(configs):
            before = task(colour, task_id=f"colour_{n}", executor_config=config)(before)

    with DAG("long"):

        @task
        def short():
            say("short")

        @task(trigger_rule="all_done")
        def last():
            say("last")

        @task
        def endless():
            say("endless")
            time.sleep(600)

        short() >> endless() >> last()
"""
)


@pytest_asyncio.fixture
async def site(tmp_path, monkeypatch, request) -> AsyncIterator[KubernetesSite]:
    """A site with a node, and SQLite; or, if a test says so, PostgreSQL. Pods have much time to claim a try."""
    monkeypatch.setattr(warm_workers, "CLAIM_SECONDS", DEADLINE_SECONDS)
    site = KubernetesSite(tmp_path, request.getfixturevalue("postgres_url") if hasattr(request, "param") else None)
    site.kubernetes = {"keep_warm": 60.0}
    site.program.write(HOPS)
    async with site.cluster.serving() as url:
        site.write_kubeconfig(url)
        site.machine()
        yield site
    site.close()


def n_pods(site: KubernetesSite) -> int:
    """Return how many pods have started."""
    return len(site.cluster.processes)


async def test_the_tasks_of_a_run_share_a_pod_which_ends_when_its_time_is_over(site: KubernetesSite):
    site.kubernetes = {"keep_warm": 3.0}
    async with site.serving() as scheduler:
        run = await scheduler.run("hops")
        assert run.state == "success"
        await eventually(lambda: not site.cluster.pods() and not site.cluster.secrets(), "the pod ends")
    [process] = site.cluster.processes.values()
    assert process.returncode == 0


async def test_a_pod_takes_tries_of_its_own_dag_and_kind_alone(site: KubernetesSite):
    async with site.serving() as scheduler:
        run = await scheduler.run("colours")
        assert sorted(task.result for task in run.tasks) == ["none"] * 4 + ["red"] * 2
        assert n_pods(site) == 4, "one without and one with the override, and one for each try with a deadline"
        await scheduler.run("hops")
        assert n_pods(site) == 5, "another DAG"


async def test_the_callbacks_of_a_dag_share_a_pod(site: KubernetesSite):
    site.program.write(CALLBACKS)
    site.executor = "local,kubernetes"
    site.let_go()
    async with site.serving(callbacks=CallbacksSettings(executor="kubernetes")) as scheduler:
        for _ in range(2):
            run = await scheduler.run("calls")
            await eventually_true(scheduler._database, partial(has_ended, key=DagRunKey(run.dag_id, run.run_id)))
    assert n_pods(site) == 1


async def test_no_more_pods_wait_than_a_setting_says(site: KubernetesSite):
    site.kubernetes["warm_pods"] = 2
    async with site.serving() as scheduler:
        run = await scheduler.run("counts")
        assert run.state == "success"
        await eventually(lambda: len(site.cluster.pods()) == 2, "the others end")


async def test_a_warm_pod_that_is_killed_or_deleted_while_it_waits_is_replaced(site: KubernetesSite):
    async with site.serving() as scheduler:
        await scheduler.run("hops")
        site.cluster.end_pod(site.cluster.pods()[0]["metadata"]["name"], "OOMKilled")
        second = await scheduler.run("hops")
        name = site.cluster.pods()[-1]["metadata"]["name"]
        site.cluster.delete("pods", name)
        await eventually(lambda: site.cluster.processes[name].returncode is not None, "it ends")
        third = await scheduler.run("hops")
    assert site.cluster.processes[name].returncode == 0
    assert [run.state for run in (second, third)] == ["success"] * 2
    assert n_pods(site) == 3


async def test_a_try_whose_warm_pod_does_not_claim_it_gets_a_pod_of_its_own(site: KubernetesSite, monkeypatch):
    monkeypatch.setattr(warm_workers, "CLAIM_SECONDS", 3.0)
    async with site.serving() as scheduler:
        await scheduler.run("hops")
        [stopped] = site.cluster.processes.values()
        stopped.send_signal(signal.SIGSTOP)
        run = await scheduler.run("hops")
        stopped.send_signal(signal.SIGCONT)
        await eventually(lambda: stopped.returncode is not None, "the pod whose ticket is void ends")
    assert run.state == "success"
    assert [task.try_number for task in run.tasks] == [1, 1, 1]
    assert n_pods(site) == 2


async def test_a_try_that_a_user_ends_leaves_its_warm_pod(site: KubernetesSite):
    async with site.serving() as scheduler, scheduler.client() as client:
        for n in (1, 2):
            key = await scheduler.trigger("long")
            await site.until_said(*["endless"] * n)
            why = str(await client.why(*key, "endless"))
            assert any(name in why for name in site.cluster.processes)
            await scheduler.mark_tasks(key, ["endless"], "failed")
            run = await site.end_of(scheduler, key)
            await eventually_true(scheduler._database, lambda conn: not conn.scalars(select(ticket.c.token)).all())
    assert run.state == "success"
    assert site.said() == ["short", "endless", "last"] * 2
    assert n_pods(site) == 2, "a second one for what follows at once"


async def test_a_waiting_pod_ends_with_its_scheduler_and_a_running_one_does_not(site: KubernetesSite):
    async with site.serving() as scheduler:
        await scheduler.run("hops")
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
    waited = site.cluster.processes[next(iter(site.cluster.processes))]
    await eventually(lambda: waited.returncode is not None, "the pod that has waited ends")
    async with site.serving("home", 1) as scheduler:
        site.let_go()
        run = await site.end_of(scheduler, key)
        await eventually(lambda: len(site.cluster.pods()) == 1, "the pod of the try waits at the next scheduler")
        again = await scheduler.run("waits")
    assert waited.returncode == 0
    assert (run.state, again.state) == ("success", "success")
    assert n_pods(site) == 2


async def test_the_reason_of_a_try_lost_in_a_warm_pod_has_the_end_of_the_pod(site: KubernetesSite):
    site.lease = SHORT_LEASE
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("long")
        await site.until_said("endless")
        [name] = site.cluster.processes
        site.cluster.end_pod(name, "OOMKilled")
        await site.until_said("endless", "endless")
        first = (await client.list_tries(TaskInstanceKey(*key, "endless"))).tries[0]
        await scheduler.mark_tasks(key, ["endless"], "failed")
        await site.end_of(scheduler, key)
    assert first.reason.endswith("its pod has failed: OOMKilled, exit code 137, of its container base")


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
async def test_two_schedulers_end_all_runs_with_pods_that_wait_at_one(site: KubernetesSite):
    async with site.serving() as one:
        async with site.serving("other", 1) as other:
            runs = [await scheduler.run("hops") for scheduler in (one, other, one, other)]
        n_before = n_pods(site)
        runs.append(await one.run("hops"))
    assert [task.try_number for run in runs for task in run.tasks] == [1] * 15
    assert {run.state for run in runs} == {"success"}
    assert n_pods(site) == n_before, "those of the other scheduler's runs have waited here"
