"""Airflow's paths of runs."""

import threading
from datetime import UTC, datetime
from functools import partial

import anyio
import msgspec
import pytest
import sqlalchemy as sa
from anyio import to_thread

from asynsched.authoring import json_schemas
from asynsched.queries import xcoms
from asynsched.store.schema import dag, dag_run
from asynsched.web.access import Identity, Permission
from tests.support.waiting import DEADLINE_SECONDS
from tests.web.filling import RUN_ID

RUN = f"/dags/report/dagRuns/{RUN_ID}"


FILTERED = [
    ("report", {}, ["report"]),
    ("~", {"order_by": "dag_id"}, ["asks", "fails", "follows", "report"]),
    ("~", {"order_by": "-start_date", "limit": 1}, ["asks"]),
    ("~", {"state": ["failed", "queued"]}, ["fails"]),
    ("~", {"run_type": "asset_triggered"}, ["follows"]),
    ("~", {"dag_id_pattern": "fail"}, ["fails"]),
    ("~", {"run_id_prefix_pattern": "asset"}, ["follows"]),
    ("~", {"run_after_gte": "2000-01-01T00:00:00", "order_by": "dag_id", "limit": 1}, ["asks"]),
    ("~", {"start_date_gt": "2100-01-01T00:00:00Z"}, []),
    ("~", {"start_date_gt": "2100-01-01"}, []),
    ("~", {"end_date_gt": "2100-01-01"}, ["asks"]),
    ("~", {"end_date_gte": "2100-01-01"}, ["asks"]),
    ("~", {"end_date_lt": "2100-01-01", "order_by": "dag_id"}, ["asks", "fails", "follows", "report"]),
    ("~", {"end_date_lte": "2000-01-01"}, []),
    ("~", {"duration_lt": 0}, []),
    ("~", {"updated_at_lt": "2000-01-01T00:00:00Z"}, []),
    ("~", {"conf_contains": '"n":2'}, ["report"]),
    ("~", {"consuming_asset_pattern": "orders"}, ["follows"]),
    ("~", {"dag_version": 7}, []),
    ("~", {"triggering_user_name_pattern": "ada"}, []),
]


async def test_runs_are_listed_by_filters_in_order(site):
    for path, filters, expected in FILTERED:
        found = await site.get(f"/dags/{path}/dagRuns", **filters)
        assert [run["dag_id"] for run in found["dag_runs"]] == expected, filters
        assert found["total_entries"] >= len(expected)
    for wrong in ({"state": "finished"}, {"run_type": "cron"}, {"dag_version": 10**20}):
        await site.get("/dags/~/dagRuns", 422, **wrong)


async def test_a_run_has_its_conf_dates_and_version(site):
    run = await site.get(RUN)
    assert (run["state"], run["conf"], run["run_type"], run["note"]) == ("success", {"n": 2}, "manual", None)
    assert [version["version_number"] for version in run["dag_versions"]] == [1]
    assert run["duration"] > 0
    assert (await site.get("/dags/~/dagRuns", run_type="asset_triggered"))["dag_runs"][0]["triggered_by"] == "asset"


async def test_a_cursor_leads_through_all_runs_in_order(site):
    seen, cursor = [], ""
    while cursor is not None:
        page = await site.get("/dags/~/dagRuns", cursor=cursor, limit=3, order_by=["-duration"])
        seen += [run["dag_id"] for run in page["dag_runs"]]
        cursor = page["next_cursor"]
    assert len(seen) == 4
    assert seen == [run["dag_id"] for run in (await site.get("/dags/~/dagRuns", order_by="-duration"))["dag_runs"]]
    await site.get("/dags/~/dagRuns", status=400, cursor="bm9uc2Vuc2U")


async def test_runs_of_several_dags_are_listed_by_a_body(site):
    body = {"dag_ids": ["report", "fails"], "states": ["failed"], "order_by": "-run_id"}
    found = await site.call("POST", "/dags/~/dagRuns/list", json=body)
    assert [run["dag_id"] for run in found["dag_runs"]] == ["fails"]
    for name in ("end_date_gt", "end_date_lt"):
        found = await site.call(
            "POST", "/dags/~/dagRuns/list", json={"dag_ids": ["asks"], name: "2100-01-01T00:00:00Z"}
        )
        assert found["dag_runs"] == [], "a run without an end is in no span of a body"
    await site.call("POST", "/dags/~/dagRuns/list", 422, json={"page_limit": -1})


