"""Tasks and their ends, end to end: real DAG files, real processes, read back by the command line."""

import json
import shutil
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import Site

DATABASES = ("sqlite",)

DAGS = Path(__file__).parent / "dags" / "tasks"
LOGICAL_DATE = "2026-02-03T00:00:00Z"


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    """Return a site on which every DAG of the folder has had one run, and no scheduler serves any more."""
    site = new_site()
    shutil.copytree(DAGS, site.dags, dirs_exist_ok=True)
    site.env |= {"MARKS": str(site.root / "marks"), "FOR_TASKS": "a value"}
    site.run("pools", "set", "single", "1")
    site.run("variables", "set", "a_variable", "its value")
    site.run("variables", "set", "patience", "7200")
    site.run("connections", "add", "somewhere", "--conn-uri", "http://user:pass@host.example:8080/path")
    with site.up():
        site.wait_for_dag("values")
        site.run("dags", "trigger", "values", "--wait", "--run-id", "by_hand", "--logical-date", LOGICAL_DATE)
        at_once = {dag["dag_id"] for dag in site.json("dags", "list")} - {"values"}

        def unfinished() -> set[str]:
            ended = {run["dag_id"] for run in site.json("runs", "list") if run["state"] in ("success", "failed")}
            return at_once - ended

        def callbacks_have_ended() -> bool:
            callbacks = [*run_shown(site, "callback_context")["callbacks"], *run_shown(site, "late")["callbacks"]]
            return {callback["state"] for callback in callbacks} <= {"success", "failed"}

        site.until(lambda: not unfinished(), "every @once run has ended", seconds=60)
        site.until(callbacks_have_ended, "the callbacks of every run have ended", seconds=60)
    return site


def run_of(site: Site, dag_id: str) -> dict[str, Any]:
    [run] = site.runs(dag_id)
    return run


def run_shown(site: Site, dag_id: str) -> dict[str, Any]:
    return site.json("runs", "show", dag_id, run_of(site, dag_id)["run_id"])


def tasks_of(site: Site, dag_id: str) -> dict[str, dict[str, Any]]:
    return {task["task_id"]: task for task in site.json("tasks", "list", dag_id, run_of(site, dag_id)["run_id"])}


def states_of(site: Site, dag_id: str) -> dict[str, str]:
    return {task_id: task["state"] for task_id, task in tasks_of(site, dag_id).items()}


def log_of(site: Site, dag_id: str, task_id: str, *options: str) -> str:
    return site.run("tasks", "logs", dag_id, run_of(site, dag_id)["run_id"], task_id, *options).stdout


def test_every_end_of_a_task_is_told_with_its_reason(site):
    tasks = tasks_of(site, "ends")
    assert {task_id: task["state"] for task_id, task in tasks.items()} == {
        "busy_at_first": "success",
        "not_allowed": "failed",
        "third_time_lucky": "success",
        "never_lucky": "failed",
        "after_never_lucky": "upstream_failed",
        "hopeless": "failed",
        "not_today": "skipped",
        "after_not_today": "skipped",
        "leaves": "failed",
        "leaves_at_once": "failed",
        "is_killed": "failed",
        "returns_an_object": "failed",
        "takes_too_long": "failed",
        "bash_fails": "failed",
        "bash_skips": "skipped",
    }
    words = {
        "never_lucky": "unlucky for ever", "hopeless": "no try will help", "not_today": "not today", "leaves": "3",
        "leaves_at_once": "4", "is_killed": "SIGKILL", "returns_an_object": "type object", "takes_too_long": "1",
        "bash_fails": "7", "not_allowed": "no try would help", "after_never_lucky": "1 failed",
        "after_not_today": "1 skipped",
    }  # fmt: skip
    assert {
        task_id: tasks[task_id]["reason"] for task_id in words if words[task_id] not in tasks[task_id]["reason"]
    } == {}
    tries = {"third_time_lucky": 3, "never_lucky": 2, "hopeless": 1, "busy_at_first": 2, "not_allowed": 1}
    assert {task_id: tasks[task_id]["try_number"] for task_id in tries} == tries
    assert run_of(site, "ends")["state"] == "failed"
    assert run_of(site, "ends")["reason"] != ""


def test_a_run_that_fails_fast_or_is_out_of_time_kills_what_runs(site):
    assert states_of(site, "fails_fast") == {
        "sleeps": "failed", "breaks": "failed", "after": "skipped", "cleans": "success",
    }  # fmt: skip
    assert tasks_of(site, "fails_fast")["sleeps"]["reason"] == "fail_fast: task breaks has failed"
    assert states_of(site, "out_of_time") == {"sleeps": "skipped", "cleans": "skipped"}
    run = run_of(site, "out_of_time")
    assert (run["state"], "dagrun_timeout" in run["reason"]) == ("failed", True)


