"""Environments for the tests here, with asynsched and packages from the index: one of providers, and those of
`packages.toml`.

`ASYNSCHED_PROVIDERS_ENVIRONMENT` names a folder that keeps the first one for later sessions, `COMPATIBILITY_CACHE` one
that keeps the others; without them, each session makes its own, which takes about two minutes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from fasteners import InterProcessLock

from tests.compatibility.outcomes import Tried
from tests.compatibility.packages import listed, prepared, unpacked
from tests.compatibility.trying import example_files, try_packages
from tests.support.missing import skip_outside_ci
from tests.support.up import Site

ROOT = Path(__file__).parents[2]
PROVIDERS = (
    "amazon[aiobotocore]", "cncf-kubernetes", "common-io", "common-sql", "docker", "http", "postgres", "sftp", "slack",
    "smtp", "sqlite", "ssh",
)  # fmt: skip
ENVIRONMENT = "ASYNSCHED_PROVIDERS_ENVIRONMENT"
READY = "asynsched-is-ready"
"""A file in the environment: the list of installed packages."""


@dataclass
class ProviderSite(Site):
    """A site whose commands run in an environment of its own."""

    python: str = sys.executable

    def command(self, *args: str) -> list[str]:
        return [self.python, "-P", "-m", "asynsched", *args]

    def connect(self, conn_id: str, **fields: Any) -> None:
        """Store a connection."""
        path = self.root / "connections.json"
        path.write_text(json.dumps({conn_id: fields}))
        self.run("connections", "import", str(path))

    def succeed(self, *dag_ids: str, timeout: float = 120) -> None:
        """Run the DAGs of the folder to their end, and require that each has one run, in which every task succeeds."""
        self.up_until_idle(timeout=timeout)
        errors = [error["message"] for error in self.json("dags", "errors")]
        assert errors == [], errors
        ended = {dag_id: [run["state"] for run in self.runs(dag_id)] for dag_id in dag_ids}
        assert all(states == ["success"] for states in ended.values()), self.told(*dag_ids)

    def told(self, *dag_ids: str) -> str:
        """Return the states of all tasks, and the logs of those that have not succeeded."""
        found = []
        for dag_id in dag_ids:
            for run in self.runs(dag_id):
                for task_id, state in self.task_states(dag_id, run["run_id"]).items():
                    found.append(f"--- {dag_id}.{task_id}: {state}")
                    if state not in ("success", None):
                        found.append(self.log(dag_id, task_id))
        return "\n".join(found)

    def log(self, dag_id: str, task_id: str) -> str:
        """Return the log of a task in the newest run."""
        return self.run("tasks", "logs", dag_id, "latest", task_id, code=None).stdout


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make the environment, unless it is there, and return its interpreter."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get(ENVIRONMENT) or shared / "environment").absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    interpreter, ready = str(folder / "bin" / "python"), folder / READY
    installed = f"{ROOT} {sys.version} {' '.join(PROVIDERS)}"
    with InterProcessLock(f"{folder}.lock"):
        if not ready.exists() or ready.read_text() != installed:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            _require_index(interpreter, folder)
            subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--editable", str(ROOT)], check=True)
            command = [interpreter, "-P", "-m", "asynsched", "providers", "install", *PROVIDERS]
            env = {name: value for name, value in os.environ.items() if name != ENVIRONMENT}
            subprocess.run(command, cwd=folder, check=True, env=env)
            ready.write_text(installed)
    return interpreter


def _require_index(interpreter: str, folder: Path) -> None:
    """Skip the test where no package index can be reached; in CI, fail."""
    probe = [interpreter, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", f"{folder}/probe"]
    found = subprocess.run([*probe, "apache-airflow-providers-sqlite"], capture_output=True, text=True, check=False)
    if found.returncode:
        skip_outside_ci(f"no package index can be reached: {found.stderr.strip().splitlines()[-1]}")


@dataclass(frozen=True)
class Prepared:
    """An environment of `packages.toml`: its interpreter, its variables, and the cache that it is in."""

    python: str
    variables: Mapping[str, str]
    cache: Path

    def tried(self, name: str, examples: Sequence[str], folder: Path, runs: Sequence[str] = ("*",)) -> list[Tried]:
        """Return the outcomes of some example files of a package, by their patterns; run the DAGs of `runs` only.

        Its repository comes from the cache or from GitHub: the test is skipped where neither has it, also in CI, since
        only a package index is needed for tests.
        """
        package = listed()[0][name]
        try:
            contents = unpacked(package, self.cache, {})
        except SystemExit as exc:
            pytest.skip(str(exc))
        files = {Path(path).name for path in example_files(package, contents / package.examples)}
        left_out = {file for file in files if not any(fnmatchcase(file, pattern) for pattern in examples)}
        chosen = replace(package, left_out=(*package.left_out, *sorted(left_out)), runs=tuple(runs))
        return try_packages([chosen], {chosen: contents}, folder, self.python, self.variables)[name]


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The environment that the test's module names as `ENVIRONMENT`."""
    given = os.environ.get("COMPATIBILITY_CACHE")
    cache = Path(given or tmp_path_factory.mktemp("compatibility")).absolute()
    known = listed()[1][request.module.ENVIRONMENT]
    try:
        return Prepared(prepared(known, cache), known.variables, cache)
    except SystemExit as exc:
        skip_outside_ci(str(exc))


@pytest.fixture
def site(python: str, tmp_path: Path) -> Iterator[ProviderSite]:
    site = ProviderSite(tmp_path, python=python)
    yield site
    site.end_everything()
