"""Airflow's paths of task instances, their tries, logs and XComs."""

import json
from contextlib import aclosing

import msgspec
import sqlalchemy as sa

from asynsched.clock import Clock
from asynsched.executors.log_archive import archive_of
from asynsched.executors.log_paths import log_path
from asynsched.fernet_keys import keys_of
from asynsched.home import LOGS
from asynsched.keys import TaskInstanceKey
from asynsched.queries import task_actions
from asynsched.queries.context import QueryContext
from asynsched.queries.try_logs import find_in_log, follow_log, read_log_end
from asynsched.settings import LogSettings
from asynsched.store.engines.opening import open_database
from asynsched.store.schema import dag_run, task_instance, task_instance_history
from tests.web.filling import RUN_ID

TASKS = f"/dags/report/dagRuns/{RUN_ID}/taskInstances"
BROKEN = f"/dags/fails/dagRuns/{RUN_ID}/taskInstances/broken"
ALL = "/dags/~/dagRuns/~/taskInstances"
IN_ORDER = {"order_by": ["task_id", "map_index"]}


def names(found) -> list[str]:
    return [f"{one['task_id']}[{one['map_index']}]" if one["map_index"] >= 0 else one["task_id"] for one in found]


FILTERED = [
    (TASKS, {}, ["double[0]", "double[1]", "extract", "sums.load"]),
    (TASKS, {"task_id": "extract"}, ["extract"]),
    (TASKS, {"map_index": 1}, ["double[1]"]),
    (TASKS, {"task_group_id": "sums"}, ["sums.load"]),
    (TASKS, {"operator_name_pattern": "@TASK", "task_display_name_pattern": "the NUM|sums"}, ["extract", "sums.load"]),
    (ALL, {"task_display_name_prefix_pattern": "Read", "dag_id_pattern": "report"}, ["extract"]),
    (ALL, {"task_display_name_pattern": "extr"}, []),
    (TASKS, {"operator_name_prefix_pattern": "_Python"}, []),
    (TASKS, {"operator": "_PythonDecoratedOperator", "task_id": "extract"}, ["extract"]),
    (TASKS, {"operator": "@task"}, []),
    (ALL, {"operator": "ApprovalOperator"}, ["approve"]),
    (ALL, {"state": ["failed", "upstream_failed"]}, ["after", "broken"]),
    (ALL, {"try_number": 2}, ["broken"]),
    (ALL, {"pool": "other"}, []),
    (ALL, {"pool_name_prefix_pattern": "default", "dag_id_pattern": "follows"}, ["note"]),
    (ALL, {"run_id_prefix_pattern": "asset"}, ["note"]),
    (ALL, {"duration_gt": 1000}, []),
    (ALL, {"start_date_gt": "2100-01-01"}, []),
    (ALL, {"version_number": 2}, []),
    ("/dags/fails/dagRuns/~/taskInstances", {}, ["after", "broken"]),
]


async def test_task_instances_are_listed_by_filters(site):
    for path, filters, expected in FILTERED:
        found = await site.get(path, **filters, **IN_ORDER)
        assert (names(found["task_instances"]), found["total_entries"]) == (expected, len(expected)), filters


async def test_task_instances_of_a_name_that_does_not_exist_are_not_found(site):
    for path in ("nope/dagRuns/~", "report/dagRuns/nope", f"nope/dagRuns/{RUN_ID}"):
        await site.get(f"/dags/{path}/taskInstances", 404)
    for path in (TASKS, "/dags/report/dagRuns/~/taskInstances"):
        assert "'sms'" in (await site.get(path, 404, task_group_id="sms"))["detail"]


async def test_task_instances_are_listed_by_a_body_and_by_cursors(site):
    body = {"dag_ids": ["fails"], "state": ["failed", None], "page_limit": 5}
    found = await site.call("POST", f"{ALL}/list", json=body)
    assert names(found["task_instances"]) == ["broken"]
    first = await site.get(ALL, cursor="", limit=4, order_by="-start_date")
    rest = await site.get(ALL, cursor=first["next_cursor"], limit=50, order_by="-start_date")
    assert len({one["id"] for one in (*first["task_instances"], *rest["task_instances"])}) == 8
    assert rest["next_cursor"] is None