def test_kills_by_the_machine_have_their_own_retries_and_call_callbacks(site):
    task = tasks_of(site, "ends")["is_killed"]
    assert (task["try_number"], task["state"]) == (4, "failed")
    for number in (1, 2, 3, 4):
        assert f"lost: {number} killed by SIGKILL" in log_of(site, "ends", "is_killed", "--try", str(number))


def test_each_try_has_its_log(site):
    for number in (1, 2, 3):
        log = log_of(site, "ends", "third_time_lucky", "--try", str(number))
        assert f"this is try {number}" in log
        assert ("unlucky" in log) == (number < 3)
    assert "before the end" in log_of(site, "ends", "bash_fails")
    assert "Traceback" in log_of(site, "ends", "never_lucky")


def test_trigger_rules_decide_from_what_is_upstream(site):
    ran, skipped, failed = "success", "skipped", "upstream_failed"
    expected = {
        "all_success": (failed, ran, failed, skipped),
        "all_done": (ran, ran, ran, ran),
        "all_failed": (skipped, skipped, ran, skipped),
        "one_success": (ran, ran, failed, skipped),
        "one_failed": (ran, skipped, ran, skipped),
        "none_failed": (failed, ran, failed, ran),
        "always": (ran, ran, ran, ran),
    }
    states = states_of(site, "rules")
    assert {
        rule: tuple(states[f"{rule}_of_{upstream}"] for upstream in ("all", "good", "bad", "skipped"))
        for rule in expected
    } == expected


def test_runs_follow_branches_short_circuits_and_conditions(site):
    assert states_of(site, "branches") == {
        "choose": "success",
        "left": "success",
        "right": "skipped",
        "grouped.first": "success",
        "grouped.second": "success",
        "join": "success",
        "choose_none": "success",
        "not_followed": "skipped",
        "choose_wrong": "failed",
        "below_wrong": "upstream_failed",
    }
    assert "nowhere" in tasks_of(site, "branches")["choose_wrong"]["reason"]
    assert states_of(site, "short_circuits") == {
        "go": "success",
        "went": "success",
        "stop_all": "success",
        "stopped": "skipped",
        "stopped_too": "skipped",
        "stop_here": "success",
        "stopped_here": "skipped",
        "not_stopped": "success",
    }
    assert run_of(site, "short_circuits")["state"] == "success"
    assert states_of(site, "conditions") == {"runs": "success", "does_not_run": "skipped", "waits": "success"}


def test_values_travel_by_xcom_template_variable_and_connection(site):
    def returned(task_id: str) -> Any:
        xcoms = site.json("tasks", "xcom", "values", "by_hand", task_id)
        return next(xcom["value"] for xcom in xcoms if xcom["key"] == "return_value")

    assert run_of(site, "values")["state"] == "success", states_of(site, "values")
    assert returned("extract") == {"rows": [1, 2, 3], "name": "täst"}
    assert returned("total") == {"name": "täst", "total": 6}
    assert returned("doubled") == 12
    days = {"at": "2026-01-01T00:00:00+00:00", "later": "2026-01-02T00:00:00+00:00"}
    assert returned("pulls") == {"a": None, "tags": ["x"], "is_set": True, **days}
    assert returned("says") == "hello 2026-02-03 12"
    assert returned("templated") == "values/templated 20260203T000000 2026-02-04"
    assert returned("asks") == ["its value", "host.example", 8080]


def test_a_task_inherits_the_environment_but_no_secret_of_the_scheduler(site):
    [xcom] = site.json("tasks", "xcom", "values", "by_hand", "sees")
    assert xcom["value"] == {"ours": [], "mine": "a value", "secret": []}


def test_callbacks_of_tasks_and_runs_are_called(site):
    marks = (site.root / "marks").read_text().splitlines()
    assert sorted(mark for mark in marks if not mark.startswith(("enter", "leave", "late"))) == [
        "deadline awaited second scheduled",
        "deadline missed first scheduled",
        "deadline own own scheduled",
        "run failed callbacks",
        "task failed fails",
        "task retries fails",
        "task succeeded succeeds",
    ]


