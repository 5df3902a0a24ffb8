"""airflowctl, unchanged: each of its operations, and its commands."""

import contextlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from airflowctl.api import operations
from airflowctl.api.client import Client
from airflowctl.api.datamodels import generated as models

from tests.clients.conftest import NAME, PASSWORD, Served
from tests.web.filling import RUN_ID

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]
FAILS = (httpx.HTTPStatusError, httpx.ResponseNotRead)
"""How it takes a refusal: it raises an answer of 4xx, and fails to read one of 5xx."""
LATER = "2100-01-01T00:00:00Z"
called: set[str] = set()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    """A client whose operations are noted."""
    with pytest.MonkeyPatch.context() as patch, Client(base_url=served.url, token=served.token) as client:
        for name in operations_of():
            class_name, method = name.split(".")
            patch.setattr(getattr(operations, class_name), method, noting(name))
        yield client


def noting(name):
    class_name, method = name.split(".")
    original = getattr(getattr(operations, class_name), method)

    def noted(self, *args, **options):
        called.add(name)
        return original(self, *args, **options)

    return noted


def operations_of() -> list[str]:
    """Return every operation, as class and method."""
    return [
        f"{class_name}.{name}"
        for class_name, one in inspect.getmembers(operations, inspect.isclass)
        if class_name.endswith("Operations") and class_name not in ("BaseOperations", "LoginOperations")
        for name, _ in inspect.getmembers(one, inspect.isfunction)
        if not name.startswith("_") and name != "execute_list"
    ]


def test_pools_variables_and_connections(client):
    pools = client.pools
    assert pools.create(models.PoolBody(name="ctl", slots=1)).slots == 1
    assert pools.update(models.PoolPatchBody(pool="ctl", slots=2)).slots == 2
    assert (pools.get("ctl").slots, len(pools.list().pools)) == (2, 2)
    actions = [{"action": "delete", "entities": ["ctl"]}]
    assert pools.bulk(models.BulkBodyPoolBody.model_validate({"actions": actions})).delete.success == ["ctl"]
    pools.create(models.PoolBody(name="ctl", slots=1))
    pools.delete("ctl")

    variables = client.variables
    variables.create(models.VariableBody(key="ctl", value="1"))
    assert variables.update(models.VariableBody(key="ctl", value="2")).value == "2"
    assert variables.get("ctl").key in {one.key for one in variables.list().variables}
    actions = [{"action": "create", "entities": [{"key": "more", "value": "3"}]}]
    assert variables.bulk(models.BulkBodyVariableBody.model_validate({"actions": actions})).create.success == ["more"]
    for key in ("ctl", "more"):
        variables.delete(key)

    connections, body = client.connections, models.ConnectionBody(connection_id="ctl", conn_type="http", host="here")
    connections.create(body)
    assert connections.update(body.model_copy(update={"port": 80})).port == 80
    assert connections.get("ctl").connection_id in {one.connection_id for one in connections.list().connections}
    for refused in (connections.create_defaults, lambda: connections.test(body)):
        with pytest.raises(FAILS):
            refused()
    actions = [{"action": "delete", "entities": ["ctl"]}]
    connections.bulk(models.BulkBodyConnectionBody.model_validate({"actions": actions}))
    connections.create(body)
    connections.delete("ctl")


