"""A scheduler is steered from other terminals, and heeds at once; it creates the runs that are due by itself."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

DATABASES = ("sqlite",)

DAGS = """
    from datetime import datetime, timedelta
    from asynsched import DAG, EmptyOperator, Param, task

    with DAG("manual", params={"count": Param(1, type="integer", minimum=1)}, tags=["a", "b"]):

        @task(retries=0)
        def counts(params=None, dag_run=None):
            print("count is", params["count"], dag_run.conf)
            return params["count"]

        counts()

    with DAG("failing"):

        @task
        def fails():
            raise ValueError("as it must")

        fails()

    with DAG("often", schedule=timedelta(seconds=1), is_paused_upon_creation=True):
        EmptyOperator(task_id="tick")

    with DAG("cron", schedule="* * * * *", start_date=datetime(2026, 1, 1), catchup=False):
        EmptyOperator(task_id="minute")

    with DAG("make_up", schedule="0 0 * * *", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 20),
             catchup=True, max_active_runs=3):

        @task
        def says(ds=None):
            return ds

        says()
"""


@pytest.fixture(scope="module")
def site(new_site) -> Any:
    """Yield a site whose scheduler serves until the module has ended."""
    site = new_site()
    site.write("steered.py", DAGS)
    with site.up():
        site.until(lambda: len(site.json("dags", "list")) == 5, "every DAG is known")
        yield site


def test_wait_shows_whether_the_run_succeeded_and_conf_reaches_the_task(site):
    site.run("dags", "trigger", "manual", "--conf", '{"count": 3}', "--run-id", "three", "--wait")
    [xcom] = site.json("tasks", "xcom", "manual", "three", "counts")
    assert (xcom["key"], xcom["value"]) == ("return_value", 3)
    assert "count is 3 {'count': 3}" in site.run("tasks", "logs", "manual", "three", "counts").stdout
    failed = site.run("dags", "trigger", "failing", "--run-id", "f", "--wait", code=1)
    *_, error, command = failed.stderr.splitlines()
    assert error.endswith("failed: fails: ValueError: as it must")
    assert command.strip() == "asynsched why failing f"
    assert "failed: fails: ValueError: as it must." in site.run(*command.split()[1:]).stdout
    assert site.runs("failing")[0]["reason"] == "fails: ValueError: as it must"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("manual", "--conf", '{"count": 0}'), 1, ("count", "manual")),
        (("manual", "--conf", "{count: 0}"), 2, ("--conf", "JSON")),
        (("manual", "--run-id", "three"), 1, ("three",)),
        (("manuel",), 1, ("manuel", "manual")),
        (("manual", "--logical-date", "yesterday"), 2, ("--logical-date",)),
    ],
)
def test_a_trigger_that_cannot_be_is_refused_in_one_clear_message(site, arguments, code, words):
    refused = site.run("dags", "trigger", *arguments, code=code)
    assert [word for word in words if word not in refused.stderr] == []
    assert "Traceback" not in refused.stderr


def test_a_paused_dag_creates_no_run_until_it_is_unpaused(site):
    assert site.runs("often") == []
    site.run("dags", "unpause", "often")
    site.until(lambda: len(site.runs("often")) >= 2, "runs are created")
    site.run("dags", "pause", "often")
    n_runs = len(site.runs("often"))
    site.run("dags", "trigger", "manual", "--wait")
    assert len(site.runs("often")) <= n_runs + 1
    assert {run["run_type"] for run in site.runs("often")} == {"scheduled"}


def test_catchup_makes_up_for_every_missed_interval_in_order(site):
    def ended() -> list[dict[str, Any]]:
        return [run for run in site.runs("make_up") if run["state"] == "success"]

    site.until(lambda: len(ended()) == 20, "every missed run has succeeded")
    runs = sorted(ended(), key=lambda run: run["logical_date"])
    first = datetime(2026, 1, 1, tzinfo=UTC)
    assert [datetime.fromisoformat(run["logical_date"]) for run in runs] == [
        first + timedelta(days=n) for n in range(20)
    ]
    assert [run["queued_at"] for run in runs] == sorted(run["queued_at"] for run in runs)


def test_next_runs_are_told_without_creating_them(site):
    expected = site.json("dags", "next", "cron", "-n", "3")
    times = [datetime.fromisoformat(run["run_after"]) for run in expected]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [timedelta(minutes=1)] * 2
    assert times[0] > datetime.now(UTC) - timedelta(minutes=1)


def test_lists_show_what_a_user_wants_to_know(site):
    [dag] = [dag for dag in site.json("dags", "list") if dag["dag_id"] == "manual"]
    assert set(dag) >= {"dag_id", "file", "schedule", "paused", "next_run_at", "tags", "has_errors"}
    assert (dag["file"], dag["paused"], dag["tags"], dag["has_errors"]) == ("steered.py", False, ["a", "b"], False)
    run = site.json("runs", "show", "manual", "three")
    assert set(run) >= {
        "dag_id", "run_id", "run_type", "state", "reason", "logical_date", "data_interval_start", "data_interval_end",
        "run_after", "queued_at", "started_at", "ended_at",
    }  # fmt: skip
    assert "digraph" in site.run("dags", "show", "manual", "--output", "dot").stdout
    table = site.run("tasks", "list", "manual", "three").stdout
    assert "counts" in table
    assert "success" in table


def test_a_reparse_is_done_now_and_json_is_alone_on_standard_output(site):
    site.run("dags", "reparse", "manual")
    for command in (("dags", "list"), ("runs", "list"), ("pools", "list"), ("config", "show"), ("dags", "errors")):
        json.loads(site.run(*command, "--output", "json").stdout)
