"""Airflow's paths of DAGs: lists, details, tasks, versions, sources, tags, numbers of runs, warnings."""

from asynsched.web.access import Identity, Permission

DAG_IDS = ["asks", "daily", "fails", "follows", "report", "waits"]
VIEWER = Identity(name="bob", permission=Permission.VIEW, of_dags={"report": Permission.VIEW})
CRON = "airflow.timetables.trigger.CronTriggerTimetable"


FILTERED = [
    ({"limit": 2, "offset": 1, "order_by": "-dag_id"}, ["report", "follows"]),
    ({"paused": True}, ["daily"]),
    ({"tags": "sales"}, ["fails", "report"]),
    ({"tags": ["sales", "numbers"], "tags_match_mode": "all"}, ["report"]),
    ({"tags": '","'}, []),
    ({"owners": ["ada", "nobody"]}, ["report"]),
    ({"owners": "AD"}, ["report"]),
    ({"owners": "a_a"}, []),
    ({"owners": '"'}, []),
    ({"dag_id_pattern": "LY|ask"}, ["asks", "daily"]),
    ({"dag_id_prefix_pattern": "f"}, ["fails", "follows"]),
    ({"dag_id_prefix_pattern": "F"}, []),
    ({"dag_display_name_pattern": "epor"}, ["report"]),
    ({"last_dag_run_state": "failed"}, ["fails"]),
    ({"dag_run_state": "success"}, ["follows", "report"]),
    ({"dag_run_state": "success", "dag_run_start_date_gt": "2100-01-01T00:00:00Z"}, []),
    ({"has_asset_schedule": True}, ["follows", "waits"]),
    ({"asset_dependency": "never"}, ["waits"]),
    ({"timetable_type": CRON}, ["daily"]),
    ({"timetable_type": ["CronTriggerTimetable", "OnceTimetable"]}, ["daily"]),
    ({"has_import_errors": True}, []),
    ({"is_favorite": True}, []),
    ({"bundle_name": "dags-folder"}, DAG_IDS),
    ({"bundle_name": "other"}, []),
    ({"order_by": ["-last_run_state", "dag_id"], "limit": 2}, ["follows", "report"]),
]


async def test_dags_are_listed_by_filters_in_order(site):
    for filters, expected in FILTERED:
        found = await site.get("/dags", **filters)
        assert [dag["dag_id"] for dag in found["dags"]] == expected, filters


async def test_a_list_has_all_that_airflow_shows_of_a_dag(site):
    [dag] = (await site.get("/dags", dag_id_pattern="report"))["dags"]
    assert dag["tags"] == [
        {"name": name, "dag_id": "report", "dag_display_name": "report"} for name in ("numbers", "sales")
    ]
    shown = {name: dag[name] for name in ("description", "owners", "relative_fileloc", "is_stale", "max_active_tasks")}
    assert shown == {
        "description": "Makes a report.", "owners": ["ada"], "relative_fileloc": "report.py", "is_stale": False,
        "max_active_tasks": 16,
    }  # fmt: skip
    assert dag["last_parsed_time"] is not None
    of_all = (await site.get("/dags"))["dags"]
    assert [one["dag_id"] for one in of_all if one["timetable_periodic"] or one["is_backfillable"]] == ["daily"]
    assert dag["fileloc"].endswith("/dags/report.py")


async def test_details_and_tasks_come_from_the_newest_version(site):
    found = await site.get("/dags/report/details")
    assert (found["doc_md"], found["active_runs_count"], found["latest_dag_version"]["version_number"]) == (
        "# Report",
        0,
        1,
    )
    assert found["params"]["n"]["value"] == 3
    assert found["timetable_description"] == "Never, external triggers only"
    waits = await site.get("/dags/waits/details")
    ids = {one["name"]: one["id"] for one in (await site.get("/assets"))["assets"]}
    assert waits["asset_expression"] == {
        "all": [
            {"asset": {"name": "orders", "uri": "s3://shop/orders", "group": "shop", "id": ids["orders"]}},
            {"asset": {"name": "never", "uri": "s3://shop/never", "group": "asset", "id": ids["never"]}},
        ]
    }
    tasks = (await site.get("/dags/report/tasks", order_by="-task_id"))["tasks"]
    assert [(task["task_id"], task["is_mapped"]) for task in tasks] == [
        ("sums.load", False), ("extract", False), ("double", True),
    ]  # fmt: skip
    assert [(task["operator_name"], task["task_display_name"]) for task in tasks] == [
        ("@task", "sums.load"), ("@task", "Read the numbers"), ("@task", "double"),
    ]  # fmt: skip
    assert tasks[1]["class_ref"]["class_name"] == "_PythonDecoratedOperator"
    task = await site.get("/dags/fails/tasks/broken")
    assert (task["retries"], task["retry_delay"], task["downstream_task_ids"]) == (
        1, {"__type": "TimeDelta", "days": 0, "seconds": 0, "microseconds": 0}, ["after"],
    )  # fmt: skip


