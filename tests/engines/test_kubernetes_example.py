"""The manifests of examples/kubernetes fit one another, the API's types and the settings. No cluster is needed."""

from pathlib import Path

import msgspec
import yaml
from kubernetes import client

from asynsched.cli.configuration import load_configuration
from asynsched.executors.engines.pods import checked_template
from tests.engines.kubernetes_site import KubernetesSite
from tests.engines.test_kubernetes_double import kubectl, site
from tests.integration.remote.machines import ROOT

__all__ = ["site"]

EXAMPLE = ROOT / "examples" / "kubernetes"
USED = {"pods": {"create", "delete", "get", "list", "watch"}, "secrets": {"create", "delete"}}
"""What the scheduler does with the API."""


async def test_the_example_renders_to_objects_that_fit_one_another(site: KubernetesSite):
    rendered = [one for one in yaml.safe_load_all(await kubectl(site, "kustomize", str(EXAMPLE))) if one]
    for one in rendered:
        decoded(one)
    named = {(one["kind"], one["metadata"]["name"]): one for one in rendered}
    assert {one["metadata"].get("namespace", "asynsched") for one in rendered} == {"asynsched"}
    pod = named["StatefulSet", "scheduler"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    settings = load_configuration({}, environment, Path("/")).settings
    assert settings.workers.addresses == ("http://scheduler:8080",)
    assert named["Service", "scheduler"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert {one["configMap"]["name"] for one in pod["spec"]["volumes"]} <= {name for _, name in named}
    rules = named["Role", "scheduler"]["rules"]
    assert {rule["resources"][0]: set(rule["verbs"]) for rule in rules} == USED
    assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in named
    template = yaml.safe_load(named["ConfigMap", "pod"]["data"]["pod.yaml"])
    decoded(checked_template(template, settings.kubernetes.image))
    assert ("ServiceAccount", template["spec"]["serviceAccountName"]) in named


def decoded(manifest: dict[str, object]) -> object:
    """Return a manifest as the official client's type of its kind, which checks what is required and allowed."""
    text = msgspec.json.encode(manifest).decode()
    found = client.ApiClient().deserialize(text, f"V1{manifest['kind']}", "application/json")
    assert client.ApiClient().sanitize_for_serialization(found) == manifest, "no field is unknown"
    return found