async def test_a_run_is_triggered_with_conf_dates_and_a_note(site):
    body = {"logical_date": "2026-02-03T04:05:06Z", "conf": {"n": 5}, "note": "by hand", "dag_run_id": "mine"}
    run = await site.call("POST", "/dags/report/dagRuns", json=body)
    assert (run["dag_run_id"], run["state"], run["conf"], run["note"]) == ("mine", "queued", {"n": 5}, "by hand")
    assert run["data_interval_end"] == run["logical_date"] == "2026-02-03T04:05:06Z"
    later = {"logical_date": None, "run_after": "2100-01-01T00:00:00Z"}
    bare = await site.call("POST", "/dags/fails/dagRuns", json=later)
    assert bare["run_after"] == later["run_after"]
    assert (bare["logical_date"], bare["data_interval_start"]) == (None, None)
    interval = {"data_interval_start": "2026-02-01T00:00:00Z", "data_interval_end": "2026-02-02T00:00:00Z"}
    dated = await site.call("POST", "/dags/fails/dagRuns", json={"logical_date": "2026-02-02T00:00:00Z", **interval})
    assert {name: dated[name] for name in interval} == interval


REFUSED = [
    ("report", {"logical_date": None, "conf": {"n": -1}}, 400),
    ("report", {"logical_date": None, "dag_run_id": RUN_ID}, 409),
    ("report", {"logical_date": None, "dag_run_id": "scheduled__x"}, 400),
    ("report", {"logical_date": None, "dag_run_id": "latest"}, 400),
    ("report", {"logical_date": None, "data_interval_start": "2026-02-01T00:00:00Z"}, 422),
    ("report", {}, 422),
    ("report", {"logical_date": None, "other": 1}, 422),
    ("report", {"logical_date": None, "partition_key": "x"}, 400),
    ("reprt", {"logical_date": None}, 404),
]


async def test_a_trigger_that_makes_no_sense_is_refused(site):
    for dag_id, body, status in REFUSED:
        await site.call("POST", f"/dags/{dag_id}/dagRuns", status, json=body)


async def test_a_value_whose_pattern_takes_too_long_is_refused(site):
    conf = {"code": "a" * 60 + "!"}
    refused = await site.call("POST", "/dags/daily/dagRuns", 400, json={"logical_date": None, "conf": conf})
    assert "The DAG 'daily', param 'code': the pattern '^(a|aa)+$' of its schema took too long" in refused["detail"]
    page = await site.client.post("/dags/daily/trigger", data={"param:code": conf["code"]})
    assert (page.status_code, "of its schema took too long" in page.text) == (422, True)


ASKED = f"/dags/asks/dagRuns/{RUN_ID}/taskInstances/approve/-1/hitlDetails"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/dags/report/dagRuns", {"logical_date": None, "conf": {"n": 5}}),
        ("PATCH", ASKED, {"chosen_options": ["Approve"], "params_input": {"why": "tested"}}),
    ],
    ids=["trigger", "answer"],
)
async def test_reads_and_writes_go_on_while_a_value_is_checked(site, monkeypatch, method, path, body):
    begun, may_end = threading.Event(), threading.Event()

    def check(_schema, _value):
        begun.set()
        assert may_end.wait(DEADLINE_SECONDS)

    monkeypatch.setattr(json_schemas, "check_value", check)
    with anyio.fail_after(DEADLINE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(site.call, method, path, json=body))
            await to_thread.run_sync(begun.wait)
            paused = await site.call("PATCH", "/dags/fails", json={"is_paused": True})
            assert paused["is_paused"]
            may_end.set()


async def test_a_run_is_marked_noted_and_queued_again(site):
    run = await site.call("PATCH", RUN, json={"state": "failed", "note": "wrong numbers"})
    assert (run["state"], run["note"]) == ("failed", "wrong numbers")
    run = await site.call("PATCH", RUN, params={"update_mask": "note"}, json={"state": "success", "note": ""})
    assert (run["state"], run["note"]) == ("failed", None)
    assert (await site.call("PATCH", RUN, json={"state": "queued"}))["state"] == "queued"
    await site.call("PATCH", RUN, 422, json={"state": "running"})
    await site.call("PATCH", RUN, 422, json={"note": "x" * 1001})
    await site.call("PATCH", "/dags/report/dagRuns/none", 404, json={"note": "x"})


