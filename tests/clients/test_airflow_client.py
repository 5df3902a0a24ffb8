"""apache-airflow-client, unchanged, makes its every call: those that are served, and those that are refused."""

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources

import airflow_client.client as airflow
import httpx
import pytest
from airflow_client.client import models

from asynsched.client.operation import IN_PATH
from asynsched.web.airflow_api import AIRFLOW_API
from asynsched.web.airflow_api.refusals import REFUSALS
from tests.clients.conftest import NAME, Served
from tests.web.filling import RUN_ID

pytestmark = pytest.mark.timeout(300)
PREFIX = "/api/v2"
ARGUMENT = re.compile(r"{[^}]*}")
called: set[tuple[str, str]] = set()
"""The methods and paths that the tests of this module have called."""


class Recording(airflow.ApiClient):
    """Notes what is called."""

    def param_serialize(self, method, resource_path, *args, **options):
        called.add((method, plain(resource_path)))
        return super().param_serialize(method, resource_path, *args, **options)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[airflow.ApiClient]:
    with Recording(airflow.Configuration(host=served.url, access_token=served.token)) as client:
        yield client


def plain(path: str) -> str:
    """Return a path with its arguments as `{}`."""
    return ARGUMENT.sub("{}", path)


def calls_of_client() -> set[tuple[str, str]]:
    """Return every method and path that the client can call, read from its code."""
    form = re.compile(r"method='(\w+)',\s+resource_path='([^']+)'")
    texts = [
        file.read_text() for file in resources.files("airflow_client.client.api").iterdir() if file.name[-3:] == ".py"
    ]
    return {(method, plain(path)) for text in texts for method, path in form.findall(text)}


def served_paths() -> set[tuple[str, str]]:
    return {(one.method, PREFIX + plain(IN_PATH.sub("{}", one.path))) for one in AIRFLOW_API.endpoints}


def refused_paths() -> set[tuple[str, str]]:
    return {(method, PREFIX + plain(one.path)) for one in REFUSALS for method in one.methods}


def test_pools(client):
    api = airflow.PoolApi(client)
    made = api.post_pool(models.PoolBody(name="small", slots=2, include_deferred=True))
    assert (made.name, made.slots, made.open_slots) == ("small", 2, 2)
    assert api.patch_pool("small", models.PoolPatchBody(slots=3), update_mask=["slots"]).slots == 3
    assert api.get_pool("small").include_deferred
    assert [pool.name for pool in api.get_pools(limit=1, order_by=["-name"]).pools] == ["small"]
    created = {"action": "create", "entities": [{"name": "other", "slots": 1}]}
    actions = [created, {"action": "delete", "entities": ["other"]}]
    done = api.bulk_pools(models.BulkBodyPoolBody.from_dict({"actions": actions}))
    assert (done.create.success, done.delete.success) == (["other"], ["other"])
    api.delete_pool("small")
    with pytest.raises(airflow.exceptions.NotFoundException):
        api.get_pool("small")


def test_variables(client):
    api = airflow.VariableApi(client)
    assert api.post_variable(models.VariableBody(key="colour", value="red")).value == "red"
    changed = models.VariableBody(key="colour", value={"a": [1]}, description="Mine.")
    assert json.loads(api.patch_variable("colour", changed).value) == {"a": [1]}
    api.post_variable(models.VariableBody(key="api_key", value="hunter22"))
    assert {one.key: one.value for one in api.get_variables(variable_key_pattern="api").variables} == {"api_key": "***"}
    assert api.get_variable("colour").description == "Mine."
    actions = [{"action": "update", "entities": [{"key": "colour", "value": "1"}]}]
    done = api.bulk_variables(models.BulkBodyVariableBody.from_dict({"actions": actions}))
    assert done.update.success == ["colour"]
    for key in ("colour", "api_key"):
        api.delete_variable(key)


