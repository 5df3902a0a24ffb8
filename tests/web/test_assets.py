"""Airflow's paths of assets."""

from asynsched.web.access import Identity, Permission


async def test_assets_are_listed_with_the_dags_and_tasks_that_name_them(site):
    for params, names in [
        ({"order_by": "-name"}, ["orders", "never", "found"]),
        ({"name_pattern": "EV|ORD", "limit": 1, "order_by": "name"}, ["never"]),
        ({"name_prefix_pattern": "or"}, ["orders"]),
        ({"uri_pattern": "shop/f"}, ["found"]),
        ({"uri_prefix_pattern": "shop"}, []),
        ({"dag_ids": ["follows"]}, ["orders"]),
        ({"dag_ids": "follows,nope"}, ["orders"]),
    ]:
        assert [asset["name"] for asset in (await site.get("/assets", **params))["assets"]] == names, params
    orders, found = (await site.get("/assets", name_pattern="orders|found", order_by="-name"))["assets"]
    assert (orders["group"], orders["extra"]) == ("shop", {"owner": "sales"})
    assert [dag["dag_id"] for dag in orders["scheduled_dags"]] == ["follows", "waits"]
    assert [(task["dag_id"], task["task_id"]) for task in orders["producing_tasks"]] == [("report", "sums.load")]
    assert [alias["name"] for alias in found["aliases"]] == ["anything"]
    assert orders == await site.get(f"/assets/{orders['id']}")
    [alias] = (await site.get("/assets/aliases", name_pattern="any"))["asset_aliases"]
    assert alias == await site.get(f"/assets/aliases/{alias['id']}")
    for path in ("/assets/999", "/assets/aliases/999"):
        await site.get(path, 404)
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"waits": Permission.VIEW})
    assert (await site.get("/assets/aliases"))["total_entries"] == 0
    await site.get(f"/assets/aliases/{alias['id']}", 404)
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"report": Permission.VIEW})
    assert await site.get(f"/assets/aliases/{alias['id']}") == alias


async def test_events_are_listed_with_the_runs_that_they_triggered(site):
    [event] = (await site.get("/assets/events", name_pattern="orders"))["asset_events"]
    assert (event["extra"], event["source_task_id"]) == ({"rows": 2}, "sums.load")
    assert [(run["dag_id"], run["state"]) for run in event["created_dagruns"]] == [("follows", "success")]
    for params, total in [
        ({}, 2),
        ({"asset_id": event["asset_id"], "timestamp_gte": event["timestamp"]}, 1),
        ({"timestamp_lt": "2020-01-01T00:00:00Z"}, 0),
        ({"source_dag_id": "report", "source_run_id": "first", "source_map_index": -1}, 2),
        ({"source_task_id": "other"}, 0),
    ]:
        assert (await site.get("/assets/events", **params))["total_entries"] == total, params
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"waits": Permission.VIEW})
    assert (await site.get("/assets/events"))["asset_events"] == []
    [orders] = (await site.get("/assets", name_pattern="orders"))["assets"]
    assert ([dag["dag_id"] for dag in orders["scheduled_dags"]], orders["producing_tasks"]) == (["waits"], [])


async def test_an_event_from_outside_waits_for_the_dags_of_its_asset(site):
    [never] = (await site.get("/assets", name_pattern="never"))["assets"]
    made = await site.call("POST", "/assets/events", json={"asset_id": never["id"], "extra": {"by": "hand"}})
    extra = {"by": "hand", "from_rest_api": True}
    assert (made["name"], made["extra"], made["source_dag_id"]) == ("never", extra, None)
    assert (await site.get(f"/assets/{never['id']}"))["last_asset_event"]["id"] == made["id"]
    queued = (await site.get("/dags/waits/assets/queuedEvents"))["queued_events"]
    assert {event["asset_id"] for event in queued} >= {never["id"]}
    assert (await site.get(f"/assets/{never['id']}/queuedEvents"))["total_entries"] == 1
    path = f"/dags/waits/assets/{never['id']}/queuedEvents"
    assert (await site.get(path))["asset_id"] == never["id"]
    await site.get(path, 404, before="2020-01-01T00:00:00")
    await site.call("DELETE", path, 404, params={"before": "2020-01-01T00:00:00"})
    await site.call("DELETE", path, 204)
    await site.call("DELETE", f"/assets/{never['id']}/queuedEvents", 404)
    await site.call("DELETE", "/dags/waits/assets/queuedEvents", 204)
    assert (await site.get("/dags/waits/assets/queuedEvents"))["queued_events"] == []
    for body, status in [
        ({"asset_id": 999}, 404),
        ({"asset_id": never["id"], "partition_key": " "}, 422),
        ({"asset_id": never["id"], "extra": []}, 422),
        ({"asset_id": never["id"], "access_control": {"consumer_teams": ["red"]}}, 422),
    ]:
        await site.call("POST", "/assets/events", status, json=body)


async def test_an_asset_is_materialized_by_its_only_producer(site):
    ids = {asset["name"]: asset["id"] for asset in (await site.get("/assets"))["assets"]}
    run = await site.call("POST", f"/assets/{ids['orders']}/materialize", json={"conf": {"n": 1}, "dag_run_id": "mine"})
    assert (run["dag_id"], run["dag_run_id"], run["conf"]) == ("report", "mine", {"n": 1})
    assert (await site.call("POST", f"/assets/{ids['orders']}/materialize"))["dag_id"] == "report"
    await site.call("POST", f"/assets/{ids['never']}/materialize", 404)
    await site.call("POST", f"/assets/{ids['orders']}/materialize", 400, json={"conf": {"n": -1}})
    site.access.who = Identity(name="bob", permission=Permission.OPERATE, of_dags={"report": Permission.VIEW})
    await site.call("POST", f"/assets/{ids['orders']}/materialize", 403)