async def test_a_run_is_cleared_or_only_shown(site):
    shown = await site.call("POST", f"{RUN}/clear", json={})
    assert sorted(task["task_id"] for task in shown["task_instances"]) == ["double", "double", "extract", "sums.load"]
    failed = await site.call("POST", f"/dags/fails/dagRuns/{RUN_ID}/clear", json={"only_failed": True})
    assert {task["task_id"]: task["state"] for task in failed["task_instances"]} == {
        "broken": "failed", "after": "upstream_failed",
    }  # fmt: skip
    assert (await site.call("POST", f"{RUN}/clear", json={"only_new": True}))["total_entries"] == 0
    await site.call("POST", f"{RUN}/clear", 422, json={"only_new": True, "only_failed": True})
    assert (await site.get(RUN))["state"] == "success", "nothing has changed yet"
    run = await site.call("POST", f"{RUN}/clear", json={"dry_run": False, "note": "again"})
    assert (run["state"], run["note"]) == ("queued", "again")
    both = {"dag_runs": [{"dag_id": "fails", "dag_run_id": RUN_ID}, {"dag_id": "report", "dag_run_id": RUN_ID}]}
    runs = await site.call("POST", "/dags/~/clearDagRuns", json={**both, "dry_run": False})
    assert [(run["dag_id"], run["state"]) for run in runs["dag_runs"]] == [("fails", "queued"), ("report", "queued")]
    await site.call("POST", "/dags/report/clearDagRuns", 400, json=both)


EUROPE = {"partition_key": "eu", "partition_date": datetime(2026, 1, 2, 12, tzinfo=UTC)}


async def test_the_runs_of_partitions_are_found_and_cleared(site):
    path, no_runs = "/dags/report/clearDagRuns", {"task_instances": [], "total_entries": 0}
    assert await site.call("POST", path, json={"partition_key": "none"}) == no_runs
    await site.database.write(lambda conn: conn.execute(sa.update(dag_run).values(**EUROPE)))
    found = await site.get("/dags/report/dagRuns", partition_date_gte="2026-01-02", partition_date_lte="2026-01-02")
    assert found["total_entries"] == 1
    assert (await site.get("/dags/~/dagRuns", partition_date_lte="2026-01-01"))["dag_runs"] == []
    [run] = (await site.call("POST", path, json={"partition_key": "eu", "dry_run": False}))["dag_runs"]
    assert (run["partition_key"], run["state"]) == ("eu", "queued")
    span = {"partition_date_start": "2026-01-02T00:00:00Z", "partition_date_end": "2026-01-02T00:00:00Z"}
    assert await site.call("POST", path, json=span) == no_runs
    for wrong in ({}, span | {"partition_key": "eu"}, span | {"partition_date_end": "2026-01-01T00:00:00Z"}):
        await site.call("POST", path, 422, json=wrong)


async def test_a_run_that_is_not_running_is_deleted_with_its_rows_and_logs(site):
    logs = site.settings.home_path / "logs" / "dag_id=fails"
    assert list(logs.iterdir())
    await site.call("DELETE", f"/dags/fails/dagRuns/{RUN_ID}", 204)
    await site.get(f"/dags/fails/dagRuns/{RUN_ID}", status=404)
    assert not list(logs.iterdir())
    await site.call("DELETE", f"/dags/asks/dagRuns/{RUN_ID}", 409)


async def test_the_events_that_triggered_a_run_are_listed(site):
    [run] = (await site.get("/dags/follows/dagRuns"))["dag_runs"]
    found = await site.get(f"/dags/follows/dagRuns/{run['dag_run_id']}/upstreamAssetEvents")
    assert [(event["name"], event["source_task_id"]) for event in found["asset_events"]] == [("orders", "sums.load")]


async def test_waiting_for_an_ended_run_tells_its_state_and_results(site, monkeypatch):
    answer = await site.client.get(f"/api/v2{RUN}/wait", params={"interval": 1, "result": ["extract", "double"]})
    lines = [msgspec.json.decode(line) for line in answer.text.splitlines()]
    assert lines == [{"state": "success", "results": {"double": [0, 2], "extract": [0, 1]}}]
    answer = await site.client.get(f"/api/v2{RUN}/wait", params={"interval": 1})
    assert msgspec.json.decode(answer.text)["results"] == {"double": [0, 2]}, "the result that the DAG names"
    [answer] = (await site.client.get(f"/api/v2/dags/fails/dagRuns/{RUN_ID}/wait?interval=1")).text.splitlines()
    assert msgspec.json.decode(answer) == {"state": "failed"}
    monkeypatch.setattr(xcoms, "LARGEST_VALUE", 1)
    answer = await site.client.get(f"/api/v2{RUN}/wait", params={"interval": 1e300, "result": "extract"})
    assert "shown at most" in msgspec.json.decode(answer.text)["error"]
    await site.get(f"{RUN}/wait", status=422, interval=0)
    await site.get("/dags/report/dagRuns/none/wait", status=404, interval=1)


