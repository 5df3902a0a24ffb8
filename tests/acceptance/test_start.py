"""The start of `asynsched up`: its messages and effects, and failures to start."""

import gzip
import shlex
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.narrow_executor import RETURNED
from tests.support.up import Site

COLD = True
DATABASES = ("sqlite",)
on_both = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], scope="module")
"""For tests in which the database matters."""

ONCE = """
    from asynsched import DAG, task

    with DAG("once", schedule="@once"):

        @task
        def one():
            return 1

        one()
"""

COUNTS_OBJECTS = """
import gc
import sys

from asynsched.cli import run_command

try:
    run_command()
finally:
    print(gc.get_freeze_count(), len(gc.get_objects()), file=sys.stderr)
"""

TELLS_ITS_ENVIRONMENT = """
    import os
    from pathlib import Path

    from asynsched import DAG, task

    with DAG("tell", schedule="@once"):

        @task
        def tell():
            found = [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC") if name in os.environ]
            (Path(__file__).parents[1] / "environment").write_text(str(found))

        tell()
"""


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Receive the data of an OpenTelemetry exporter; yields the endpoint, and the received data."""
    heard: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()
        thread.join()


@pytest.fixture
def site(new_site) -> Site:
    return new_site()


def test_up_says_what_it_watches_and_keeps_its_state_private(site):
    site.write("once.py", ONCE)
    with collector() as (endpoint, heard):
        site.env |= {"ASYNSCHED_MONITOR__METRICS": "opentelemetry", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        said = site.up_until_idle()
    assert b"airflow.ti.finish" in b"".join(heard), "the counts are sent before the end"
    site.env.clear()
    told = said.stdout + said.stderr
    assert [word for word in (str(site.dags), str(site.home), "landlock", "local") if word not in told] == []
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700
    [run] = site.runs("once")
    assert (run["state"], run["run_type"]) == ("success", "scheduled")
    site.up_until_idle()
    assert len(site.runs("once")) == 1, "a DAG that is to run once runs once"


@on_both
def test_a_home_has_one_scheduler_and_live_and_systemd_see_its_health(site):
    assert site.run("check", "--live", code=1).stderr != ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, tempfile.TemporaryDirectory() as folder:
        manager.bind(f"{folder}/notify")
        manager.settimeout(30)
        site.env |= {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "120000000"}
        site.env |= {"ASYNSCHED_MONITOR__LISTEN": f"unix:{folder}/http", "ASYNSCHED_MONITOR__METRICS": "prometheus"}
        site.write("tell.py", TELLS_ITS_ENVIRONMENT)
        with site.up() as up:
            assert manager.recv(1000).decode().splitlines()[0] == "READY=1"
            assert manager.recv(1000) == b"WATCHDOG=1"
            live = site.json("check", "--live")
            assert live["live"]
            assert live["health"]["status"] == "healthy"
            loops = {loop["name"]: loop for loop in live["health"]["loops"]}
            assert {"watcher", "parse dispatcher", "dagrun creator", "evaluator", "loop beat", "lease"} <= set(loops)
            assert [name for name, loop in loops.items() if loop["age_seconds"] < 0] == []
            # The one that answers is in the middle of a step.
            assert live["health"]["oldest_step"] is not None
            shown = site.run("check", "--live").stdout
            assert "oldest unfinished step: " in shown
            assert "evaluator" in shown
            told = site.root / "environment"
            site.until(lambda: told.exists() and told.read_text(), "a task has run")
            assert told.read_text() == "[]", "the scheduler's variables are not for tasks"
            with httpx.Client(base_url="http://asynsched", transport=httpx.HTTPTransport(uds=f"{folder}/http")) as web:
                assert web.get("/health", timeout=30).json()["scheduler"]["status"] == "healthy"
                finished = 'airflow_ti_finish_total{dag_id="tell",state="success",task_id="tell"} 1.0'
                site.until(lambda: finished in web.get("/metrics", timeout=30).text, "the task is counted")
                figures = web.get("/metrics", timeout=30).text.splitlines()
                assert {"airflow_dagbag_size 1.0", 'airflow_pool_open_slots{pool_name="default_pool"} 128.0'} < set(
                    figures
                )
            up.terminate()
            assert up.wait() == 0, up.log
            last = b""
            while not last.startswith(b"STOPPING=1"):
                last = manager.recv(1000)
    site.env.clear()
    with site.up() as up:
        refused = site.run("up", str(site.dags), code=1)
        assert str(up.process.pid) in refused.stderr
        assert str(site.home) in refused.stderr
        assert "Traceback" not in refused.stderr
    site.run("check", "--live", code=1)


def test_an_empty_folder_is_served_and_a_missing_one_is_refused(site):
    site.up_until_idle()
    site.dags.rmdir()
    refused = site.run("up", str(site.dags), code=1)
    assert str(site.dags) in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ASYNSCHED_PARALLELISM", "many", ("ASYNSCHED_PARALLELISM",)),
        ("ASYNSCHED_PARSE__TIMEOUT", "-1", ("ASYNSCHED_PARSE__TIMEOUT",)),
        ("ASYNSCHED_DATABASE", "oracle://somewhere/db", ("oracle", "sqlite", "variable ASYNSCHED_DATABASE")),
        ("ASYNSCHED_DATABASE", "postgresql://user:topsecret@127.0.0.1:1/none", ("127.0.0.1",)),
        ("ASYNSCHED_XCOM_BACKEND", "json.JSONDecoder", ("subclass of BaseXCom", "variable ASYNSCHED_XCOM_BACKEND")),
        ("ASYNSCHED_SECRETS__BACKEND", "no.such.Class", ("'no.such.Class' cannot be", "ASYNSCHED_SECRETS__BACKEND")),
        ("ASYNSCHED_STATE_STORE_BACKEND", "ends.Now", ("state_store_backend: ", "variable ASYNSCHED_STATE_STORE_BAC")),
        ("ASYNSCHED_LOG__STORE", "nosuch://b", ("log.store", "is set by environment variable ASYNSCHED_LOG__STORE")),
        ("ASYNSCHED_FERNET_KEY", "abc", ("fernet_key: key 1 is not", "(set by environment variable ASYNSCHED_FERNET")),
        ("ASYNSCHED_AIRFLOW_CFG", "gone.cfg", ("there is no file", "(set by environment variable ASYNSCHED_AIRFLOW_")),
        ("ASYNSCHED_EXECUTOR", "no.such:Executor", ("no.such", "(set by environment variable ASYNSCHED_EXECUTOR)")),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(site, name, value, words):
    site.env[name] = value
    site.write("ends.py", "import os; os._exit(3)")
    refused = site.run("up", str(site.dags), code=1)
    assert len(refused.stderr.splitlines()) == 1
    assert [word for word in words if word not in refused.stderr] == []
    assert "topsecret" not in refused.stderr
    assert "Traceback" not in refused.stderr
    site.assert_nothing_left()


def test_a_default_role_that_only_access_control_can_know_is_told(site):
    site.env["ASYNSCHED_WEB__DEFAULT_ROLE"] = "Viewer"
    up = site.up_until_idle()
    assert "web.default_role: 'Viewer' is none of viewer, operator, admin" in up.stderr
    assert "(set by environment variable ASYNSCHED_WEB__DEFAULT_ROLE)" in up.stderr


@on_both
def test_a_database_of_a_newer_version_is_left_alone(site, backend, request):
    site.run("db", "upgrade")
    to_the_future = (
        "UPDATE alembic_version SET version_num = '9999_from_the_future'",
        "UPDATE schema_compatibility SET oldest_revision = '9999_from_the_future'",
    )
    if backend == "sqlite":
        with closing(sqlite3.connect(site.home / "asynsched.db", isolation_level=None)) as connection:
            for statement in to_the_future:
                connection.execute(statement)
    else:
        name = urlsplit(site.database).path.strip("/")
        request.getfixturevalue("postgres_server").execute(*to_the_future, database=name)
    for command in (("up", str(site.dags)), ("dags", "list")):
        refused = site.run(*command, code=1)
        assert "9999_from_the_future" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_search_for_garbage_leaves_out_what_up_has_imported(site):
    """It would stop the event loop for as long as it takes to look at all that."""
    command = [sys.executable, "-c", COUNTS_OBJECTS, "up", str(site.dags), "--until-idle"]
    ended = subprocess.run(command, env=site.environment, capture_output=True, text=True, check=True)
    n_left_out, n_searched = map(int, ended.stderr.splitlines()[-1].split())
    assert n_searched < n_left_out / 4


def test_up_fails_on_failed_runs_and_broken_files_only_if_it_ends_idle(site):
    site.write("once.py", ONCE.replace("return 1", "raise ValueError('no luck')"))
    refused = site.run("up", str(site.dags), "--fail-on", "failed", code=2)
    assert "--fail-on needs --until-idle" in refused.stderr
    refused = site.run("up", str(site.dags), "--until-idle", "--fail-on", "failed,warned", code=2)
    assert "'warned' is not one of its values: write errors, failed, or errors,failed" in refused.stderr
    assert not site.home.exists()
    site.up_until_idle("--fail-on", "errors")
    site.up_until_idle("--fail-on", "errors,failed")
    site.write("once.py", ONCE.replace('"once"', '"twice"').replace("return 1", "raise ValueError('no luck')"))
    ended = site.run("up", str(site.dags), "--until-idle", "--fail-on", "failed", code=1)
    assert ended.stderr.endswith("Error: 1 run has failed (--fail-on failed).\n")
    lines = ended.stderr.splitlines()
    for event, shown in (("try.failed", "ValueError: no luck"), ("run.ended", "failed: ValueError: no luck")):
        [number] = [number for number, line in enumerate(lines) if event in line]
        assert "one: ValueError: no luck" in lines[number] or "reason='ValueError: no luck'" in lines[number]
        _, *command = shlex.split(lines[number + 1])
        assert shown in site.run(*command).stdout, "the command below it shows why"


def test_up_ends_after_so_many_runs_or_so_much_time(site):
    site.write("once.py", ONCE)
    site.run("up", str(site.dags), "--num-runs", "1")
    assert site.runs("once")[0]["state"] == "success"
    site.run("up", str(site.dags), "--for", "0.5")
    site.assert_nothing_left()


def test_the_sequential_executor_runs_tasks_one_at_a_time_in_order(site):
    site.env["MARKS"] = str(site.root / "marks")
    site.write(
        "order.py",
        """
        import os
        from pathlib import Path
        from asynsched import DAG, task

        with DAG("order", schedule="@once"):

            @task
            def mark(name):
                with Path(os.environ["MARKS"]).open("a") as marks:
                    marks.write(f"begin {name}\\n")
                    marks.write(f"end {name}\\n")

            for weight in range(5):
                mark.override(task_id=f"mark_{weight}", priority_weight=weight + 1)(weight)
        """,
    )
    site.up_until_idle("--executor", "sequential")
    lines = (site.root / "marks").read_text().splitlines()
    assert lines == [line for n in (4, 3, 2, 1, 0) for line in (f"begin {n}", f"end {n}")]


def test_json_logs_are_one_object_a_line(site):
    import json

    site.write("once.py", ONCE)
    ended = site.up_until_idle("--log-format", "json")
    events = [json.loads(line)["event"] for line in ended.stderr.splitlines() if line.startswith("{")]
    assert {"scheduler.started", "scheduler.stopped"} <= set(events)


@on_both
def test_a_home_inside_the_folder_is_never_watched(site, backend):
    site.home_name = "dags/.asynsched"
    site.write("once.py", ONCE)
    site.up_until_idle()
    [run] = site.runs("once")
    assert run["state"] == "success"
    assert (site.home / "asynsched.db").exists() == (backend == "sqlite")
    assert [dag["file"] for dag in site.json("dags", "list")] == ["once.py"]
    assert site.json("dags", "errors") == []


def test_an_executor_of_somebody_else_runs_the_tasks(site):
    site.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    site.write("once.py", ONCE)
    site.up_until_idle("--executor", "tests.support.narrow_executor:NarrowExecutor")
    [run] = site.runs("once")
    assert run["state"] == "success"
    [task] = site.json("tasks", "list", "once", run["run_id"])
    [returned] = site.json("tasks", "xcom", "once", run["run_id"], task["task_id"])
    assert returned["value"] == RETURNED