def test_assets_and_backfills(client, served):
    assets = client.assets
    ids = {asset.name: str(asset.id) for asset in assets.list().assets}
    assert assets.get(ids["orders"]).name == "orders"
    [alias] = assets.list_by_alias().asset_aliases
    assert assets.get_by_alias(str(alias.id)).name == "anything"
    run = assets.materialize(ids["orders"])
    assert served.wait_for_run("report", run.dag_run_id) == "success"
    # `waits` has `orders` now, and waits for `never` alone, whose event starts it: look at those of `orders`.
    assert "waits" in {event.dag_id for event in assets.get_queued_events(ids["orders"]).queued_events}
    assert assets.get_dag_queued_events("waits", before=LATER).total_entries == 1
    assert assets.get_dag_queued_event("waits", ids["orders"]).dag_id == "waits"
    # Their paths are none of Airflow's: one ends with a slash, and the client follows no redirection.
    for unknown in (
        lambda: assets.delete_queued_events(ids["orders"]),
        lambda: assets.delete_queued_event("waits", ids["orders"]),
        lambda: assets.delete_dag_queued_events("waits", before=LATER),
    ):
        with pytest.raises(FAILS, match=r"Not Found|Redirect"):
            unknown()
    assets.create_event(models.CreateAssetEventsBody(asset_id=int(ids["never"])))

    backfills = client.backfills
    span = models.BackfillPostBody(
        dag_id="daily", from_date="2026-02-01T00:00:00Z", to_date="2026-02-02T00:00:00Z", max_active_runs=1
    )
    with contextlib.suppress(Exception):  # its model of the answer is that of a backfill, with Airflow as well
        backfills.create_dry_run(span)
    made = backfills.create(span)
    identity = str(made.id)
    for post in (backfills.pause, backfills.unpause, backfills.cancel):  # Airflow's method is PUT
        with pytest.raises(FAILS, match="Method Not Allowed"):
            post(identity)
    with served.http as http:
        http.put(f"/api/v2/backfills/{identity}/cancel").raise_for_status()
    assert backfills.get(identity).completed_at is not None
    assert made.id in {one.id for one in backfills.list("daily").backfills}


def test_dags_runs_and_xcoms(client, served):
    dags = client.dags
    assert "report" in {dag.dag_id for dag in dags.list().dags}
    assert dags.get("report").owners == ["ada"]
    assert dags.get_details("report").dag_id == "report"
    assert dags.get_tags().tags == ["numbers", "sales"]
    assert dags.update("daily", models.DAGPatchBody(is_paused=True)).is_paused
    assert dags.get_version("report", 1).version_number == dags.list_version("report").dag_versions[0].version_number
    [error] = dags.list_import_errors().import_errors
    assert dags.get_import_error(str(error.import_error_id)).filename == "broken.py"
    assert dags.get_stats(["report"]).dags[0].dag_id == "report"
    assert dags.list_warning().dag_warnings == []
    with pytest.raises(FAILS):
        dags.delete("daily")
    run = dags.trigger("report", models.TriggerDAGRunPostBody(logical_date=None, dag_run_id="by-ctl"))
    assert served.wait_for_run("report", run.dag_run_id) == "success"
    assert client.dag_runs.get("report", "by-ctl").state == "success"
    assert client.dag_runs.list(state="success", dag_id="report", limit=5).dag_runs

    xcoms, of_task = client.xcom, ("report", "by-ctl", "extract")
    xcoms.add(*of_task, "own", "[1]")
    xcoms.edit(*of_task, "own", "[2]")
    assert "own" in {one.key for one in xcoms.list(*of_task).xcom_entries}
    assert xcoms.get(*of_task, "own").key == "own"
    xcoms.delete(*of_task, "own")


def test_what_is_installed_and_configured(client):
    assert client.version.get().version == "3.3.2"
    assert {section.name for section in client.configs.list().sections} >= {"core", "asynsched"}
    assert client.configs.get("core", "parallelism").sections[0].options[0].value == "32"
    assert client.jobs.list(is_alive=True).jobs[0].job_type == "SchedulerJob"
    assert client.providers.list().providers == []
    assert client.plugins.list().plugins == []
    assert client.plugins.list_import_errors().import_errors == []


def test_every_operation_was_tried():
    assert set(operations_of()) - called == set()


def test_its_commands_sign_in_and_work(served, tmp_path):
    environment = served.site.environment | {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CLI_DEBUG_MODE": "true"}
    pools = [{"name": "filed", "slots": 4, "description": "", "include_deferred": False}]
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    for words, told in [
        (("auth", "login", "--api-url", served.url, "--username", NAME, "--password", PASSWORD), "successful"),
        (("version", "--remote"), "3.3.2"),
        (("pools", "import", "pools.json"), "filed"),
        (("pools", "list"), "filed"),
        (("dags", "pause", "daily"), "daily"),
        (("dagrun", "get", "report", RUN_ID), RUN_ID),
        (("variables", "list"), ""),
    ]:
        done = subprocess.run(
            [sys.executable, "-m", "airflowctl", *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done)
        assert told in done.stdout, (words, done)
