"""astro-airflow-mcp, unchanged: the tools that it gives an assistant, called over its own protocol."""

import json
import subprocess

import pytest

from tests.clients.conftest import Served
from tests.web.filling import RUN_ID

pytestmark = pytest.mark.timeout(600)
CALLER = """
import asyncio, json, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

async def main(calls, environment):
    server = StdioTransport(sys.executable, ["-m", "astro_airflow_mcp"], env=environment)
    async with Client(server) as client:
        tools = [tool.name for tool in await client.list_tools()]
        answers = []
        for name, arguments in calls:
            answer = await client.call_tool(name, arguments, raise_on_error=False)
            answers.append([name, answer.is_error, "".join(getattr(part, "text", "") for part in answer.content)])
    print(json.dumps([tools, answers]))

asyncio.run(main(*json.load(sys.stdin)))
"""
RUN = {"dag_id": "report", "dag_run_id": RUN_ID}
FAILED = {"dag_id": "fails", "dag_run_id": RUN_ID}
CALLS = [
    ("list_dags", {}, "report"),
    ("get_dag_details", {"dag_id": "report"}, "ada"),
    ("get_dag_source", {"dag_id": "report"}, "extract"),
    ("get_dag_stats", {"dag_ids": ["report"]}, "report"),
    ("explore_dag", {"dag_id": "report"}, "extract"),
    ("pause_dag", {"dag_id": "daily"}, "daily"),
    ("unpause_dag", {"dag_id": "daily"}, "daily"),
    ("pause_dag", {"dag_id": "daily"}, "daily"),
    ("list_tasks", {"dag_id": "report"}, "sums.load"),
    ("get_task", {"dag_id": "report", "task_id": "extract"}, "extract"),
    ("list_dag_runs", {"dag_id": "report"}, RUN_ID),
    ("get_dag_run", RUN, "success"),
    ("get_task_instance", {**RUN, "task_id": "extract"}, "success"),
    ("get_task_logs", {**RUN, "task_id": "extract"}, "reading"),
    ("diagnose_dag_run", FAILED, "broken"),
    ("trigger_dag", {"dag_id": "report", "conf": {"n": 1}}, "report"),
    ("trigger_dag_and_wait", {"dag_id": "report", "conf": {"n": 1}, "timeout": 60}, "success"),
    ("clear_dag_run", {**RUN, "dry_run": True}, "extract"),
    ("clear_task_instances", {**RUN, "task_ids": ["extract"], "dry_run": True}, "extract"),
    ("list_assets", {}, "orders"),
    ("list_asset_events", {}, "orders"),
    ("list_import_errors", {}, "broken.py"),
    ("list_dag_warnings", {}, ""),
    ("list_connections", {}, ""),
    ("list_variables", {}, ""),
    ("list_pools", {}, "default_pool"),
    ("get_pool", {"pool_name": "default_pool"}, "128"),
    ("list_plugins", {}, ""),
    ("list_providers", {}, ""),
    ("get_airflow_version", {}, "3.3.2"),
    ("get_airflow_config", {}, "dags_folder"),
    ("get_system_health", {}, "healthy"),
]
"""Tools, their arguments, and a word of the answer."""


def test_every_tool_answers(served: Served, mcp_python: str):
    with served.http as http:
        http.post("/api/v2/variables", json={"key": "asked", "value": "told"}).raise_for_status()
        [follower] = served.get("/dags/follows/dagRuns", limit=1)["dag_runs"]
        doomed = http.post("/api/v2/dags/report/dagRuns", json={"logical_date": None}).raise_for_status().json()
    served.wait_for_run("report", doomed["dag_run_id"])
    calls = [
        *CALLS,
        ("get_variable", {"variable_key": "asked"}, "told"),
        ("get_upstream_asset_events", {"dag_id": "follows", "dag_run_id": follower["dag_run_id"]}, "orders"),
        ("delete_dag_run", {"dag_id": "report", "dag_run_id": doomed["dag_run_id"]}, ""),
    ]
    environment = {
        "AIRFLOW_API_URL": served.url, "AIRFLOW_AUTH_TOKEN": served.token, "AF_TELEMETRY_DISABLED": "1",
        "HOME": str(served.site.root), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    done = subprocess.run(
        [mcp_python, "-c", CALLER], input=json.dumps([[call[:2] for call in calls], environment]), text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    tools, answers = json.loads(done.stdout.splitlines()[-1])
    wrong = [one for one, (_, _, word) in zip(answers, calls, strict=True) if one[1] or word not in one[2]]
    assert wrong == []
    assert set(tools) - {call[0] for call in calls} == set()
