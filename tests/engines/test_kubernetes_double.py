"""The double of Kubernetes answers kubectl and the official client as a cluster does, as far as tries need it."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from anyio.to_thread import run_sync
from kubernetes import client, config, watch

from tests.engines.kubernetes_double import IMAGE
from tests.engines.kubernetes_site import KubernetesSite
from tests.support.missing import skip_outside_ci
from tests.support.waiting import eventually

POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": {"colour": "green"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "base", "image": IMAGE, "command": ["sh", "-c", "echo hello; sleep 60"]}],
    },
}  # fmt: skip


@pytest_asyncio.fixture
async def site(tmp_path) -> AsyncIterator[KubernetesSite]:
    site = KubernetesSite(tmp_path)
    async with site.cluster.serving() as url:
        site.write_kubeconfig(url)
        yield site
    site.close()


async def kubectl(site: KubernetesSite, *arguments: str, text: str = "") -> str:
    if shutil.which("kubectl") is None:
        skip_outside_ci("kubectl is not installed: apt-get install kubernetes-client")
    environment = os.environ | {"KUBECONFIG": str(site.kubeconfig), "HOME": str(site.root)}
    process = await asyncio.create_subprocess_exec(
        "kubectl", *arguments, env=environment, stdin=-1, stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate(text.encode())
    return output.decode()


async def test_kubectl_creates_shows_follows_and_deletes_pods(site: KubernetesSite):
    site.cluster.add_node("n1")
    pod = json.dumps(POD)
    assert "pod/one created" in await kubectl(site, "create", "--validate=false", "-f", "-", text=pod)
    assert "already exists" in await kubectl(site, "create", "--validate=false", "-f", "-", text=pod)
    await eventually(lambda: site.cluster.output("one"), "the container has begun")
    assert await kubectl(site, "get", "pod", "one", "-o", "jsonpath={.status.phase}") == "Running"
    shown = json.loads(await kubectl(site, "get", "pods", "-l", "colour=green", "-o", "json"))
    assert [one["spec"]["nodeName"] for one in shown["items"]] == ["n1"]
    assert json.loads(await kubectl(site, "get", "pods", "-l", "colour=red", "-o", "json"))["items"] == []
    assert await kubectl(site, "logs", "one") == "hello\n"
    assert "deleted" in await kubectl(site, "delete", "pod", "one")  # waits until it is gone
    assert "NotFound" in await kubectl(site, "get", "pod", "one")


async def test_the_official_client_watches_pages_evicts_and_is_told_of_old_versions(site: KubernetesSite):
    site.cluster.add_node("n1")
    await run_sync(walk, site)


def walk(site: KubernetesSite) -> None:
    """Use the official client, in a thread."""
    config.load_kube_config(str(site.kubeconfig))
    api = client.CoreV1Api()
    for n in range(3):
        api.create_namespaced_pod("work", {**POD, "metadata": {"name": f"pod-{n}"}})
    first = api.list_namespaced_pod("work", limit=2)
    rest = api.list_namespaced_pod("work", limit=2, _continue=first.metadata._continue)
    assert [pod.metadata.name for pod in first.items + rest.items] == ["pod-0", "pod-1", "pod-2"]
    version = rest.metadata.resource_version
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name="pod-1"))
    api.create_namespaced_pod_eviction("pod-1", "work", body)
    seen = []
    for event in watch.Watch().stream(api.list_namespaced_pod, "work", resource_version=version, timeout_seconds=30):
        seen.append((event["type"], event["object"].metadata.name, event["object"].metadata.deletion_timestamp is None))
        if event["type"] == "DELETED":
            break
    assert seen[-1] == ("DELETED", "pod-1", False)
    with pytest.raises(client.ApiException, match=r"metadata\.name") as raised:
        api.create_namespaced_pod("work", {**POD, "metadata": {"name": "Not A Name"}})
    assert raised.value.status == 422
    site.cluster.forget_history()
    with pytest.raises(client.ApiException) as raised:
        list(watch.Watch().stream(api.list_namespaced_pod, "work", resource_version=version, timeout_seconds=1))
    assert raised.value.status == 410
