"""What Kubernetes does with pods holds for tries, and what it does not promise is made good; on a double."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import select

from asynsched.errors import SettingsError
from asynsched.keys import TaskInstanceKey
from asynsched.store.schema import ticket
from tests.engines.kubernetes_site import KubernetesSite
from tests.integration.remote.dags import DAGS
from tests.integration.remote.machines import SHORT_LEASE
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


@pytest_asyncio.fixture
async def site(tmp_path) -> AsyncIterator[KubernetesSite]:
    site = KubernetesSite(tmp_path)
    async with site.cluster.serving() as url:
        site.write_kubeconfig(url)
        yield site
    site.close()


WISHES = """
    from asynsched import DAG, task
    from kubernetes.client import models as k8s

    def pod(**fields):
        return {"pod_override": k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base", **fields)]))}

    with DAG("wishes"):

        @task(executor_config=pod(env=[k8s.V1EnvVar(name="COLOUR", value="green")]))
        def by_environment():
            import os
            return os.environ["COLOUR"], os.environ["SHAPE"]

        @task(executor_config=pod(resources=k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"})))
        def by_gpu():
            pass

        @task(executor_config=pod(image="asinsched"))
        def by_image():
            pass

        @task(executor_config=pod(resources=k8s.V1ResourceRequirements(requests={"memory": "much"})))
        def invalid():
            pass

        @task(executor_config={"gpus": 2})
        def unknown():
            pass

        by_environment(), by_gpu(), by_image(), invalid(), unknown()
"""
TEMPLATE = """
metadata:
  labels: {team: data}
spec:
  serviceAccountName: tries
  containers:
  - name: base
    env: [{name: COLOUR, value: red}, {name: SHAPE, value: round}]
"""


async def test_wishes_change_the_pod_of_a_template_and_why_says_what_keeps_it(site: KubernetesSite):
    site.program.write(WISHES)
    (site.root / "pod.yaml").write_text(TEMPLATE)
    site.kubernetes = {"pod_template": str(site.root / "pod.yaml"), "keep_failed": True}
    site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("wishes")
        await eventually_true(scheduler._database, lambda conn: len(sights(conn)) >= 2)
        why = [str(await client.why(*key, task_id)) for task_id in ("by_gpu", "by_image")]
        assert "its pod is unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu." in why[0]
        assert "its container base waits: ImagePullBackOff: Back-off pulling image 'asinsched'" in why[1]
        [pod] = [one for one in site.cluster.pods() if one["metadata"]["labels"]["task_id"] == "by_image"]
        assert pod["metadata"]["labels"]["team"] == "data"
        assert pod["spec"]["serviceAccountName"] == "tries"
        site.machine("m2", **{"nvidia.com/gpu": 1})
        await scheduler.mark_tasks(key, ["by_image"], "success")
        run = await site.end_of(scheduler, key)
        await eventually(lambda: not site.cluster.pods() and not site.cluster.secrets(), "pods are deleted")
    tasks = {task.task_id: task for task in run.tasks}
    assert tasks["by_environment"].result == ("green", "round")
    assert tasks["by_gpu"].state == "success"
    assert "Kubernetes does not take its pod: Pod" in tasks["invalid"].reason
    assert "Invalid value: 'much'" in tasks["invalid"].reason
    assert "executor_config of Kubernetes has pod_override, a pod, not 'gpus'" in tasks["unknown"].reason


def sights(conn) -> list[str]:
    """Return what Kubernetes has said of pods that wait for something."""
    found = conn.scalars(select(ticket.c.sight))
    return [sight for sight in found if "unschedulable" in sight or "ImagePullBackOff" in sight]


async def test_a_fan_out_waits_for_a_quota_and_no_pod_is_made_twice(site: KubernetesSite):
    site.program.write(DAGS)
    site.cluster.quota = 5
    site.machine()
    async with site.serving() as scheduler:
        site.cluster.failing = 1
        key = await scheduler.trigger("counts")
        await eventually_true(scheduler._database, has_sight("exceeded quota"))
        run = await site.end_of(scheduler, key)
        await eventually(lambda: site.cluster.secrets() == [], "the secrets of pods that are gone are deleted")
    assert run.state == "success"
    assert sorted(site.said()) == sorted(f"count {n}" for n in range(20))
    assert len(site.cluster.processes) == 20


async def test_a_webhook_that_denies_a_pod_fails_its_task_with_its_words(site: KubernetesSite):
    site.program.write(DAGS)
    site.cluster.denied = "images must be signed"
    site.machine()
    async with site.serving() as scheduler:
        run = await scheduler.run("waits")
    assert run.state == "failed"
    assert run.tasks[0].try_number == 1
    assert run.tasks[0].reason.endswith("images must be signed")


async def test_pods_are_seen_after_watches_that_break_and_versions_that_are_forgotten(site: KubernetesSite):
    site.program.write(DAGS)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await eventually(lambda: site.cluster.pods(), "a pod waits for a node")
        site.cluster.break_watches()
        site.cluster.failing = 2
        site.cluster.forget_history()
        [name] = [pod["metadata"]["name"] for pod in site.cluster.pods()]
        await eventually_true(scheduler._database, has_sight("its pod is unschedulable"))
        site.cluster.delete("pods", name)
        await eventually(lambda: site.cluster.pods(), "the try runs again in another pod")
        site.machine()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert run.tasks[0].try_number == 2


def has_sight(text: str):
    """Return a query that says whether Kubernetes has said this of a pod."""
    return lambda conn: any(text in sight for sight in conn.scalars(select(ticket.c.sight)))


async def test_a_pod_that_is_deleted_interrupts_its_try_which_runs_again(site: KubernetesSite):
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.cluster.delete("pods", site.cluster.pods()[0]["metadata"]["name"])
        await site.until_said("begins 1", "begins 1")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said()[-1] == "ends 1", "the try that was interrupted does not count"


async def test_a_try_goes_on_in_its_pod_while_one_scheduler_stops_and_another_starts(site: KubernetesSite):
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
    async with site.serving("home", 1) as scheduler:
        site.let_go()
        run = await site.end_of(scheduler, key)
        await eventually(lambda: not site.cluster.pods(), "the next scheduler deletes the pod")
    assert run.state == "success"
    assert site.said() == ["begins 1", "ends 1"]


@pytest.mark.parametrize("end", ["Evicted", "OOMKilled"])
async def test_the_reason_of_a_lost_try_has_the_end_of_its_pod(site: KubernetesSite, end):
    site.program.write(DAGS)
    site.lease = SHORT_LEASE
    site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.cluster.end_pod(site.cluster.pods()[0]["metadata"]["name"], end, "The node was low on memory.")
        site.let_go()
        run = await site.end_of(scheduler, key)
        first = (await client.list_tries(TaskInstanceKey(*key, "waits"))).tries[0]
    assert run.state == "success"
    said = {
        "Evicted": "Evicted: The node was low on memory.",
        "OOMKilled": "OOMKilled, exit code 137, of its container base",
    }
    assert first.reason.endswith(f"its pod has failed: {said[end]}")


async def test_a_try_whose_node_is_gone_runs_again_on_another(site: KubernetesSite):
    site.program.write(DAGS)
    site.lease = SHORT_LEASE
    site.machine("m1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.cluster.lose_node("m1")
        site.machine("m2")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said()[-1] == "ends 2"


async def test_pods_that_have_failed_are_kept_where_a_setting_says_so(site: KubernetesSite):
    site.program.write(DAGS)
    site.kubernetes = {"keep_failed": True}
    site.lease = SHORT_LEASE
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        site.cluster.end_pod(site.cluster.pods()[0]["metadata"]["name"], "OOMKilled")
        await scheduler.mark_tasks(key, ["waits"], "failed")
        await site.end_of(scheduler, key)
    assert [pod["status"]["phase"] for pod in site.cluster.pods()] == ["Failed"]


@pytest.mark.parametrize(
    ("settings", "template", "message"),
    [
        ({"image": ""}, None, r"kubernetes\.image: its container `base` has no image"),
        ({}, "spec: {containers: [{name: main}]}", r"pod\.yaml: it has no container of the name base"),
        ({}, "kind: Deployment", r"pod\.yaml: it is the manifest of a Deployment"),
        ({}, "spec: [", r"kubernetes\.pod_template: .*pod\.yaml"),
        ({"kubeconfig": ""}, None, r"kubernetes\.kubeconfig: .*outside of a cluster, name a file"),
        ({"kubeconfig": "/nowhere"}, None, r"kubernetes\.kubeconfig: .*/nowhere"),
    ],
)
async def test_settings_that_are_wrong_are_refused_in_one_sentence(site: KubernetesSite, settings, template, message):
    site.program.write(DAGS)
    if template:
        (site.root / "pod.yaml").write_text(template)
        settings = {**settings, "pod_template": str(site.root / "pod.yaml")}
    site.kubernetes = settings
    with pytest.raises(SettingsError, match=message):
        async with site.serving():
            pass
