"""`asynsched why` names the reasons for a wait, down to the root, and the events that will release it."""

from typing import Any

import pytest

DATABASES = ("postgresql",)
STOPS_AT_ONCE = {"ASYNSCHED_SHUTDOWN_GRACE": "0"}
"""For schedulers that stop while tasks sleep."""

DAGS = """
    from datetime import datetime, timedelta
    from asynsched import DAG, Asset, BashOperator, EmptyOperator

    with DAG("chain", max_active_runs=1):
        slow = BashOperator(task_id="slow", bash_command="sleep 600", pool="narrow")
        beside = BashOperator(task_id="beside", bash_command="true", pool="narrow", priority_weight=-5)
        retried = BashOperator(task_id="retried", bash_command="exit 7", retries=1, retry_delay=timedelta(hours=1))
        failed = BashOperator(task_id="failed", bash_command="exit 8")
        failed >> EmptyOperator(task_id="after_failed") >> EmptyOperator(task_id="last_failed")
        [slow, retried] >> EmptyOperator(task_id="join") >> EmptyOperator(task_id="last")

    with DAG("yearly", schedule="0 0 1 1 *", start_date=datetime(2020, 1, 1)):
        EmptyOperator(task_id="year")

    with DAG("by_hand", schedule=None):
        EmptyOperator(task_id="hand")

    with DAG("by_assets", schedule=Asset("orders") & Asset("prices")):
        EmptyOperator(task_id="updated")

    with DAG("two", schedule=None):
        BashOperator(task_id="one", bash_command="sleep 600")
        BashOperator(task_id="other", bash_command="sleep 600")

    with DAG("on_past", schedule=None):
        BashOperator(task_id="again", bash_command="exit 9", depends_on_past=True)
        head = BashOperator(task_id="head", bash_command="true", wait_for_downstream=True)
        head >> BashOperator(task_id="tail", bash_command="sleep 600")
"""


@pytest.fixture(scope="module")
def site(new_site) -> Any:
    """Yield a site in which one run is active, and another one waits for it."""
    site = new_site()
    site.env |= STOPS_AT_ONCE
    site.write("explained.py", DAGS)
    site.run("pools", "set", "narrow", "1")
    with site.up():
        site.until(lambda: len(site.json("dags", "list")) == 6, "every DAG is known")
        for run_id in ("first", "second"):
            site.run("dags", "trigger", "chain", "--run-id", run_id)
        wanted = {"slow": "running", "retried": "up_for_retry", "last_failed": "upstream_failed"}
        site.until(lambda: wanted.items() <= site.task_states("chain", "first").items(), "the first run stands still")
        yield site


def flat(reasons):
    """Return rule and text of each reason, with how deep it is."""
    for reason in reasons:
        yield reason["rule"], reason["text"], 0
        yield from ((rule, text, depth + 1) for rule, text, depth in flat(reason.get("causes", ())))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("first", "slow"), [("running", "try 1 is running", 0)]),
        (("first", "beside"), [("limit", "pool narrow: 1 of 1 taken, 1 needed", 0), ("holder", "slow of first", 1)]),
        (("first", "retried"), [("retry", "exit code 7", 0)]),
        (
            ("first", "last"),
            [
                ("trigger_rule", "all_success", 0),
                ("task", "join of first of chain: waits", 1),
                ("trigger_rule", "0 of 2 done", 2),
                ("task", "slow of first of chain: running", 3),
                ("running", "try 1", 4),
                ("task", "retried of first of chain: up_for_retry", 3),
                ("retry", "exit code 7", 4),
            ],
        ),
        (
            ("first", "last_failed"),
            [
                ("upstream_failed", "1 upstream_failed", 0),
                ("task", "after_failed of first", 1),
                ("upstream_failed", "1 failed", 1),
                ("task", "failed of first of chain: failed", 2),
                ("failed", "exit code 8", 2),
            ],
        ),
        (("second",), [("admission", "max_active_runs is 1, and these are active: first", 0)]),
        (("first",), [("running", "slow", 0), ("limit", "beside", 0), ("retry", "retried", 0)]),
    ],
)
def test_every_reason_is_named_down_to_the_root(site, names, expected):
    found = [*flat(site.json("why", "chain", *names)["reasons"])]
    for rule, text, _ in expected:
        assert any(rule == reason[0] and text in reason[1] for reason in found), (rule, text, found)
    for rule, text, depth in expected[:1]:
        assert any(rule == reason[0] and text in reason[1] and depth == reason[2] for reason in found)