async def test_who_may_only_see_a_dag_changes_none_of_its_runs(site):
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"report": Permission.VIEW})
    assert {run["dag_id"] for run in (await site.get("/dags/~/dagRuns"))["dag_runs"]} == {"report"}
    for method, path, body in (
        ("POST", "/dags/report/dagRuns", {"logical_date": None}),
        ("PATCH", RUN, {"note": "x"}),
        ("DELETE", RUN, None),
        ("POST", f"{RUN}/clear", {}),
        ("POST", "/dags/report/clearTaskInstances", {}),
        ("POST", "/dags/~/clearDagRuns", {"dag_runs": [{"dag_id": "report", "dag_run_id": RUN_ID}]}),
        ("PATCH", f"{RUN}/taskInstances/extract", {"new_state": "failed"}),
    ):
        await site.call(method, path, 403, json=body)
    entities = [{"dag_id": "fails", "dag_run_id": RUN_ID}, {"dag_id": "fails", "dag_run_id": "none"}]
    body = {"actions": [{"action": "update", "entities": entities}]}
    done = await site.call("PATCH", "/dags/~/dagRuns", json=body)
    assert [error["status_code"] for error in done["update"]["errors"]] == [403, 403], "nothing tells which runs exist"


async def test_many_runs_and_task_instances_are_changed_in_one_request(site):
    actions = [
        {"action": "update", "entities": [{"dag_id": "fails", "dag_run_id": RUN_ID, "state": "success", "note": "n"}]},
        {"action": "update", "entities": [{"dag_run_id": RUN_ID}]},
        {"action": "delete", "entities": [{"dag_id": "asks", "dag_run_id": RUN_ID}, {"dag_id": "x", "dag_run_id": "y"}],
         "action_on_non_existence": "skip"},
        {"action": "delete", "entities": [{"dag_id": "report", "dag_run_id": "none"}]},
        {"action": "create", "entities": [{"dag_id": "report", "dag_run_id": "new"}]},
    ]  # fmt: skip
    done = await site.call("PATCH", "/dags/~/dagRuns", json={"actions": actions})
    assert (done["update"]["success"], done["delete"]["success"]) == ([f"fails.{RUN_ID}"], [])
    statuses = {word: [error["status_code"] for error in done[word]["errors"]] for word in done}
    assert statuses == {"update": [400], "delete": [409, 404], "create": [405]}
    run = await site.get(f"/dags/fails/dagRuns/{RUN_ID}")
    assert (run["state"], run["note"]) == ("success", "n")
    marks = [{"task_id": "double", "map_index": 0, "new_state": "failed"}, {"task_id": "extract", "note": "first"}]
    actions = [{"action": "update", "entities": marks}, {"action": "delete", "entities": ["extract"]}]
    done = await site.call("PATCH", f"{RUN}/taskInstances", json={"actions": actions})
    assert done["update"]["success"] == [f"report.{RUN_ID}.double[0]", f"report.{RUN_ID}.extract"]
    assert [error["status_code"] for error in done["delete"]["errors"]] == [405]
    assert (await site.get(f"{RUN}/taskInstances/extract"))["note"] == "first"


async def test_a_dag_is_deleted_once_it_has_left_its_file(site):
    assert "report.py" in (await site.get("/dags/report", 200))["fileloc"]
    await site.call("DELETE", "/dags/report", 409)
    await site.database.write(lambda conn: conn.execute(dag.update().values(is_active=False)))
    await site.call("DELETE", "/dags/report")
    assert (await site.get("/dags/~/dagRuns", dag_id_pattern="report"))["total_entries"] == 0
    await site.get("/dags/report", status=404)
    await site.call("DELETE", "/dags/asks", 409)


async def test_links_and_files_to_parse_again_are_found(site):
    assert await site.get(f"{RUN}/taskInstances/extract/links") == {"extra_links": {}, "total_entries": 0}
    token = (await site.get("/dags/report"))["file_token"]
    await site.call("PUT", f"/parseDagFile/{token}", 201)
    await site.call("PUT", "/parseDagFile/bm9uZQ", 404)
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.OPERATE})
    hidden = await site.call("PUT", f"/parseDagFile/{token}", 404)
    near = await site.call("PUT", "/parseDagFile/cmVwb3J0cy5weQ", 404)
    assert "mean" not in str(hidden) + str(near), "names of files that they may not see"
    await site.call("PUT", "/parseDagFile/§", 404)