def test_connections(client):
    api = airflow.ConnectionApi(client)
    body = models.ConnectionBody(connection_id="web", conn_type="http", host="here", password="hunter22", port=80)
    assert api.post_connection(body).password == "***"
    assert api.patch_connection("web", models.ConnectionBody(connection_id="web", conn_type="http", port=81)).port == 81
    assert (api.get_connection("web").host, api.get_connections().total_entries) == ("here", 1)
    with pytest.raises(airflow.exceptions.ForbiddenException, match="hook"):
        api.test_connection(body)
    actions = [{"action": "delete", "entities": ["web"]}]
    done = api.bulk_connections(models.BulkBodyConnectionBody.from_dict({"actions": actions}))
    assert done.delete.success == ["web"]
    api.post_connection(body)
    api.delete_connection("web")


def test_assets(client, served):
    api = airflow.AssetApi(client)
    names = {asset.name: asset.id for asset in api.get_assets().assets}
    assert names.keys() == {"orders", "never", "found"}
    [event] = api.get_asset_events(name_pattern="orders").asset_events
    assert [run.dag_id for run in event.created_dagruns] == ["follows"]
    assert api.get_asset(names["orders"]).scheduled_dags[0].dag_id == "follows"
    [alias] = api.get_asset_aliases().asset_aliases
    assert api.get_asset_alias(alias.id)["name"] == "anything"
    made = api.create_asset_event(models.CreateAssetEventsBody(asset_id=names["never"], extra={"by": "hand"}))
    assert made.extra == {"by": "hand", "from_rest_api": True}
    # `waits` has both of its assets now: its run consumes the events, which a scheduler does soon.
    served.site.until(lambda: served.site.runs("waits"), "the run of waits")
    assert api.get_dag_asset_queued_events("waits").total_entries == 0
    api.create_asset_event(models.CreateAssetEventsBody(asset_id=names["never"]))
    assert api.get_asset_queued_events(names["never"]).total_entries == 1
    assert api.get_dag_asset_queued_event("waits", names["never"]).dag_id == "waits"
    api.delete_dag_asset_queued_event("waits", names["never"])
    api.create_asset_event(models.CreateAssetEventsBody(asset_id=names["never"]))
    api.delete_asset_queued_events(names["never"])
    api.create_asset_event(models.CreateAssetEventsBody(asset_id=names["never"]))
    api.delete_dag_asset_queued_events("waits")
    run = api.materialize_asset(names["orders"], models.MaterializeAssetBody(conf={"n": 1}))
    assert run.dag_id == "report"
    assert served.wait_for_run("report", run.dag_run_id) == "success"


def test_backfills(client, served):
    api = airflow.BackfillApi(client)
    span = models.BackfillPostBody(
        dag_id="daily", from_date=datetime(2026, 1, 1, tzinfo=UTC), to_date=datetime(2026, 1, 3, tzinfo=UTC),
        reprocess_behavior="completed", max_active_runs=1,
    )  # fmt: skip
    assert api.create_backfill_dry_run(span).total_entries == 3
    made = api.create_backfill(span)
    assert api.pause_backfill(made.id).is_paused
    assert not api.unpause_backfill(made.id).is_paused
    api.cancel_backfill(made.id)
    assert api.get_backfill(made.id).completed_at is not None
    assert [one.id for one in api.list_backfills("daily").backfills] == [made.id]


