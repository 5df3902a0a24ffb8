"""Every example runs unchanged, and acts as its header says."""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.up import Site
from tests.support.waiting import eventually, until

EXAMPLES = Path(__file__).parents[2] / "examples"
DAGS = EXAMPLES / "dags"
PRINTS = {
    "sales_etl": ("report", 1, "4 countries, 570.00 in all"),
    "weekday_report": ("write_report", 1, "report for 20"),
    "branching": ("check_by_hand", 1, "large order, checked by hand"),
    "retries": ("call_service", 2, "the service has answered"),
    "bash_pipeline": ("say", 1, "the sum of 1 to 100 is 5050"),
    "fan_out": ("gather", 1, "north 30, south 60, west 90: 180 in all"),
    "deferred_job": ("run_job", 1, "the job has ended: 42 rows"),
    "mapped_orders": ("gather", 1, "3 files, 60 orders"),
    "report_orders": ("report", 1, "3 orders are in orders.csv"),
}
"""The log of a task's try, for each DAG with a schedule."""
ALONE = [dag_id for dag_id in PRINTS if (DAGS / f"{dag_id}.py").exists()]
"""Those whose file runs them by itself."""
SALES = [("AT", 64.25), ("DE", 106.4), ("GB", 140.4), ("US", 258.95)]


def sales(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT country, amount FROM sales_by_country ORDER BY country").fetchall()


@pytest.fixture(scope="module")
def served(tmp_path_factory, warm):
    """A site on which `asynsched up examples/dags --until-idle` has ended."""
    site = Site(tmp_path_factory.mktemp("examples"))
    site.env["TMPDIR"] = str(site.root)
    site.up_until_idle(dags=DAGS)
    yield site
    site.end_everything()


def test_every_example_is_known_and_none_has_an_error(served):
    listed = {dag["dag_id"]: dag for dag in served.json("dags", "list")}
    assert set(listed) == {*PRINTS, "export_orders", "wait_for_file"}
    assert {Path(dag["file"]).name for dag in listed.values()} == {path.name for path in DAGS.glob("*.py")}
    assert served.json("dags", "errors") == []


@pytest.mark.parametrize("dag_id", PRINTS)
def test_an_example_succeeds_and_prints_what_its_header_says(served, dag_id):
    (run,) = served.runs(dag_id)
    assert run["state"] == "success"
    task_id, try_number, text = PRINTS[dag_id]
    log = served.run("tasks", "logs", dag_id, run["run_id"], task_id, "--try", str(try_number)).stdout
    assert text in log


def test_the_etl_has_loaded_the_csv_files(served):
    assert sales(served.root / "asynsched-examples" / "sales.db") == SALES


def test_the_branch_that_is_not_taken_is_skipped_and_the_join_runs(served):
    (run,) = served.runs("branching")
    states = served.task_states("branching", run["run_id"])
    assert states == {"how_large": "success", "check_by_hand": "success", "accept": "skipped", "ship": "success"}


def test_the_sensor_waits_until_its_file_is_there(served):
    incoming = served.root / "incoming.txt"
    # The folder that is served here is another one, which has this file alone.
    (served.dags / "wait_for_file.py").write_text((DAGS / "wait_for_file.py").read_text())
    with served.up("--parallelism", "4"):
        served.run("dags", "trigger", "wait_for_file", "--run-id", "r", "--conf", f'{{"path": "{incoming}"}}')
        served.until(
            lambda: served.task_states("wait_for_file", "r").get("wait") == "up_for_reschedule", "the sensor has looked"
        )
        incoming.write_text("hello\n")
        served.until(lambda: served.json("runs", "show", "wait_for_file", "r")["state"] == "success", "the run ends")
    assert "has 6 bytes" in served.run("tasks", "logs", "wait_for_file", "r", "measure").stdout


@pytest.mark.parametrize("dag_id", ALONE)
def test_an_example_runs_by_itself_without_a_scheduler(dag_id, tmp_path):
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, str(DAGS / f"{dag_id}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert PRINTS[dag_id][2] in done.stdout + done.stderr


SLOW_BRANCHING = """
from asynsched import DAG, task

with DAG("branching"):

    @task
    def waits():
        import pathlib, time
        pathlib.Path("waits").touch()
        while True:
            time.sleep(0.01)

    waits()
"""
"""A DAG that the service's request for an order waits for without an end."""


@contextmanager
def service(folder, program=EXAMPLES / "embed_starlette.py"):
    """Serve examples/embed_starlette.py in a process of its own, and yield its address; then stop it by Ctrl-C."""
    log = folder / "service.log"
    env = os.environ | {"PORT": "0", "TMPDIR": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(program)], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT
        )

    def listening():
        assert process.poll() is None, log.read_text()
        return re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

    try:
        yield until(listening, "the service listens", describe=log.read_text).group()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def test_a_service_with_a_scheduler_inside_answers_with_the_end_of_a_run(tmp_path):
    with service(tmp_path) as address, httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/health").json() == {"serving": True}
        assert client.post("/orders").status_code == 400
        answer = client.post("/orders", params={"amount": 50})
        assert answer.json() == {
            "state": "success",
            "tasks": {"how_large": "success", "check_by_hand": "skipped", "accept": "success", "ship": "success"},
        }
        assert client.post("/orders", params={"amount": -1}).status_code == 422


@pytest.mark.parametrize("program", ["embed_fastapi.py", "embed_litestar.py"])
def test_a_service_answers_with_the_key_of_a_run_and_then_with_its_state(tmp_path, program):
    with service(tmp_path, EXAMPLES / program) as address, httpx.Client(base_url=address, timeout=60) as client:
        answer = client.post("/orders", params={"amount": 50})
        assert answer.status_code == 202
        order = f"/orders/{answer.json()['order']}"

        def state():
            shown = client.get(order).json()
            return shown if shown["state"] == "success" else None

        assert until(state, "the run has ended")["tasks"]["check_by_hand"] == "skipped"
        assert client.post("/orders", params={"amount": -1}).status_code == 422
        assert client.get("/orders/none").status_code == 404
        if program == "embed_fastapi.py":
            assert "It ended as success" in client.get(f"{order}/why").json()["answer"]
            assert client.get("/asynsched/api/asynsched/v1/dags").status_code == 401


def test_a_program_runs_a_dag_and_looks_at_it(tmp_path):
    command = [sys.executable, str(EXAMPLES / "embed_anyio.py")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    header = (EXAMPLES / "embed_anyio.py").read_text().partition("Prints:")[2].partition('"""')[0]
    promised = [line.strip() for line in header.strip().splitlines() if "log:" not in line]
    printed = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in printed if line in promised] == promised
    assert any(line.startswith("log:") and line.endswith("shipped") for line in printed)


async def test_a_client_that_goes_away_cancels_its_run(tmp_path):
    site = Site(tmp_path, home_name=".asynsched")
    site.write("branching.py", SLOW_BRANCHING)
    program = shutil.copy(EXAMPLES / "embed_starlette.py", tmp_path)
    with service(tmp_path, program) as address:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            request = asyncio.create_task(client.post("/orders", params={"amount": 50}))
            await eventually((tmp_path / "waits").exists, "the task runs")
            request.cancel()
            await asyncio.wait([request])
        await eventually(lambda: site.runs("branching")[0]["state"] == "failed", "the run is cancelled")
    assert site.runs("branching")[0]["reason"] == "the program cancelled the run"
