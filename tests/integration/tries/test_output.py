"""The input of a try, and the content of its log."""

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.integration.tries.bench import Bench, replies, value
from tests.integration.tries.outcome_dag import DAG_FILE


@pytest.fixture
def code(bench: Bench):
    return bench.code(DAG_FILE)


async def test_a_value_and_all_output_come_back(bench: Bench, code):
    async with bench.running() as executor:
        ended = await bench.run(executor, launch := bench.launch(code, "returns"))
    started = bench.started[launch.token]
    assert value(ended) == {"rows": [1, 2.5, None, "é"]}
    assert started.started_at == ended.started_at <= ended.ended_at
    lines = bench.said("returns").splitlines()
    assert lines[:3] == ["to stdout", "to stderr", "{dag_file.py:20} WARNING - from logging"]
    stamps = [datetime.fromisoformat(line[1:].split("]")[0]) for line in bench.log("returns").splitlines()]
    assert started.started_at - timedelta(milliseconds=1) <= stamps[0] <= stamps[1] <= stamps[2]
    log = next((bench.home / "logs").glob("**/attempt=1.log"))
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_a_try_is_told_what_it_may_know_and_nothing_of_the_scheduler(bench: Bench, code, monkeypatch):
    monkeypatch.setenv("ASYNSCHED_DATABASE", "postgresql://secret@host/db")
    monkeypatch.setenv("GIVEN", "yes")
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "environment", try_number=2, conf={"n": 1}))
    assert value(ended) == {
        "secrets": [], "given": "yes", "cwd": str(Path.cwd()), "stdin": "", "leads": True, "try": 2, "conf": {"n": 1},
        "file": str(bench.dags / "dag_file.py"),
    }  # fmt: skip


async def test_python_code_finds_its_task_in_the_environment_with_usable_dates(bench: Bench, code, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "of whoever has started all this")
    start = datetime.fromisoformat("2024-05-01T12:00:00+00:00")
    launch = bench.launch(code, "told")
    run = msgspec.structs.replace(
        launch.run, run_after=start, logical_date=start, data_interval_start=start, data_interval_end=start
    )
    async with bench.running() as executor:
        ended = await bench.run(executor, msgspec.structs.replace(launch, run=run))
    assert value(ended) == {
        "env": {
            "AIRFLOW_CTX_DAG_ID": "d",
            "AIRFLOW_CTX_TASK_ID": "told",
            "AIRFLOW_CTX_DAG_RUN_ID": "r",
            "AIRFLOW_CTX_TRY_NUMBER": "1",
            "AIRFLOW_CTX_DAG_OWNER": "airflow",
            "AIRFLOW_CTX_LOGICAL_DATE": "2024-05-01T12:00:00+00:00",
        },
        "at_import": {"AIRFLOW_CTX_DAG_ID": "of whoever has started all this"},
        "later": "30 Apr 14:00",
        "run": "2024-05-01T13:00:00+00:00",
    }


async def test_secrets_of_the_environment_are_masked_though_nobody_asked_for_them(bench: Bench, code, monkeypatch):
    monkeypatch.setenv("AIRFLOW_VAR_API_TOKEN", "s3cr3t-token")
    monkeypatch.setenv("AIRFLOW_VAR_COLOUR", "green")
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgres://me:hunter%2F22@db.example/shop")
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", "no-connection-at-all")
    async with bench.running() as executor:
        await bench.run(executor, bench.launch(code, "prints_environment"))
    shown = set(bench.said("prints_environment").splitlines())
    assert shown == {
        "AIRFLOW_VAR_API_TOKEN=***", "AIRFLOW_VAR_COLOUR=green", "AIRFLOW_CONN_DB=postgres://me:***@db.example/shop",
        "AIRFLOW_CONN_BROKEN=***",
    }  # fmt: skip


async def test_secrets_that_a_try_asked_for_are_masked_in_its_log_and_its_reason(bench: Bench, code):
    variables = {"api_token": "s3cr3t-token", "colour": "green"}
    bench.answers["variable_get"] = lambda request: replies(variables[request.arguments["key"]])(request)
    bench.answers["connection_get"] = replies({"conn_id": "db", "conn_type": "x", "password": "hunter22"})
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "secrets"))
    assert ended.reason == "ValueError: cannot log in with ***"
    assert bench.said("secrets").startswith("half of *** green ***\n")
    assert not [secret for secret in ("s3cr3t", "hunter22") if secret in bench.log("secrets")]


async def test_a_log_ends_at_its_limit_and_says_so(bench: Bench, code):
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "chatters"))
    assert value(ended) == "said"
    assert len(bench.log("chatters")) < bench.settings.log.task_bytes + 200
    assert "log.task_bytes" in bench.log("chatters").splitlines()[-1]
