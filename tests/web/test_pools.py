"""Airflow's paths of pools."""


async def test_pools_are_created_changed_listed_and_deleted(site):
    made = await site.call("POST", "/pools", 201, json={"name": "a/b", "slots": 3, "include_deferred": True})
    assert (made["name"], made["slots"], made["open_slots"], made["include_deferred"]) == ("a/b", 3, 3, True)
    changed = await site.call("PATCH", "/pools/a/b", json={"slots": -1, "description": "Both."})
    assert changed == await site.get("/pools/a/b")
    assert (changed["open_slots"], changed["description"], changed["include_deferred"]) == (-1, "Both.", True)
    masked = {"json": {"slots": 7, "description": "Other."}, "params": {"update_mask": "slots"}}
    masked = await site.call("PATCH", "/pools/a/b", **masked)
    assert (masked["slots"], masked["description"]) == (7, "Both.")
    for params, names in [
        ({"order_by": "-name", "limit": 1}, ["default_pool"]),
        ({"pool_name_pattern": "A"}, ["a/b", "default_pool"]),
        ({"pool_name_prefix_pattern": "a"}, ["a/b"]),
    ]:
        assert [pool["name"] for pool in (await site.get("/pools", **params))["pools"]] == names, params
    await site.call("DELETE", "/pools/a/b", 204)
    assert "a/b" in (await site.get("/pools/a/b", 404))["detail"]


async def test_requests_for_pools_that_are_wrong_say_why(site):
    for method, path, status, body, word in [
        ("POST", "/pools", 409, {"name": "default_pool", "slots": 1}, "already exists"),
        ("POST", "/pools", 422, {"name": "x", "slots": -2}, "slots"),
        ("POST", "/pools", 422, {"name": "x", "slots": 1, "team_name": "a"}, "teams"),
        ("POST", "/pools", 400, {"name": "x", "slots": 2**40}, "slots"),
        ("POST", "/pools", 422, {"name": "x" * 257, "slots": 1}, "<= 256"),
        ("PATCH", "/pools/default_pool", 400, {"description": "x" * 5001}, "at most 5000"),
        ("PATCH", "/pools/default_pool", 400, {"pool": "other"}, "other"),
        ("PATCH", "/pools/defualt_pool", 404, {"slots": 1}, "default_pool"),
        ("DELETE", "/pools/default_pool", 400, None, "cannot be deleted"),
        ("GET", "/pools?order_by=colour", 400, None, "name"),
    ]:
        assert word in str(await site.call(method, path, status, json=body)), (method, path, body)


async def test_many_pools_change_in_one_request(site):
    actions = [
        {"action": "create", "entities": [{"name": "one", "slots": 1}, {"name": "two", "slots": 2}]},
        {"action": "create", "entities": [{"name": "one", "slots": 9}, {"name": "three", "slots": 3}]},
        {"action": "create", "action_on_existence": "skip", "entities": [{"name": "one", "slots": 9}]},
        {"action": "create", "action_on_existence": "overwrite", "entities": [{"name": "two", "slots": 8}]},
        {"action": "update", "entities": [{"name": "one", "slots": 5}], "update_mask": ["slots"]},
        {"action": "update", "entities": [{"name": "none", "slots": 5}]},
        {"action": "delete", "action_on_non_existence": "skip", "entities": ["none", {"name": "two", "slots": 0}]},
        {"action": "delete", "entities": ["default_pool"]},
    ]
    done = await site.call("PATCH", "/pools", json={"actions": actions})
    assert {word: answer["success"] for word, answer in done.items()} == {
        "create": ["one", "two", "two"],
        "update": ["one"],
        "delete": ["two"],
    }
    assert {word: [error["status_code"] for error in answer["errors"]] for word, answer in done.items()} == {
        "create": [409],
        "update": [404],
        "delete": [400],
    }
    listed = (await site.get("/pools"))["pools"]
    assert [(pool["name"], pool["slots"]) for pool in listed] == [("default_pool", 128), ("one", 5)]