def test_callbacks_get_their_own_try_and_a_failed_one_is_seen_everywhere(site):
    shown = run_shown(site, "callback_context")
    states = {(item["event"], item["task_id"], item["try_number"]): item["state"] for item in shown["callbacks"]}
    assert states == {("on_retry", "fails", 1): "success", ("on_failure", "fails", 2): "failed"} | {
        ("on_failure", "", 0): "failed"
    }
    told = {"is_unlucky": True, "args": [7, "why"], "max_tries": 1, "lasted": True}
    first, second = (log_of(site, "callback_context", "fails", "--try", number) for number in ("1", "2"))
    assert last_json(first) == {**told, "state": "up_for_retry", "try_number": 1}
    assert last_json(second) == {**told, "state": "failed", "try_number": 2}
    assert "--- on_retry_callback: success\n" in first
    assert "--- on_failure_callback: failed\n" in second
    assert "callback_context.py" in second.partition("--- on_failure")[2]
    log = site.run("runs", "logs", "callback_context", shown["run_id"]).stdout
    assert "LookupError: broken callback" in log
    assert last_json(log) == {"reason": "task_failure", "state": "failed"}
    parts = ["==> fails, try 1: failed <==", "--- on_retry_callback: success"]
    parts += ["==> fails, try 2: failed <==", "--- on_failure_callback: failed"]
    parts += [f"==> {shown['run_id']}: failed <==", "--- on_failure_callback: failed"]
    assert [line for line in log.splitlines() if line.startswith(("==>", "---"))] == parts
    assert log.startswith(f"{parts[0]}\n{first}{parts[2]}\n{second}{parts[4]}\n")
    logs = site.json("runs", "logs", "callback_context", "latest")
    assert [[item["task_id"], item["try_number"], len(item["callbacks"])] for item in logs["tries"]] == [
        ["fails", 1, 1], ["fails", 2, 1],
    ]  # fmt: skip
    assert [item["log"] in log for item in logs["tries"] + logs["callbacks"]] == [True, True, True]
    complaints = [line for line in site.story().splitlines() if "callback.failed" in line and "callback=on_" in line]
    assert len(complaints) == 2
    for line in complaints:
        assert "callback breaks failed: LookupError: broken callback" in line
        assert "callback_context" in line
        assert shown["run_id"] in line


def last_json(text: str) -> Any:
    """Return the value that the last line of a log holds, behind its time."""
    return json.loads(text.splitlines()[-1].partition("] ")[2])


def test_a_task_may_ask_about_itself_and_about_runs_of_any_dag(site):
    run = run_of(site, "elsewhere")
    xcoms = site.json("tasks", "xcom", "elsewhere", run["run_id"], "asks")
    assert [xcom["value"] for xcom in xcoms if xcom["key"] == "return_value"] == [
        {
            "counts": [2, 1, 1, 1, 0],
            "states": ["asks", "group.first", "success"],
            "state": "running",
            "before": [None, None],
            "about": ["@task", "default_pool", "default", False, "running", "running"],
            "log": ["asynsched", "tasks", "logs"],
        }
    ]


def test_deadlines_of_a_run_are_shown_with_it(site):
    [run] = site.runs("late")
    deadlines = site.json("runs", "show", "late", run["run_id"])["deadlines"]
    assert [(deadline["name"], deadline["state"]) for deadline in deadlines] == [
        ("first", "missed"),
        ("second", "missed"),
        ("", "met"),
        ("own", "missed"),
        ("", "met"),
    ]
    own, by_variable = (datetime.fromisoformat(deadline["due_at"]) for deadline in deadlines[3:])
    assert (own, by_variable - own) == (datetime.fromisoformat(run["queued_at"]), timedelta(hours=2))
    assert "missed" in site.run("runs", "show", "late", run["run_id"]).stdout
    logs = site.run("runs", "logs", "late", run["run_id"]).stdout
    assert logs.count("--- on_deadline_miss_callback: success (the deadline ") == 3
    assert "the variable 'a_variable' must be a number of seconds" in logs, "a deadline whose code fails does not exist"


def test_tasks_of_a_pool_with_one_slot_run_one_after_another(site):
    tasks = sorted(tasks_of(site, "pooled").values(), key=lambda task: task["started_at"])
    assert len(tasks) == 4
    assert all(before["ended_at"] <= after["started_at"] for before, after in pairwise(tasks))


def test_what_a_task_instance_shows_is_complete_and_in_order(site):
    task = tasks_of(site, "values")["total"]
    assert set(task) >= {
        "task_id", "map_index", "state", "reason", "try_number", "scheduled_at", "queued_at", "started_at", "ended_at",
        "duration_seconds", "pool", "priority_weight",
    }  # fmt: skip
    assert task["scheduled_at"] <= task["queued_at"] <= task["started_at"] <= task["ended_at"]
    assert (task["map_index"], task["pool"], task["priority_weight"]) == (-1, "default_pool", 3)
    run = run_of(site, "values")
    assert (run["run_id"], run["run_type"], run["logical_date"]) == ("by_hand", "manual", LOGICAL_DATE)
    assert run["queued_at"] <= run["started_at"] <= run["ended_at"]
