"""A scheduler and the double of a Kubernetes cluster."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from asynsched.settings import KubernetesSettings, Settings
from tests.engines.kubernetes_double import IMAGE, Cluster
from tests.integration.remote.machines import ELSEWHERE, MARKS, PLACE, ROOT, Machine, Site


class Node(Machine):
    """A node of the cluster."""

    def __init__(self, site: "KubernetesSite", name: str) -> None:
        super().__init__(site.root, name)
        self._cluster = site.cluster

    @property
    def log(self) -> str:
        return "\n".join(self._cluster.output(name) for name in self._cluster.processes)


class KubernetesSite(Site):
    """A site whose tries are pods.

    Attributes:
        kubernetes: Settings of Kubernetes, for schedulers that start after they are set.
    """

    def __init__(self, root: Path, database: str | None = None) -> None:
        super().__init__(root, database, "kubernetes")
        self.is_remote = True
        self.kubernetes: dict[str, Any] = {}
        (root / "pods").mkdir()
        own = {
            "PYTHONPATH": str(ROOT), MARKS: str(self.marks), PLACE: ELSEWHERE, "ASYNSCHED_SHUTDOWN_GRACE": "0.2",
        }  # fmt: skip
        self.cluster = Cluster(root / "pods", os.environ | own)
        self.kubeconfig = root / "kubeconfig"

    def write_kubeconfig(self, url: str, cluster: Mapping[str, Any] = MappingProxyType({}), **user: Any) -> None:
        """Name the cluster, and how its user is known: by a token if nothing else is given."""
        named = {
            "clusters": [{"name": "double", "cluster": {"server": url, **cluster}}],
            "users": [{"name": "tests", "user": user or {"token": "a-token"}}],
            "contexts": [{"name": "tests", "context": {"cluster": "double", "user": "tests", "namespace": "work"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump({"kind": "Config", "current-context": "tests", **named}))

    def settings(self, home: str = "home", **more: Any) -> Settings:
        own = {"namespace": "work", "image": IMAGE, "kubeconfig": str(self.kubeconfig), **self.kubernetes}
        return super().settings(home, kubernetes=KubernetesSettings(**own), **more)

    def machine(self, name: str = "m1", **resources: int) -> Node:
        self.cluster.add_node(name, **resources)
        return Node(self, name)