def test_dags(client):
    api = airflow.DAGApi(client)
    assert [dag.dag_id for dag in api.get_dags(tags=["sales"], order_by=["-dag_id"]).dags] == ["report", "fails"]
    assert api.get_dag("report").owners == ["ada"]
    assert api.get_dag_details("report").params["n"]["value"] == 3
    assert api.get_dag_tags().tags == ["numbers", "sales"]
    assert api.patch_dag("daily", models.DAGPatchBody(is_paused=False)).is_paused is False
    assert [dag.dag_id for dag in api.patch_dags(models.DAGPatchBody(is_paused=True), dag_id_pattern="daily").dags] == [
        "daily"
    ]
    assert [task.task_id for task in airflow.TaskApi(client).get_tasks("fails").tasks] == ["after", "broken"]
    assert airflow.TaskApi(client).get_task("fails", "broken").retries == 1
    versions = airflow.DagVersionApi(client)
    assert versions.get_dag_versions("report").dag_versions[0].version_number == 1
    assert versions.get_dag_version("report", 1).dag_id == "report"
    assert "DAG(" in airflow.DagSourceApi(client).get_dag_source("report", accept="application/json").content
    [stats] = airflow.DagStatsApi(client).get_dag_stats(dag_ids=["fails"]).dags
    assert {one.state: one.count for one in stats.stats}["failed"] == 1
    assert airflow.DagWarningApi(client).list_dag_warnings().dag_warnings == []


def test_runs(client, served):
    api = airflow.DagRunApi(client)
    made = api.trigger_dag_run(
        "report", models.TriggerDAGRunPostBody(logical_date=None, conf={"n": 1}, dag_run_id="by-client")
    )
    lines = api.wait_dag_run_until_finished_without_preload_content("report", made.dag_run_id, interval=1).data
    assert json.loads(lines.splitlines()[-1])["state"] == "success"
    assert {run.dag_id for run in api.get_dag_runs("~", state=["success"]).dag_runs} >= {"report", "follows"}
    assert api.get_dag_run("report", "by-client").conf == {"n": 1}
    listed = api.get_list_dag_runs_batch("~", models.DAGRunsBatchBody(dag_ids=["fails"]))
    assert [run.dag_run_id for run in listed.dag_runs] == [RUN_ID]
    assert api.patch_dag_run("report", "by-client", models.DAGRunPatchBody(note="Mine.")).note == "Mine."
    [follower] = api.get_dag_runs("follows", limit=1).dag_runs
    assert api.get_upstream_asset_events("follows", follower.dag_run_id).asset_events[0].name == "orders"
    # The client cannot read the answer of a dry run, Airflow's neither: two of its models fit a task instance.
    dry = api.clear_dag_run_without_preload_content("report", "by-client", models.DAGRunClearBody(dry_run=True))
    assert json.loads(dry.data)["total_entries"] == 3
    api.clear_dag_runs(
        "report", models.BulkDAGRunClearBody(dry_run=False, dag_runs=[models.BulkDAGRunBody(dag_run_id="by-client")])
    )
    assert served.wait_for_run("report", "by-client") == "success"
    api.delete_dag_run("report", "by-client")
    with pytest.raises(airflow.exceptions.NotFoundException):
        api.get_dag_run("report", "by-client")