async def test_one_task_instance_is_shown_with_or_without_a_map_index(site):
    one = await site.get(f"{TASKS}/extract")
    assert one == await site.get(f"{TASKS}/extract/-1")
    assert (one["state"], one["try_number"], one["operator"], one["executor_config"]) == (
        "success", 1, "_PythonDecoratedOperator", "{}",
    )  # fmt: skip
    assert (one["operator_name"], one["task_display_name"]) == ("@task", "Read the numbers")
    assert (await site.get(f"{TASKS}/sums.load"))["task_display_name"] == "sums.load"
    assert one["dag_version"]["version_number"] == 1
    assert one["rendered_fields"] == {}
    rendered = (await site.get(BROKEN))["rendered_fields"]
    assert rendered["templates_dict"] == {"run": "first, try 2", "token": "***"}
    assert (await site.get(f"{TASKS}/double/1"))["rendered_map_index"] == "1"
    mapped = await site.get(f"{TASKS}/double/listMapped", order_by="-map_index")
    assert names(mapped["task_instances"]) == ["double[1]", "double[0]"]
    for path in ("extrct", "double", "double/9", "extract/listMapped", "extract/tries/9", "extract/logs/9"):
        await site.get(f"{TASKS}/{path}", status=404)


async def test_tries_have_their_own_times_and_ends(site):
    tries = (await site.get(f"{BROKEN}/tries"))["task_instances"]
    assert [(one["try_number"], one["state"]) for one in tries] == [(1, "failed"), (2, "failed")]
    assert (await site.get(f"{BROKEN}/tries/1"))["start_date"] == tries[0]["start_date"]
    assert (await site.get(f"{TASKS}/double/1/tries"))["total_entries"] == 1


async def test_an_earlier_try_shows_where_it_ran_and_one_of_an_old_version_what_the_task_says(site):
    async def pools(**earlier):
        await site.database.write(lambda conn: conn.execute(sa.update(task_instance_history).values(**earlier)))
        return [(one["pool"], one["queue"]) for one in (await site.get(f"{BROKEN}/tries"))["task_instances"]]

    assert await pools(pool="again", queue="retries") == [("again", "retries"), ("default_pool", "default")]
    assert await pools(pool=None, queue=None) == [("default_pool", "default")] * 2


async def test_what_keeps_a_task_instance_from_being_queued_is_told(site):
    assert await site.get(f"{TASKS}/extract/dependencies") == {"dependencies": []}
    await site.call("POST", f"/dags/fails/dagRuns/{RUN_ID}/clear", json={"dry_run": False})
    path = f"/dags/fails/dagRuns/{RUN_ID}/taskInstances/after/dependencies"
    assert [one["name"] for one in (await site.get(path))["dependencies"]] == ["trigger_rule"]


async def test_nothing_keeps_a_task_that_expands_now(site):
    await site.database.write(unexpand)
    assert await site.get(f"{TASKS}/double/dependencies") == {"dependencies": []}
    for bounds in ({"start_date_gt": "2100-01-01"}, {"start_date_gte": "2100-01-01", "end_date_lte": "2100-01-01"}):
        found = await site.get(TASKS, **bounds, **IN_ORDER)
        assert names(found["task_instances"]) == ["double", "sums.load"], "both are still to start and to end"
    assert (await site.get(TASKS, start_date_lt="2000-01-01"))["task_instances"] == []
    params = {"run_id": RUN_ID, "task_id": "double"}
    told = (await site.client.get("/api/asynsched/v1/why/report", params=params)).json()
    assert told["subject"] == f"{RUN_ID} of report"


def unexpand(conn):
    """Undo what the scheduler has done since the end of `extract`."""
    run_id = conn.scalar(sa.select(dag_run.c.id).where(dag_run.c.dag_id == "report"))
    conn.execute(sa.update(dag_run).where(dag_run.c.id == run_id).values(state="running", ended_at=None))
    of_run = task_instance.c.dag_run_id == run_id
    conn.execute(sa.delete(task_instance).where(of_run, task_instance.c.map_index > 0))
    later = sa.update(task_instance).where(of_run, task_instance.c.task_id != "extract")
    conn.execute(later.values(state=None, map_index=-1, try_number=0, started_at=None, ended_at=None))


