"""Apache Airflow beside ours: in a virtual environment of its own, on a PostgreSQL of its own, the same shapes.

It is run as `airflow standalone` runs it: API server, scheduler, DAG processor and triggerer, with LocalExecutor. All
settings are its defaults but the paths and ports, and that DAGs are not paused when they are new; `tuned` looks for
work every 0.05 s instead of every second, and for new and changed files at once.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.systems import Client, System
from tests.support.waiting import until

REQUIREMENTS = ("apache-airflow==3.3.2", "apache-airflow-providers-postgres", "asyncpg", "psycopg2-binary")
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
TUNED = {
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.05",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "0",
}
LOOK_SECONDS = 0.1
START_SECONDS = 180


def install(folder: Path) -> Path:
    """Make a virtual environment with Airflow, unless it is there; return its Python."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {REQUIREMENTS[0]} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        (folder / "installed").touch()
    return python


class Airflow(System):
    """An installation of Airflow with a folder, a home and a database of its own."""

    sdk = "airflow.sdk"
    n_runs = 4  # some take a minute each
    n_saves = 4

    def __init__(self, root: Path, python: Path, database_url: str, *, is_tuned: bool) -> None:
        self.name = "Airflow, tuned" if is_tuned else "Airflow"
        self.root = root
        self.dags = root / "dags"
        self.dags.mkdir(parents=True)
        self.marks = root / "marks"
        self._python = python
        self._database_url = database_url
        self._is_tuned = is_tuned
        self._started: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def serving(self, parallelism: int | None = None) -> "Iterator[AirflowClient]":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = self._environment(port)
        if parallelism is not None:
            env["AIRFLOW__CORE__PARALLELISM"] = str(parallelism)
        airflow = str(self._python.with_name("airflow"))
        log_path = self.root / "airflow.log"
        with log_path.open("ab") as log:
            subprocess.run([airflow, "db", "migrate"], env=env, stdout=log, stderr=log, check=True)
            start = {"env": env, "stdout": log, "stderr": log, "stdin": subprocess.DEVNULL, "start_new_session": True}
            self._started = [subprocess.Popen([airflow, part], **start) for part in PARTS]
        try:
            client = AirflowClient(f"http://127.0.0.1:{port}", log_path)
            until(client.is_healthy, "Airflow is healthy", seconds=START_SECONDS, describe=client.story)
            yield client
        finally:
            self._stop()

    def processes(self) -> list[psutil.Process]:
        found = []
        for started in self._started:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(started.pid)
                found += [process, *process.children(recursive=True)]
        return found

    def _stop(self) -> None:
        left = self.processes()
        for started in self._started:
            started.terminate()
        _, left = psutil.wait_procs(left, timeout=20)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._started:
            started.wait()

    def _environment(self, port: int) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ASYNSCHED"))}
        plain = self._database_url.removeprefix("postgresql")
        return inherited | (TUNED if self._is_tuned else {}) | {
            "PATH": f"{self._python.parent}:{os.environ['PATH']}",
            "MARKS": str(self.marks),
            "AIRFLOW_HOME": str(self.root / "home"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2{plain}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg{plain}",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(16),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "0",
        }  # fmt: skip


class AirflowClient(Client):
    """Its REST interface."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._token = ""

    def is_healthy(self) -> bool:
        try:
            health = self._ask("GET", "/api/v2/monitor/health")
            self._token = self._token or self._ask("GET", "/auth/token")["access_token"]
        except (OSError, KeyError):
            return False
        parts = ("metadatabase", "scheduler", "dag_processor")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def trigger(self, dag_id: str) -> tuple[Any, int]:
        asked_at = time.time_ns()
        run = self._ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})
        return (dag_id, run["dag_run_id"]), asked_at

    def has_ended(self, key: Any) -> bool:
        time.sleep(LOOK_SECONDS)  # so that polling hardly disturbs the measurement
        state = self._ask("GET", f"/api/v2/dags/{key[0]}/dagRuns/{key[1]}")["state"]
        assert state != "failed", self.story()
        return state == "success"

    def dag_ids(self) -> set[str]:
        found: set[str] = set()
        while True:
            page = self._ask("GET", f"/api/v2/dags?limit=100&offset={len(found)}")
            found |= {dag["dag_id"] for dag in page["dags"]}
            if len(found) >= page["total_entries"] or not page["dags"]:
                return found

    def version(self, dag_id: str) -> Any:
        try:
            return self._ask("GET", f"/api/v2/dags/{dag_id}").get("last_parsed_time")
        except urllib.error.HTTPError as exc:
            if exc.code != HTTPStatus.NOT_FOUND:
                raise
            return None

    def story(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
