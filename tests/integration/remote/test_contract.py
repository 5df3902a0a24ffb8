"""What every executor does alike: here, and on another machine."""

import re

import anyio

from asynsched.executors.log_paths import callback_log_path
from asynsched.keys import TaskInstanceKey
from asynsched.queries.runs import list_callbacks
from asynsched.queries.try_logs import follow_log
from asynsched.settings import CallbacksSettings
from asynsched.store.dags.dags import latest_version
from tests.integration.remote.dags import CALLBACKS, DAGS, REST
from tests.integration.remote.machines import ELSEWHERE, MARKS, ROOT, Site
from tests.support.waiting import eventually_true


async def test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs(site: Site):
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        await client.set_variable("api_password", "hunter2-hunter2")
        key = await scheduler.trigger("all")
        await site.until_said("first, version 1")
        with anyio.fail_after(60):
            async for part in follow_log(scheduler._context(), TaskInstanceKey(*key, "first"), 1, start=0):
                if "line 1999" in part.text:
                    break  # the log can be followed while the task runs
        # The run keeps its version of the code, on every machine.
        site.program.write(DAGS.replace("VERSION = 1", "VERSION = 2"))
        await eventually_true(scheduler._database, has_two_versions)
        site.let_go()
        run = await site.end_of(scheduler, key)
        logs = {task.task_id: await client.task_logs(TaskInstanceKey(*key, task.task_id)) for task in run.tasks}
    assert [(task.task_id, task.state) for task in run.tasks] == [
        ("first", "success"), ("second", "success"), ("fails", "failed"),
    ]  # fmt: skip
    assert [task.result for task in run.tasks] == [{"n": 41}, [42, [1, "two"], 1], None]
    assert "no luck" in run.tasks[2].reason
    assert site.said() == ["first, version 1", "second, version 1"]
    text = logs["first"].text
    assert re.findall(r"line (\d+)$", text, re.MULTILINE) == [str(n) for n in range(2000)]
    assert "the password is ***" in text
    assert "hunter2" not in text
    assert logs["first"].is_last
    assert "The log has reached its limit" in logs["fails"].text
    assert 200_000 < len(logs["fails"].text) < 250_000


async def test_a_try_is_ended_for_a_user_and_runs_again_after_that(site: Site):
    site.program.write(DAGS)
    site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        assert len(scheduler.running().tries) == (not site.is_remote), "those that a stop waits for"
        await scheduler.mark_tasks(key, ["waits"], "failed")
        assert (await site.end_of(scheduler, key)).state == "failed"
        site.let_go()
        await scheduler.clear_tasks(key)
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said()[0] == "begins 1"
    assert [line.split()[0] for line in site.said()[1:]] == ["begins", "ends"], "the first has not gone on"


async def test_many_tries_end_once_each(site: Site):
    site.program.write(DAGS)
    for name in ("m1", "m2"):
        site.machine(name)
    (site.root / "copies").write_text("2")  # the engine delivers each ticket twice
    async with site.serving() as scheduler:
        run = await scheduler.run("counts")
    assert run.state == "success"
    assert sorted(site.said()) == sorted(f"count {n}" for n in range(20))


async def test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values(site: Site, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(MARKS, str(site.marks))  # for the callback, too
    site.program.write(REST)
    site.machine()
    async with site.serving(xcom_backend="tests.support.large_xcoms.LargeXComs") as scheduler:
        run = await scheduler.run("rest")
        [event] = (await scheduler.client().list_asset_events()).items
        await site.until_said("called here")
    tasks = {task.task_id: task for task in run.tasks}
    assert tasks["waits"].result == ["here", ELSEWHERE if site.is_remote else "here"], "only triggers stay here"
    assert (tasks["lasts"].state, tasks["lasts"].reason) == ("failed", "execution_timeout of 1 s is over")
    assert (event.name, event.extra, event.source_task_id) == ("rows", {"n": 3}, "produces")
    assert tasks["makes"].result == f"kept in {site.marks}/xcom of makes"
    assert tasks["takes"].result == (1000, []), "the whole value, and no setting of the worker"


async def test_callbacks_run_where_a_setting_says(site: Site):
    site.program.write(CALLBACKS)
    site.machine()
    executor = site.executor.partition("=")[0]
    async with site.serving(callbacks=CallbacksSettings(executor=executor)) as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("calls")
        site.let_go()
        run = await site.end_of(scheduler, key)
        await site.until_said("over")
        await eventually_true(scheduler._database, lambda conn: has_ended(conn, key))
        variable = await client.get_variable("called")
    place = ELSEWHERE if site.is_remote else "here"
    assert run.state == "failed"
    assert site.said() == [f"called {place}", "over"]
    assert variable.value == place, "its requests are answered"
    log = site.root / "home/logs" / callback_log_path(TaskInstanceKey(*key, ""), "on_failure", 0)
    assert re.findall(r"line \d+$", log.read_text(), re.MULTILINE) == ["line 1", "line 2"]


def has_ended(conn, key):
    return [one.state for one in list_callbacks(conn, key).items] == ["success"]


def has_two_versions(conn):
    return latest_version(conn, "all").number == 2


async def test_a_cleared_try_runs_again_only_when_the_one_before_has_ended(far_site: Site):
    site = far_site
    site.machine("m1")
    site.machine("m2")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("alone")
        await site.until_said("alone 1")
        # The process ignores the request to end, so it goes on for the whole kill time.
        await scheduler.mark_tasks(key, ["alone"], "success")
        await scheduler.clear_tasks(key)
        await site.until_said("alone 2")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert site.said() == ["alone 1", "alone 2"]