async def test_a_log_is_read_in_parts(site, monkeypatch):
    whole = await site.get(f"{TASKS}/extract/logs/1")
    lines = [line["event"] for line in whole["content"]]
    assert any("reading 2 numbers" in line for line in lines)
    assert whole["continuation_token"] is None
    monkeypatch.setattr("asynsched.queries.try_logs.MOST_BYTES", max(map(len, lines)) + 1)
    parts, token = [], None
    while True:
        part = await site.get(f"{TASKS}/extract/logs/1", **({"token": token} if token else {}))
        parts += [line["event"] for line in part["content"]]
        if (token := part["continuation_token"]) is None:
            break
    assert parts == lines
    stream = await site.client.get(
        f"/api/v2{TASKS}/extract/logs/1", params={"full_content": True}, headers={"accept": "application/x-ndjson"}
    )
    assert [msgspec.json.decode(line)["event"] for line in stream.text.splitlines()] == lines
    await site.get(f"{TASKS}/extract/logs/1", status=400, token="§")
    assert (
        "another home"
        in (await site.get(f"/dags/fails/dagRuns/{RUN_ID}/taskInstances/after/logs/0"))["content"][0]["event"]
    )
    await site.get(f"{TASKS}/extract/externalLogUrl/1", status=400)


async def test_a_log_is_followed_and_searched_while_it_moves_to_the_store(filled, tmp_path):
    (tmp_path / "store").mkdir()
    log = LogSettings(store=(tmp_path / "store").as_uri())
    settings = msgspec.structs.replace(filled.copy(tmp_path), log=log)
    key = TaskInstanceKey("report", RUN_ID, "extract", -1)
    path, archive = log_path(key, 1), archive_of(log)
    file = settings.home_path / LOGS / path
    whole, parts = file.read_text(), []
    database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
    try:
        context = QueryContext(database, settings.home_path, settings, Clock())
        async with aclosing(follow_log(context, key, 1, start=0, n_bytes=len(whole) // 2)) as following:
            async for part in following:
                parts.append(part)
                if file.exists():
                    archive.put(path, file, tmp_path)
                    file.unlink()
        assert len(parts) > 1
        assert ("".join(part.text for part in parts), parts[-1].is_last) == (whole, True)
        assert [line.text for line in await find_in_log(context, key, 1, "READING 2")] == [
            line for line in whole.splitlines() if "reading 2" in line
        ]
        end = await read_log_end(context, key, 1, n_bytes=10)
        assert (whole.endswith(end.text), end.end, end.is_last) == (True, len(whole), True)
    finally:
        await database.close()


async def test_a_task_instance_is_marked_and_noted(site):
    body = {"new_state": "failed", "note": "wrong"}
    shown = await site.call("PATCH", f"{TASKS}/double/1/dry_run", json=body)
    assert names(shown["task_instances"]) == ["double[1]"]
    assert (await site.get(f"{TASKS}/double/1"))["state"] == "success"
    marked = await site.call("PATCH", f"{TASKS}/double/1", json=body)
    assert [(one["state"], one["note"]) for one in marked["task_instances"]] == [("failed", "wrong")]
    assert (await site.get(f"{TASKS}/double/0"))["state"] == "success"
    await site.call("PATCH", f"{TASKS}/double/1", 409, json={"new_state": "failed", "note": "twice"})
    assert (await site.get(f"{TASKS}/double/1"))["note"] == "wrong"
    await site.call("PATCH", f"{TASKS}/double/1", 422, json={"new_state": "running"})
    group = f"/dags/report/dagRuns/{RUN_ID}/taskGroupInstances"
    both = await site.call("PATCH", f"{group}/sums", json={"new_state": "SKIPPED"})
    assert [(one["task_id"], one["state"]) for one in both["task_instances"]] == [("sums.load", "skipped")]
    await site.call("PATCH", f"{group}/sms", 404, json={"note": "x"})
    below = await site.call(
        "PATCH", f"{TASKS}/extract/dry_run", json={"new_state": "failed", "include_downstream": True}
    )
    assert sorted(names(below["task_instances"])) == ["double[0]", "extract", "sums.load"]


async def test_task_instances_are_cleared_or_only_shown(site):
    wanted = {"dag_run_id": RUN_ID, "task_ids": ["extract"], "only_failed": False, "include_downstream": True}
    shown = await site.call("POST", "/dags/report/clearTaskInstances", json=wanted)
    assert sorted(names(shown["task_instances"])) == ["double[0]", "double[1]", "extract", "sums.load"]
    one = {"dag_run_id": RUN_ID, "task_ids": [["double", 1]], "only_failed": False, "dry_run": False, "note": "again"}
    cleared = await site.call("POST", "/dags/report/clearTaskInstances", json=one)
    assert [(*names([one]), one["state"], one["note"]) for one in cleared["task_instances"]] == [
        ("double[1]", None, "again")
    ]
    assert (await site.get(f"/dags/report/dagRuns/{RUN_ID}"))["state"] == "queued"
    running = await site.call("POST", "/dags/fails/clearTaskInstances", json={"only_running": True})
    assert sorted(names(running["task_instances"])) == ["after", "broken"], "and failed ones, by default"
    only = {"only_running": True, "only_failed": False}
    assert (await site.call("POST", "/dags/fails/clearTaskInstances", json=only))["task_instances"] == []
    dated = {"start_date": "2000-01-01T00:00:00Z", "dry_run": True}
    found = await site.call("POST", "/dags/fails/clearTaskInstances", json=dated)
    assert sorted(names(found["task_instances"])) == ["after", "broken"]


REFUSED = [
    ({"only_failed": True, "only_running": True}, 422),
    ({"dag_run_id": RUN_ID, "start_date": "2026-01-01T00:00:00Z"}, 422),
    ({"start_date": "2026-01-02T00:00:00Z", "end_date": "2026-01-01T00:00:00Z"}, 422),
    ({"task_ids": []}, 422),
    ({"reset_dag_runs": False}, 400),
    ({"dag_run_id": "none"}, 404),
    ({"dag_run_id": RUN_ID, "task_ids": ["extrct"]}, 404),
]


async def test_a_clear_that_makes_no_sense_is_refused(site, monkeypatch):
    monkeypatch.setattr(task_actions, "MOST_RUNS", 0)
    assert "shorter span" in (await site.call("POST", "/dags/fails/clearTaskInstances", 400, json={}))["detail"]
    for body, status in REFUSED:
        await site.call("POST", "/dags/report/clearTaskInstances", status, json=body)


async def test_xcoms_are_listed_and_shown_as_they_are_stored_or_for_people(site):
    found = await site.get(f"/dags/report/dagRuns/{RUN_ID}/taskInstances/~/xcomEntries")
    assert [(one["task_id"], one["map_index"], one["key"]) for one in found["xcom_entries"]] == [
        ("double", 0, "return_value"), ("double", 1, "return_value"), ("extract", -1, "return_value"),
        ("sums.load", -1, "sum"),
    ]  # fmt: skip
    assert {one["task_id"]: one["task_display_name"] for one in found["xcom_entries"]} == {
        "double": "double", "extract": "Read the numbers", "sums.load": "sums.load",
    }  # fmt: skip
    assert (await site.get(f"{ALL}/~/xcomEntries", xcom_key="sum", order_by="-run_after"))["total_entries"] == 1
    assert (await site.get(f"{TASKS}/extract/xcomEntries/return_value"))["value"] == [0, 1]
    shown = await site.get(f"{TASKS}/extract/xcomEntries/return_value", stringify=True, deserialize=True)
    assert shown["value"] == "[0, 1]", "as Python writes it"
    assert (await site.get(f"{TASKS}/double/xcomEntries/return_value", map_index=1))["value"] == 2
    for path in ("extract/xcomEntries/none", "extrct/xcomEntries/return_value"):
        await site.get(f"{TASKS}/{path}", status=404)


async def test_an_xcom_is_created_changed_and_deleted(site):
    entries = f"{TASKS}/extract/xcomEntries"
    made = await site.call("POST", entries, 201, json={"key": "a/b", "value": {"n": [1]}})
    assert (made["key"], made["value"]) == ("a/b", {"n": [1]})
    await site.call("POST", entries, 409, json={"key": "a/b", "value": 1})
    await site.call("PATCH", f"{entries}/a/b", json={"value": "other"})
    assert (await site.get(f"{entries}/a/b", stringify=True))["value"] == "other"
    await site.call("POST", entries, 400, json={"key": "typed", "value": [{"__type__": "bytes", "__value__": "x"}]})
    await site.call("POST", f"{TASKS}/extrct/xcomEntries", 404, json={"key": "k", "value": 1})
    await site.call("DELETE", f"{entries}/a/b", 204)
    await site.call("DELETE", f"{entries}/a/b", 404)
    await site.call("PATCH", f"{entries}/a/b", 404, json={"value": 1})


async def test_an_xcom_that_is_nested_very_deeply_is_shown(site):
    entries = f"{TASKS}/extract/xcomEntries"
    for levels in (550, 900):
        value = json.loads('{"a":' * levels + "1" + "}" * levels)
        await site.call("POST", entries, 201, json={"key": f"of {levels}", "value": value})
        for shown in ({"deserialize": True}, {"stringify": True}):
            assert (await site.get(f"{entries}/of {levels}", **shown))["key"] == f"of {levels}"
    page = await site.client.get(f"/dags/report/runs/{RUN_ID}/tasks/extract")
    assert (page.status_code, "of 900" in page.text) == (200, True)