async def test_versions_have_numbers_and_sources(site):
    versions = (await site.get("/dags/~/dagVersions", order_by="-id"))["dag_versions"]
    assert sorted(version["dag_id"] for version in versions) == DAG_IDS
    assert (await site.get("/dags/report/dagVersions/1"))["bundle_name"] == "dags-folder"
    source = await site.get("/dagSources/report")
    assert (source["version_number"], '"""Reports."""' in source["content"]) == (1, True)
    text = await site.client.get("/api/v2/dagSources/report", headers={"accept": "text/plain"})
    assert text.text == source["content"]


async def test_a_source_is_shown_only_to_those_who_may_see_every_dag_of_its_file(site):
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"fails": Permission.VIEW})
    assert "broken" not in (await site.get("/dagSources/fails"))["content"]


async def test_tags_numbers_of_runs_and_warnings_are_listed(site):
    assert (await site.get("/dagTags"))["tags"] == ["numbers", "sales"]
    assert await site.get("/dagTags", tag_name_pattern="sal") == {"tags": ["sales"], "total_entries": 1}
    stats = (await site.get("/dagStats", dag_ids=["fails", "report"]))["dags"]
    assert [(dag["dag_id"], [one["count"] for one in dag["stats"] if one["count"]]) for dag in stats] == [
        ("fails", [1]), ("report", [1]),
    ]  # fmt: skip
    assert await site.get("/dagWarnings") == {"dag_warnings": [], "total_entries": 0}


async def test_pausing_one_dag_or_the_dags_of_a_page_is_in_the_audit(site):
    assert (await site.call("PATCH", "/dags/report", json={"is_paused": True}))["is_paused"]
    assert (await site.call("PATCH", "/dags", json={"is_paused": True}))["dags"] == [], "of none without a pattern"
    sales = {"tags": "sales", "dag_id_pattern": "~"}
    page = await site.call("PATCH", "/dags", params=sales, json={"is_paused": False})
    assert [(dag["dag_id"], dag["is_paused"]) for dag in page["dags"]] == [("fails", False), ("report", False)]
    await site.call("PATCH", "/dags/report", 422, json={"is_paused": True, "tags": []})
    await site.call("PATCH", "/dags/report", 400, params={"update_mask": "tags"}, json={"is_paused": True})
    events = (await site.get("/eventLogs", dag_id="report"))["event_logs"]
    assert {("dag.pause", "ada"), ("dag.unpause", "ada")} <= {(one["event"], one["owner"]) for one in events}


async def test_a_name_that_does_not_exist_is_not_found(site):
    for path in (
        "/dags/reprt", "/dags/reprt/details", "/dags/reprt/tasks", "/dags/report/tasks/extrct",
        "/dags/reprt/dagVersions", "/dags/report/dagVersions/9", "/dagSources/reprt",
    ):  # fmt: skip
        assert (await site.get(path, status=404))["detail"].startswith("There is no "), path


async def test_somebody_sees_only_the_dags_that_they_may_see(site):
    site.access.who = VIEWER
    assert [dag["dag_id"] for dag in (await site.get("/dags"))["dags"]] == ["report"]
    assert [dag["dag_id"] for dag in (await site.get("/dagStats"))["dags"]] == ["report"]
    assert {one["dag_id"] for one in (await site.get("/dags/~/dagVersions"))["dag_versions"]} == {"report"}
    for path in ("/dags/fails", "/dags/fails/details", "/dags/fails/tasks", "/dagSources/fails", "/dags/fails/dagRuns"):
        await site.get(path, status=403)
    await site.call("PATCH", "/dags", 403, json={"is_paused": True})
    site.access.who = Identity("eve", Permission.VIEW, of_dags={"report": Permission.VIEW, "fails": Permission.OPERATE})
    page = await site.call("PATCH", "/dags", params={"dag_id_prefix_pattern": "~"}, json={"is_paused": True})
    assert [dag["dag_id"] for dag in page["dags"]] == ["fails"]
