"""What all lists of Airflow's API have in common: the names that sort them, and their bounds."""

from typing import Any

from asynsched.client.operation import PREFIX
from tests.web.filling import RUN_ID

OF_INSTANCES = (
    "id", "state", "duration", "start_date", "end_date", "map_index", "try_number", "logical_date", "run_after",
    "data_interval_start", "data_interval_end", "rendered_map_index", "operator",
)  # fmt: skip
SORTED = {
    "get_dags": ("/dags", "dag_id dag_display_name next_dagrun state start_date last_run_state last_run_start_date"),
    "get_dag_tags": ("/dagTags", "name"),
    "get_dag_runs": (
        "/dags/~/dagRuns",
        (
            "id state dag_id run_id logical_date partition_date run_after start_date end_date updated_at conf duration"
            " dag_run_id"
        ),
    ),
    "get_task_instances": ("/dags/~/dagRuns/~/taskInstances", " ".join(OF_INSTANCES)),
    "get_mapped_task_instances": (
        f"/dags/report/dagRuns/{RUN_ID}/taskInstances/double/listMapped",
        " ".join(OF_INSTANCES),
    ),
    "get_xcom_entries": (
        "/dags/~/dagRuns/~/taskInstances/~/xcomEntries",
        "key dag_id run_id task_id map_index timestamp run_after",
    ),
    "get_hitl_details": (
        "/dags/~/dagRuns/~/hitlDetails",
        (
            "ti_id subject responded_at created_at responded_by_user_id responded_by_user_name dag_id run_id"
            " task_display_name run_after rendered_map_index task_instance_operator task_instance_state"
        ),
    ),
    "get_dag_versions": ("/dags/~/dagVersions", "id version_number bundle_name bundle_version"),
    "list_dag_warnings": ("/dagWarnings", "dag_id warning_type message timestamp"),
    "get_import_errors": ("/importErrors", "id timestamp filename bundle_name stacktrace import_error_id"),
    "get_jobs": (
        "/jobs",
        "id dag_id state job_type start_date end_date latest_heartbeat executor_class hostname unixname",
    ),
    "get_assets": ("/assets", "id name uri created_at updated_at"),
    "get_asset_aliases": ("/assets/aliases", "id name"),
    "get_asset_events": ("/assets/events", "source_task_id source_dag_id source_run_id source_map_index timestamp"),
    "list_backfills": ("/backfills?dag_id=daily", "id"),
    "get_event_logs": ("/eventLogs", "id dttm dag_id task_id run_id event logical_date owner extra when event_log_id"),
    "get_pools": ("/pools", "id pool name"),
    "get_connections": ("/connections", "conn_id conn_type description host port id team_name connection_id"),
    "get_variables": ("/variables", "key id _val description is_encrypted team_name"),
}
"""Airflow's names of calls, with a path of each and the names that it documents to sort by."""
ENCRYPTED = {"host", "port", "_val"}


async def test_lists_are_sorted_by_every_name_that_airflow_has_unless_it_is_encrypted(site):
    await site.call("PATCH", "/dags/daily", json={"is_paused": False})
    for path, names in SORTED.values():
        usual = await site.call("GET", path)
        none = await site.call("GET", f"{path}{'&' if '?' in path else '?'}limit=0")
        assert (none["total_entries"], [rows for rows in none.values() if isinstance(rows, list)]) == (
            usual["total_entries"], [[]],
        ), path  # fmt: skip
        for name in names.split():
            for order in (name, f"-{name}"):
                status = 400 if name in ENCRYPTED else 200
                found = await site.call("GET", f"{path}{'&' if '?' in path else '?'}order_by={order}", status)
                assert status == 400 or found["total_entries"] == usual["total_entries"], (path, order)


async def test_what_a_list_is_asked_for_is_bounded(site):
    await site.get("/dags", order_by=["dag_id"] * 10)
    assert "10 names" in (await site.get("/dags", 400, order_by=["dag_id"] * 11))["detail"]
    await site.get("/dags", dag_id_pattern="a|" * 500)
    assert "1000 characters" in (await site.get("/dags", 400, dag_id_pattern="a" * 1001))["detail"]
    path = "/dags/~/dagRuns/~/taskInstances/list"
    many = {name: ["a"] * 5000 for name in ("dag_ids", "dag_run_ids", "task_ids", "pool", "queue", "executor")}
    assert (await site.call("POST", path, json=many))["task_instances"] == []
    assert "5000 values" in (await site.call("POST", path, 400, json={"pool": ["a"] * 5001}))["detail"]
    for body in ({"conf_contains": "a" * 100_000}, {"dag_ids": ["a"] * 100_000}):
        await site.call("POST", "/dags/~/dagRuns/list", 400, json=body)


async def test_a_wrong_name_is_answered_with_the_possible_ones(site):
    refused = await site.get("/dags/~/dagRuns", 400, order_by="began")
    assert "cannot be sorted by 'began'" in refused["detail"]
    assert ", start_date" in refused["detail"]
    [problem] = (await site.get("/dags", 422, tags_match_mode="some"))["detail"]
    assert problem["loc"] == ["query", "tags_match_mode"]
    assert "'some'. Choose among any, all." in problem["msg"]
    [problem] = (await site.call("PATCH", f"/dags/report/dagRuns/{RUN_ID}", 422, json={"state": "over"}))["detail"]
    assert problem["msg"] == "Invalid enum value 'over' - at `$.state`. Choose among queued, success, failed."


async def test_our_own_api_knows_every_name_of_a_query_string(site):
    async def detail_of(query: str, status: int) -> Any:
        answer = await site.client.get(f"{PREFIX}/{query}")
        assert answer.status_code == status, answer.text
        return answer.json()["detail"]

    [problem] = await detail_of("runs?dag=report", 422)
    assert problem["loc"] == ["query", "dag"]
    assert problem["msg"].startswith("There is no parameter 'dag'. The known ones are dag_id, ")
    assert "This request has none." in (await detail_of("pools/default_pool?x=1", 422))[0]["msg"]
    assert "started_at" in await detail_of("runs?order_by=began", 400)
    await site.get("/dags", unheard_of="x")  # Airflow ignores such a name
