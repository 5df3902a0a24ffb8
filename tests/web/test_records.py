"""Airflow's paths of import errors, event logs, jobs, plugins, providers, health and version."""

import sqlalchemy as sa

from asynsched.store.schema import scheduler
from asynsched.web.access import Identity, Permission


async def test_import_errors_are_listed_by_file(site):
    [error] = (await site.get("/importErrors", order_by="-timestamp"))["import_errors"]
    assert (error["filename"], error["bundle_name"]) == ("broken.py", "dags-folder")
    assert "nothing_of_that_name" in error["stack_trace"]
    number = error["import_error_id"]
    assert await site.get(f"/importErrors/{number}") == error
    for params, total in [
        ({"filename": "broken.py"}, 1),
        ({"filename": "broken"}, 0),
        ({"filename_pattern": "OKEN"}, 1),
        ({"filename_prefix_pattern": "oken"}, 0),
        ({"bundle_name": "other"}, 0),
    ]:
        assert (await site.get("/importErrors", **params))["total_entries"] == total, params
    await site.get(f"/importErrors/{number + 1}", 404)
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"report": Permission.VIEW})
    await site.get(f"/importErrors/{number}", 404)


async def test_event_logs_tell_who_did_what(site):
    await site.call("PATCH", "/dags/daily", json={"is_paused": False})
    await site.call("POST", "/pools", 201, json={"name": "small", "slots": 1})
    site.access.who = Identity(name="eve", permission=Permission.OPERATE)
    await site.call("PATCH", "/dags/fails", json={"is_paused": True})
    answer = "/dags/asks/dagRuns/first/taskInstances/approve/-1/hitlDetails"
    await site.call("PATCH", answer, json={"chosen_options": ["Approve"]})
    for params, found in [
        ({"order_by": "-event_log_id", "limit": 2}, [("task.answer", "eve", "asks"), ("dag.pause", "eve", "fails")]),
        ({"event": "dag.unpause"}, [("dag.unpause", "ada", "daily")]),
        ({"dag_id": "fails", "excluded_events": "dag.trigger"}, [("dag.pause", "eve", "fails")]),
        ({"included_events": ["dag.pause", "dag.unpause"], "owner": "ada"}, [("dag.unpause", "ada", "daily")]),
        ({"event_pattern": "POOL"}, [("pool.set", "ada", None)]),
        ({"owner_prefix_pattern": "ev"}, [("dag.pause", "eve", "fails"), ("task.answer", "eve", "asks")]),
        ({"before": "2020-01-01T00:00:00Z"}, []),
        ({"map_index": -1}, [("task.answer", "eve", "asks")]),
        ({"map_index": 0}, []),
        ({"try_number": 1}, []),
        (
            {"event_prefix_pattern": "pool.x|~", "event_pattern": "~", "owner": "program", "dag_id": "asks"},
            [("dag.trigger", "program", "asks")],
        ),
        (
            {"after": "2020-01-01T00:00:00", "run_id": "first", "event": "dag.trigger", "dag_id": "asks"},
            [("dag.trigger", "program", "asks")],
        ),
    ]:
        rows = (await site.get("/eventLogs", **params))["event_logs"]
        assert [(row["event"], row["owner"], row["dag_id"]) for row in rows] == found, params
    [made] = (await site.get("/eventLogs", event="pool.set"))["event_logs"]
    assert made == await site.get(f"/eventLogs/{made['event_log_id']}")
    assert made["extra"] == '{"name":"small","slots":1}'
    site.access.who = Identity(name="bob", permission=Permission.VIEW, of_dags={"daily": Permission.VIEW})
    assert {row["dag_id"] for row in (await site.get("/eventLogs"))["event_logs"]} == {"daily"}
    await site.get(f"/eventLogs/{made['event_log_id']}", 404)


async def test_jobs_are_the_schedulers(site):
    executors = {"LocalExecutor": 8, "DockerExecutor": 8}
    await site.database.write(lambda conn: conn.execute(sa.update(scheduler).values(executors=executors)))
    [job] = (await site.get("/jobs"))["jobs"]
    assert (job["job_type"], job["state"], job["end_date"] is None) == ("SchedulerJob", "success", False)
    for params, total in [
        ({"is_alive": True}, 0),
        ({"is_alive": False, "job_type": "SchedulerJob", "hostname": job["hostname"]}, 1),
        ({"job_type": "TriggererJob"}, 0),
        ({"job_state": "running"}, 0),
        ({"start_date_gte": job["start_date"], "end_date_lte": job["end_date"]}, 1),
        ({"start_date_gt": job["start_date"]}, 0),
        ({"executor_class": "DockerExecutor"}, 1),
        ({"executor_class": "Docker"}, 0),
    ]:
        assert (await site.get("/jobs", **params))["total_entries"] == total, params
    await site.database.write(lambda conn: conn.execute(sa.update(scheduler).values(ended_at=None)))
    for params, total in [({"end_date_gt": "2100-01-01"}, 1), ({"end_date_lt": "2000-01-01"}, 0)]:
        assert (await site.get("/jobs", **params))["total_entries"] == total, params
    health = await site.get("/monitor/health")
    assert (health["metadatabase"]["status"], health["scheduler"]["status"]) == ("healthy", "unhealthy")


async def test_version_providers_and_plugins_are_told(site):
    assert (await site.get("/version"))["version"] == "3.3.2"
    assert (await site.get("/providers"))["total_entries"] == 0
    assert (await site.get("/plugins")) == {"plugins": [], "total_entries": 0}
    folder = site.settings.plugins_path
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(
        "from airflow.plugins_manager import AirflowPlugin\n"
        "def shout(text):\n    return text.upper()\n"
        "class Own(AirflowPlugin):\n    name = 'own'\n    macros = [shout]\n"
    )
    (folder / "bad.py").write_text("import nothing_of_that_name\n")
    try:
        [plugin] = (await site.get("/plugins"))["plugins"]
        assert (plugin["name"], plugin["macros"], plugin["listeners"]) == ("own", ["shout"], [])
        [error] = (await site.get("/plugins/importErrors"))["import_errors"]
        assert "nothing_of_that_name" in error["error"]
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