def test_it_says_when_a_retry_and_the_next_run_are_due(site):
    [retry] = site.json("why", "chain", "first", "retried")["reasons"]
    assert retry["at"] > site.json("tasks", "list", "chain", "first")[0]["started_at"]
    [schedule] = site.json("why", "yearly")["reasons"]
    assert schedule["at"][4:] == "-01-01T00:00:00Z"
    [by_hand] = site.json("why", "by_hand")["reasons"]
    assert "asynsched dags trigger by_hand" in by_hand["release"]


def test_a_run_triggered_for_later_says_for_when_and_is_not_late(site):
    site.run("dags", "trigger", "by_hand", "--run-id", "later", "--run-after", "2100-01-01T00:00:00Z")
    assert site.json("runs", "show", "by_hand", "later")["run_after"] == "2100-01-01T00:00:00Z"
    [reason] = site.json("why", "by_hand", "later")["reasons"]
    assert reason["text"] == "it was triggered for 2100-01-01T00:00:00+00:00"
    assert "by_hand" not in site.run("why").stdout


def test_a_dag_that_waits_for_assets_says_for_which(site):
    [reason] = site.json("why", "by_assets")["reasons"]
    assert reason["rule"] == "assets"
    assert "orders and prices" in reason["text"]


def test_the_parallelism_that_the_scheduler_was_started_with_is_a_limit(new_site):
    site = new_site()
    site.env |= STOPS_AT_ONCE
    site.write("explained.py", DAGS)
    with site.up("--parallelism", "1"):
        site.wait_for_dag("two")
        site.run("dags", "trigger", "two", "--run-id", "r")
        site.until(lambda: site.task_states("two", "r") == {"one": "running", "other": "scheduled"}, "one task runs")
        [limit] = site.json("why", "two", "r", "other")["reasons"]
        assert limit["text"] == "parallelism: 1 of 1 taken, 1 needed"
        assert limit["causes"][0]["text"] == "one of r of two: running"
    for names in (["r", "other"], ["r"], []):
        assert site.run("why", "two", *names).stdout.startswith(
            "No scheduler is serving; the last one served until 20"
        ), names
        assert site.json("why", "two", *names)["reasons"][0]["rule"] == "scheduler"


def test_a_task_that_depends_on_the_past_tells_what_became_of_it_there(site):
    for run_id in ("first", "second"):
        site.run("dags", "trigger", "on_past", "--run-id", run_id)
    wanted = {"again": "failed", "head": "success", "tail": "running"}
    site.until(lambda: site.task_states("on_past", "first") == wanted, "the first run has a task that sleeps")
    [failed] = site.json("why", "on_past", "second", "again")["reasons"]
    assert "asynsched tasks clear" in failed["release"]
    [(_, standing, _), (_, cause, _)] = flat(failed["causes"])
    assert standing == "again of first of on_past: failed"
    assert "exit code 9" in cause
    [running] = site.json("why", "on_past", "second", "head")["reasons"]
    assert "1 task downstream of it has not succeeded in the run before, first" in running["text"]
    assert running["release"] == "the run before goes on"
    assert "tail of first of on_past: running" in [text for _, text, _ in flat(running["causes"])]


def test_people_get_a_sentence_and_a_tree(site):
    text = site.run("why", "chain", "first", "last").stdout.splitlines()
    assert text[0] == "last of first of chain (none)"
    assert text[1].startswith("Trigger rule all_success needs every upstream to succeed")
    assert any(line.startswith("      - task: slow of first of chain: running") for line in text)
    assert site.run("why", "chain", "first").stdout.splitlines()[1].startswith("Task slow: try 1 is running since ")


def test_a_pause_and_a_scheduler_that_is_gone_are_reasons(new_site):
    site = new_site()
    site.write("explained.py", DAGS)
    assert [reason["rule"] for reason in site.json("why", "yearly")["reasons"]] == ["scheduler"]
    site.run("dags", "pause", "by_hand")
    site.run("dags", "trigger", "by_hand", "--run-id", "r")
    assert [reason["rule"] for reason in site.json("why", "by_hand")["reasons"]] == ["scheduler", "paused"]
    assert [reason["text"] for reason in site.json("why", "by_hand", "r")["reasons"]] == [
        "no scheduler is serving; none has yet",
        "the DAG is paused",
    ]
    refused = site.run("why", "by_hnd", code=1)
    assert "by_hand" in refused.stderr