def test_task_instances(client, served):
    api = airflow.TaskInstanceApi(client)
    run = ("report", RUN_ID)
    assert api.get_task_instances(*run).total_entries == 5
    batch = models.TaskInstancesBatchBody(dag_ids=["fails"], state=["failed"])
    assert [one.task_id for one in api.get_task_instances_batch("~", "~", batch).task_instances] == ["broken"]
    assert api.get_task_instance(*run, "extract").state == "success"
    assert api.get_mapped_task_instances(*run, "double").total_entries == 3
    assert api.get_mapped_task_instance(*run, "double", 1).map_index == 1
    assert len(api.get_task_instance_tries("fails", RUN_ID, "broken").task_instances) == 2
    assert api.get_task_instance_try_details("fails", RUN_ID, "broken", 1).try_number == 1
    assert api.get_mapped_task_instance_tries(*run, "double", 0).total_entries == 1
    assert api.get_mapped_task_instance_try_details(*run, "double", 1, 0).map_index == 0
    api.get_task_instance_dependencies("fails", RUN_ID, "after")
    api.get_task_instance_dependencies_by_map_index(*run, "double", 0)
    marked = models.PatchTaskInstanceBody(new_state="success")
    dry = api.patch_task_instance_dry_run("fails", RUN_ID, "broken", marked)
    assert [one.task_id for one in dry.task_instances] == ["broken"]
    api.patch_task_instance_dry_run_by_map_index(*run, "double", 0, models.PatchTaskInstanceBody(new_state="failed"))
    api.patch_task_group_instances_dry_run(*run, "sums", models.PatchTaskInstanceBody(new_state="failed"))
    api.patch_task_instance_by_map_index(*run, "double", 0, models.PatchTaskInstanceBody(note="First."))
    api.patch_task_group_instances(*run, "sums", models.PatchTaskInstanceBody(new_state="failed"))
    assert api.patch_task_instance("fails", RUN_ID, "broken", marked).task_instances[0].state == "success"
    names = [models.ClearTaskInstancesBodyTaskIdsInner("broken")]
    cleared = models.ClearTaskInstancesBody(dry_run=False, dag_run_id=RUN_ID, only_failed=False, task_ids=names)
    answer = api.post_clear_task_instances_without_preload_content("fails", cleared)
    assert json.loads(answer.data)["total_entries"] == 1
    path = f"/dags/fails/dagRuns/{RUN_ID}/taskInstances/broken"
    # Its run stays a success, as in Airflow: the task after it has succeeded.
    served.site.until(lambda: served.get(path)["state"] == "failed", "the cleared task has failed again")


def test_logs_and_xcoms(client):
    logs = airflow.TaskInstanceApi(client)
    told = logs.get_log("report", RUN_ID, "extract", 1, accept="application/json", full_content=True)
    assert "reading" in told.to_json()
    with contextlib.suppress(airflow.exceptions.ApiException):  # there is no other place of logs
        logs.get_external_log_url("report", RUN_ID, "extract", 1)
    api, of_task = airflow.XComApi(client), ("report", RUN_ID, "sums.load")
    assert {one.key for one in api.get_xcom_entries(*of_task).xcom_entries} >= {"sum"}
    assert (
        json.loads(api.get_xcom_entry_without_preload_content("report", "sums.load", RUN_ID, "sum").data)["value"] == 6
    )
    api.create_xcom_entry("report", "sums.load", RUN_ID, models.XComCreateBody(key="own", value=[1]))
    api.update_xcom_entry("report", "sums.load", RUN_ID, "own", models.XComUpdateBody(value=[2]))
    api.delete_xcom_entry("report", "sums.load", RUN_ID, "own")


def test_answers_of_people(client, served):
    api = airflow.TaskInstanceApi(client)
    assert api.get_hitl_details("~", "~", response_received=False).total_entries == 1
    question = ("asks", RUN_ID, "approve", -1)
    assert api.get_hitl_detail(*question).subject == "Deploy?"
    payload = models.UpdateHITLDetailPayload(chosen_options=["Approve"], params_input={"why": "tested"})
    assert api.update_hitl_detail(*question, payload).responded_by.name == NAME
    assert served.wait_for_run("asks", RUN_ID) == "success"


def test_what_the_scheduler_knows_of_itself(client, served):
    assert airflow.MonitorApi(client).get_health().scheduler.status == "healthy"
    assert airflow.VersionApi(client).get_version().version == "3.3.2"
    [job] = airflow.JobApi(client).get_jobs(is_alive=True).jobs
    assert job.job_type == "SchedulerJob"
    assert airflow.ProviderApi(client).get_providers().total_entries == 0
    assert airflow.PluginApi(client).get_plugins().plugins == []
    assert airflow.PluginApi(client).import_errors().import_errors == []
    options = airflow.ConfigApi(client)
    assert options.get_config(section="core").sections[0].name == "core"
    assert options.get_config_value("core", "dags_folder").sections[0].options[0].value.actual_instance == str(
        served.site.dags
    )
    errors = airflow.ImportErrorApi(client)
    [error] = errors.get_import_errors().import_errors
    assert errors.get_import_error(error.import_error_id).filename == "broken.py"
    logs = airflow.EventLogApi(client)
    newest = logs.get_event_logs(order_by=["-event_log_id"], limit=1).event_logs[0]
    assert logs.get_event_log(newest.event_log_id).event == newest.event


