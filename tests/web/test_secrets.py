"""Airflow's paths of variables and connections."""

import json

from asynsched.store.secrets import get_connection, get_variable
from asynsched.web.access import Identity, Permission

SECRET = "hunter22"
EXTRA = {"token": SECRET, "deep": [{"password": SECRET, "port": 1}], "sslmode": "require"}


async def test_variables_are_created_changed_listed_and_deleted(site):
    made = await site.call("POST", "/variables", 201, json={"key": "a/b", "value": {"x": [1]}, "description": "Two."})
    assert (json.loads(made["value"]), made["description"]) == ({"x": [1]}, "Two.")
    assert made == await site.get("/variables/a/b")
    changed = await site.call("PATCH", "/variables/a/b", json={"key": "a/b", "value": "plain"})
    assert (changed["value"], changed["description"]) == ("plain", "Two.")
    masked = {"json": {"key": "a/b", "value": "no", "description": None}, "params": {"update_mask": "description"}}
    assert (await site.call("PATCH", "/variables/a/b", **masked))["value"] == "plain"
    for params, keys in [
        ({"order_by": "-key", "limit": 2}, ["greeting", "api_key"]),
        ({"variable_key_pattern": "EET|/b"}, ["a/b", "greeting"]),
        ({"variable_key_prefix_pattern": "a"}, ["a/b", "api_key"]),
    ]:
        found = await site.get("/variables", **params)
        assert [variable["key"] for variable in found["variables"]] == keys, params
    await site.call("PATCH", "/variables/a/b", json={"key": "a/b", "value": "x" * 100_000})
    assert (await site.get("/variables", variable_key_pattern="a/b"))["variables"][0]["value"] is None
    assert len((await site.get("/variables/a/b"))["value"]) == 100_000
    await site.call("DELETE", "/variables/a/b", 204)
    await site.get("/variables/a/b", 404)


async def test_secrets_of_variables_and_connections_never_leave(site):
    structure = {"key": "mixed", "value": EXTRA}
    await site.call("POST", "/variables", 201, json=structure)
    body = {"connection_id": "more", "conn_type": "http", "password": SECRET, "extra": json.dumps(EXTRA)}
    assert SECRET not in str(await site.call("POST", "/connections", 201, json=body))
    for path in ("/variables", "/variables/api_key", "/variables/mixed", "/connections", "/connections/more"):
        answer = str(await site.get(path))
        assert SECRET not in answer, path
        assert "***" in answer, path
    assert json.loads((await site.get("/connections/more"))["extra"])["sslmode"] == "require"
    # What a client was shown, it may send back.
    shown = {name: value for name, value in (await site.get("/connections/more")).items() if name != "team_name"}
    await site.call("PATCH", "/connections/more", json=shown | {"host": "here"})
    row = await site.database.read(get_connection, "more")
    assert (row.host, row.password, json.loads(row.extra)) == ("here", SECRET, EXTRA)
    shown = await site.get("/variables/api_key")
    await site.call("PATCH", "/variables/api_key", json={"key": "api_key", "value": shown["value"]})
    assert (await site.database.read(get_variable, "api_key")).value == SECRET
    assert SECRET not in str(await site.get("/eventLogs"))
    site.access.who = Identity(name="bob", permission=Permission.VIEW)
    for path in ("/variables", "/connections/shop"):
        await site.get(path, 403)


async def test_connections_are_created_changed_listed_and_deleted(site):
    body = {"connection_id": "my.web", "conn_type": "http", "port": 80, "description": "Mine."}
    made = await site.call("POST", "/connections", 201, json=body)
    assert {name: made[name] for name in body} == body
    changed = await site.call("PATCH", "/connections/my.web", json=body | {"port": 443, "login": "ada"})
    assert (changed["port"], changed["login"]) == (443, "ada")
    only = {"json": body | {"login": "bob"}, "params": {"update_mask": ["port", "description"]}}
    assert (await site.call("PATCH", "/connections/my.web", **only))["login"] == "ada"
    found = await site.get("/connections", connection_id_pattern="W|sho", order_by="-connection_id")
    assert [one["connection_id"] for one in found["connections"]] == ["shop", "my.web"]
    await site.call("DELETE", "/connections/my.web", 204)
    await site.get("/connections/my.web", 404)


async def test_bad_variables_and_connections_are_refused_with_a_reason(site):
    connection = {"connection_id": "x", "conn_type": "http"}
    for method, path, status, body, word in [
        ("POST", "/variables", 409, {"key": "greeting", "value": 1}, "already exists"),
        ("POST", "/variables", 422, {"key": "x" * 251, "value": 1}, "key"),
        ("POST", "/variables", 422, {"key": "x"}, "value"),
        ("POST", "/variables", 400, {"key": "x", "value": "\0"}, "NUL"),
        ("PATCH", "/variables/greeting", 400, {"key": "other", "value": 1}, "other"),
        ("PATCH", "/variables/greting", 404, {"key": "greting", "value": 1}, "greeting"),
        ("POST", "/connections", 409, connection | {"connection_id": "shop"}, "already exists"),
        ("POST", "/connections", 422, connection | {"connection_id": "a b"}, "connection_id"),
        ("POST", "/connections", 400, connection | {"port": 70_000}, "port"),
        ("POST", "/connections", 400, connection | {"extra": "[1]"}, "JSON object"),
        ("POST", "/connections", 400, connection | {"conn_type": ""}, "type"),
        ("POST", "/connections/test", 403, connection, "hook"),
        ("PATCH", "/connections/shop", 400, connection, "shop"),
        ("GET", "/connections?order_by=host", 400, None, "conn_type"),
    ]:
        assert word in str(await site.call(method, path, status, json=body)), (method, path, body)


async def test_many_variables_and_connections_change_in_one_request(site):
    for path, name, entity in [
        ("variables", "key", {"value": "1"}),
        ("connections", "connection_id", {"conn_type": "http"}),
    ]:
        actions = [
            {"action": "create", "entities": [{name: "one", **entity}, {name: "two", **entity}]},
            {"action": "update", "entities": [{name: "one", **entity, "description": "First."}]},
            {"action": "delete", "entities": ["two"]},
        ]
        done = await site.call("PATCH", f"/{path}", json={"actions": actions})
        assert [done[word] for word in ("create", "update", "delete")] == [
            {"success": ["one", "two"], "errors": []},
            {"success": ["one"], "errors": []},
            {"success": ["two"], "errors": []},
        ]
        assert (await site.get(f"/{path}/one"))["description"] == "First."
