"""Airflow's paths of backfills."""

import threading
from functools import partial

from asynsched.queries import backfills
from asynsched.web.access import Identity, Permission

SPAN = {"dag_id": "daily", "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-03T00:00:00"}


def not_on_the_loop(function, *args):
    assert threading.current_thread() is not threading.main_thread()
    return function(*args)


async def test_a_backfill_is_tried_created_paused_and_cancelled(site, monkeypatch):
    monkeypatch.setattr(backfills, "compute_span", partial(not_on_the_loop, backfills.compute_span))
    dates = (await site.call("POST", "/backfills/dry_run", json=SPAN | {"run_backwards": True}))["backfills"]
    assert [date["logical_date"] for date in dates] == [f"2026-01-0{day}T00:00:00Z" for day in (3, 2, 1)]
    made = await site.call("POST", "/backfills", json=SPAN | {"max_active_runs": 2, "dag_run_conf": {"a": 1}})
    assert (made["reprocess_behavior"], made["max_active_runs"], made["dag_run_conf"]) == ("none", 2, {"a": 1})
    path = f"/backfills/{made['id']}"
    assert (await site.call("PUT", f"{path}/pause"))["is_paused"]
    assert not (await site.call("PUT", f"{path}/unpause"))["is_paused"]
    assert (await site.get("/backfills", dag_id="daily"))["backfills"] == [await site.get(path)]
    assert (await site.get("/backfills", dag_id="fails"))["total_entries"] == 0
    again = await site.call("POST", "/backfills", 409, json=SPAN)
    assert str(made["id"]) in again["detail"]
    site.access.who = Identity(name="bob", permission=Permission.OPERATE, of_dags={"daily": Permission.VIEW})
    await site.call("PUT", f"{path}/cancel", 403)
    await site.get("/backfills", 403, dag_id="fails")
    site.access.who = Identity(name="ada", permission=Permission.OPERATE)
    assert (await site.call("PUT", f"{path}/cancel"))["completed_at"] is not None
    assert "already cancelled" in (await site.call("PUT", f"{path}/pause", 409))["detail"]


async def test_backfills_that_cannot_be_are_refused_with_a_reason(site):
    for body, status, word in [
        (SPAN | {"dag_id": "dialy"}, 404, "daily"),
        (SPAN | {"dag_id": "fails"}, 422, "periodic"),
        (SPAN | {"to_date": "2025-01-01T00:00:00Z"}, 422, "after its end"),
        (SPAN | {"max_active_runs": 0}, 422, "max_active_runs"),
        (SPAN | {"reprocess_behavior": "all"}, 422, "reprocess_behavior"),
    ]:
        for path in ("/backfills", "/backfills/dry_run"):
            assert word in str(await site.call("POST", path, status, json=body)), (path, body)
    for method, path in [("GET", "/backfills/99"), ("PUT", "/backfills/99/cancel"), ("PUT", "/backfills/99/pause")]:
        await site.call(method, path, 404)
    await site.get("/backfills", 422)