def test_many_runs_and_task_instances_at_once(client, served):
    api = airflow.DagRunApi(client)
    api.trigger_dag_run("report", models.TriggerDAGRunPostBody(logical_date=None, dag_run_id="one-of-many"))
    assert served.wait_for_run("report", "one-of-many") == "success"
    update = {"action": "update", "entities": [{"task_id": "double", "map_index": 1, "new_state": "failed"}]}
    body = models.BulkBodyBulkTaskInstanceBody.from_dict({"actions": [update]})
    done = airflow.TaskInstanceApi(client).bulk_task_instances("report", "one-of-many", body)
    assert (done.update.success, done.update.errors) == (["report.one-of-many.double[1]"], [])
    note = {"action": "update", "entities": [{"dag_run_id": "one-of-many", "note": "seen"}]}
    delete = {"action": "delete", "entities": ["one-of-many", "none"], "action_on_non_existence": "skip"}
    actions = models.BulkBodyBulkDAGRunBody.from_dict({"actions": [note, delete]})
    both = api.bulk_dag_runs("report", actions)
    assert (both.update.success, both.delete.success) == (["report.one-of-many"], ["report.one-of-many"])


def test_a_running_run_is_ended_by_its_scheduler_before_the_answer(client, served):
    api, tasks = airflow.DagRunApi(client), airflow.TaskInstanceApi(client)
    api.trigger_dag_run("asks", models.TriggerDAGRunPostBody(logical_date=None, dag_run_id="to-end"))

    def asks() -> bool:
        return [one.state for one in tasks.get_task_instances("asks", "to-end").task_instances] == ["awaiting_input"]

    served.site.until(asks, "the task asks")
    assert api.patch_dag_run("asks", "to-end", models.DAGRunPatchBody(state="failed")).state == "failed"


def test_files_links_and_dags_that_are_still_there(client):
    token = airflow.DAGApi(client).get_dag("report").file_token
    airflow.DAGParsingApi(client).reparse_dag_file(token)
    assert airflow.ExtraLinksApi(client).get_extra_links("report", RUN_ID, "extract").total_entries == 0
    with pytest.raises(airflow.exceptions.ConflictException, match="remove it from there"):
        airflow.DAGApi(client).delete_dag("report")


def test_every_refused_path_answers_501_with_a_sentence(client, served):
    # The client's own functions need a body for some: the paths are asked directly.
    with served.http as http:
        for one in REFUSALS:
            for method in one.methods:
                answer = http.request(method, PREFIX + ARGUMENT.sub("1", one.path))
                assert (answer.status_code, answer.json()) == (501, {"detail": one.sentence}), (method, one.path)
                called.add((method, PREFIX + plain(one.path)))
    assert refused_paths() & served_paths() == set()


def test_without_a_token_nothing_is_told(served):
    client = airflow.ApiClient(airflow.Configuration(host=served.url))
    with pytest.raises(airflow.exceptions.UnauthorizedException):
        airflow.PoolApi(client).get_pools()
    assert httpx.get(f"{served.url}{PREFIX}/connections/enqueue-test").status_code == 401
    assert airflow.VersionApi(client).get_version().version == "3.3.2"


def test_every_call_of_the_client_was_made():
    every = calls_of_client()
    assert len(every) > 100
    assert every - served_paths() - refused_paths() == set(), "neither served nor refused"
    assert (served_paths() | refused_paths()) - every == set(), "not of Airflow's API"
    assert every - called == set(), "not tried by this module"
