"""One `asynsched up` for all tests here, over HTTP, with the DAGs of tests/web/filling.py and a user.

The official clients are those of the extra `clients`. astro-airflow-mcp brings a plugin of Airflow, which every
scheduler of its environment would load, so it has an environment of its own; `ASYNSCHED_CLIENTS_ENVIRONMENT` names a
folder that keeps it for later sessions.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fasteners import InterProcessLock

from tests.support.missing import skip_outside_ci
from tests.support.up import Site, Up
from tests.web.filling import RUN_ID, write_dags

ENVIRONMENT = "ASYNSCHED_CLIENTS_ENVIRONMENT"
MCP = "astro-airflow-mcp>=0.9.1"
READY = "asynsched-is-ready"
"""A file in the environment: what is installed there."""
NAME, PASSWORD = "ada", "a long password"
PACKAGES = {
    "airflow_client": "apache-airflow-client",
    "airflowctl": "apache-airflow-ctl",
    "schemathesis": "schemathesis",
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave the modules out where the clients are not installed."""
    return (bool(missing()) and collection_path.name.startswith("test_")) or None


def pytest_sessionstart() -> None:
    """In CI, the clients must be there."""
    if missing() and os.environ.get("CI") == "true":
        raise pytest.UsageError(without_clients())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests were not tried."""
    if missing():
        terminalreporter.write_line(without_clients(), yellow=True)


def missing() -> list[str]:
    """Return the clients that are not installed."""
    return [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]


def without_clients() -> str:
    """Say what is missing, and how to install it."""
    return f"Not tried: Airflow's clients. Missing: {', '.join(missing())}; pip install -e '.[clients]' installs them."


@dataclass
class Served:
    """A serving asynsched, and a user of it."""

    site: Site
    up: Up
    url: str
    token: str

    @property
    def http(self) -> httpx.Client:
        """A client that is signed in."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=60)

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of a GET of Airflow's API."""
        with self.http as client:
            return client.get(f"/api/v2{path}", params=params).raise_for_status().json()

    def wait_for_run(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run once it has ended."""

        def ended() -> str:
            state: str = self.get(f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state if state in ("success", "failed") else ""

        return self.site.until(ended, f"the run {run_id} of {dag_id} has ended")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A serving asynsched, in which `report` and `fails` have a run that has ended."""
    root = tmp_path_factory.mktemp("clients")
    write_dags(root / "dags")
    site = Site(root, env={"ASYNSCHED_WEB__LISTEN": "127.0.0.1:0", "ASYNSCHED_WEB__EXPOSE_CONFIG": "true"})
    subprocess.run(
        site.command("users", "create", NAME, "--role", "admin", "--password-stdin"), cwd=root, env=site.environment,
        input=f"{PASSWORD}\n", text=True, check=True, capture_output=True,
    )  # fmt: skip
    with site.up() as up:
        url = _address(up)
        answer = httpx.post(f"{url}/auth/token", json={"username": NAME, "password": PASSWORD}, timeout=60)
        served = Served(site, up, url, answer.raise_for_status().json()["access_token"])
        for dag_id in ("waits", "follows", "report", "fails", "asks"):
            site.wait_for_dag(dag_id)
        for dag_id in ("report", "fails", "asks"):
            site.run("dags", "trigger", dag_id, "--run-id", RUN_ID)
        site.until(lambda: len(site.json("tasks", "awaiting")) == 1, "a task asks")
        for dag_id in ("report", "fails"):
            site.until(lambda dag_id=dag_id: site.runs(dag_id)[0]["ended_at"], f"the run of {dag_id} has ended")
        site.until(lambda: site.runs("follows"), "the run of follows")
        yield served


def _address(up: Up) -> str:
    """Return the address that is served, which its link begins with."""

    def found() -> str:
        words = [word for word in up.log.split() if word.startswith("http://127.0.0.1:")]
        return words[0].rstrip(".") if words else ""

    link = up.site.until(found, "the page is served")
    return link[: link.index("/", len("http://"))] if "/" in link[len("http://") :] else link


@pytest.fixture(scope="session")
def mcp_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with astro-airflow-mcp, which is made unless it is there."""
    folder = Path(os.environ.get(ENVIRONMENT) or tmp_path_factory.getbasetemp() / "mcp").absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    interpreter, ready = str(folder / "bin" / "python"), folder / READY
    installed = f"{sys.version} {MCP}"
    with InterProcessLock(f"{folder}.lock"):
        if not ready.exists() or ready.read_text() != installed:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", MCP]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            if done.returncode:
                skip_outside_ci(f"{MCP} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
            ready.write_text(installed)
    return interpreter
