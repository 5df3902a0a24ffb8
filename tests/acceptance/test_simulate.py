"""`asynsched simulate`: a span of time as the scheduler would go through it, and the effect of a change on it."""

import itertools
import json
from datetime import datetime, timedelta

import pytest

from tests.support.up import Site

DAGS = """
from datetime import datetime, timedelta
from asynsched import DAG, BashOperator, CronTriggerTimetable, chain, task

for name in "abcd":
    with DAG(name, schedule="@hourly", start_date=datetime(2020, 1, 1), catchup=True, max_active_runs=1):
        BashOperator(task_id="first", bash_command="", retries=2, retry_delay=timedelta(minutes=3), pool="narrow") >> [
            BashOperator(task_id=f"then_{n}", bash_command="", pool="narrow", priority_weight=n) for n in range(3)
        ]

with DAG("branching", schedule=timedelta(hours=4)):
    @task.branch
    def choose():
        raise RuntimeError("no task runs in a simulation")

    choose() >> [BashOperator(task_id=name, bash_command="") for name in ("fast", "slow")]

with DAG("berlin", schedule=CronTriggerTimetable("0 * * * *", timezone="Europe/Berlin")):
    BashOperator(task_id="only", bash_command="")

with DAG("sleeping", schedule="@hourly", is_paused_upon_creation=True):
    BashOperator(task_id="only", bash_command="")
"""
EXPECTED = """
"*.first" = { duration = 240, failure_rate = 0.3 }
branching.choose = { follow = ["fast"] }
nobody.nothing = 1
"""
SPAN = ("--from", "2026-03-28T18:00:00Z", "--to", "2026-03-29T18:00:00Z")


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path)
    site.write("dags.py", DAGS)
    (tmp_path / "expected.toml").write_text(EXPECTED)
    return site


def simulate(site: Site, *flags: str):
    return site.run("simulate", str(site.dags), *SPAN, "--durations", "expected.toml", "--pool", "narrow=2", *flags)


def runs_of(runs, dag_id):
    return [run for run in runs if run["dag_id"] == dag_id]


def test_every_run_and_task_of_the_span_is_told_and_nothing_else(site):
    finished = simulate(site, "--output", "json", "--report", "report.json")
    assert not site.home.exists(), "where there is no home, none is made"
    runs = finished.json
    assert "no task is named 'nobody.nothing'" in finished.stderr

    hourly = [datetime.fromisoformat(run["logical_date"]) for run in runs_of(runs, "a")]
    first = datetime.fromisoformat("2026-03-28T18:00:00Z")
    assert hourly == [first + timedelta(hours=n) for n in range(24)], "nothing is made up for from before the span"
    assert runs_of(runs, "sleeping") == []

    tries = [task for run in runs for task in run["tasks"] if task["task_id"] == "first"]
    assert {task["try_number"] for task in tries} == {1, 2, 3}
    retried = next(task for task in tries if task["try_number"] == 2)
    [failed] = retried["earlier_tries"]
    assert failed["reason"] == "by chance: 30% of its tries fail"
    delay = datetime.fromisoformat(retried["scheduled_at"]) - datetime.fromisoformat(failed["ended_at"])
    assert delay == timedelta(minutes=3)

    for run in runs_of(runs, "branching"):
        assert {task["task_id"]: task["state"] for task in run["tasks"]} == {
            "choose": "success", "fast": "success", "slow": "skipped",
        }  # fmt: skip
    report = json.loads((site.root / "report.json").read_text())
    assert report["runs"] == runs
    assert report["paused_dags"] == ["sleeping"]
    assert [change["effect"] for change in report["clock_changes"]] == ["23 runs instead of 24"]
    [narrow] = [pool for pool in report["pools"] if pool["pool"] == "narrow"]
    assert narrow["peak"] == 2
    assert narrow["longest_wait_seconds"] > 0
    assert all(step["slots"] <= 2 for step in narrow["steps"])
    assert all(earlier["at"] < later["at"] for earlier, later in itertools.pairwise(narrow["steps"]))


def test_the_bytes_depend_on_the_seed_and_not_on_the_hash_seed(site):
    answers = []
    for hash_seed in ("0", "12345"):
        site.env["PYTHONHASHSEED"] = hash_seed
        files = (f"report-{hash_seed}.json", f"picture-{hash_seed}.svg")
        told = simulate(site, "--seed", "5", "--output", "json", "--report", files[0], "--picture", files[1])
        answers.append((told.stdout, *((site.root / name).read_bytes() for name in files)))
    assert answers[0] == answers[1]
    assert b"<svg" in answers[0][2]
    del site.env["PYTHONHASHSEED"]
    assert simulate(site, "--seed", "6", "--output", "json", "--picture", "picture.png").stdout != answers[0][0]
    assert (site.root / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_tells_what_a_change_of_the_files_does(site):
    changed = site.root / "changed"
    changed.mkdir()
    text = DAGS.replace('"abcd"', '"abc"').replace("range(3)", "range(4)").replace("hours=4", "hours=6")
    (changed / "dags.py").write_text(text)
    told = simulate(site, "--compare", str(changed), "--output", "json").json
    assert {run["dag_id"] for run in told["runs_removed"]} == {"d", "branching"}
    assert {run["dag_id"] for run in told["runs_added"]} == {"branching"}
    assert {(task["dag_id"], task["task_id"]) for task in told["tasks_added"]} == {(name, "then_3") for name in "abc"}
    assert {task["dag_id"] for task in told["tasks_removed"]} == {"d"}
    assert {change["dag_id"] for change in told["runs_changed"]} == set("abc")
    [narrow] = [pool for pool in told["pools"] if pool["pool"] == "narrow"]
    assert narrow["mean_after"] != narrow["mean_before"]
    table = simulate(site, "--compare", str(changed)).stdout
    assert "tasks_added" in table


def test_a_simulation_uses_durations_pools_and_pauses_of_an_unchanged_home(site):
    site.write("dags.py", """
        from asynsched import DAG, BashOperator

        with DAG("known", schedule="@hourly"):
            BashOperator(task_id="quick", bash_command="true", pool="own")

        with DAG("other", schedule="@hourly"):
            BashOperator(task_id="only", bash_command="true")

        with DAG("broken"):
            BashOperator(task_id="bad", bash_command="exit 1")
    """)  # fmt: skip
    site.run("pools", "set", "own", "1")
    site.run("dags", "trigger", "known")
    site.run("dags", "trigger", "broken")
    site.up_until_idle()
    site.run("dags", "pause", "other")
    text = (site.dags / "dags.py").read_text()
    site.write("dags.py", text.replace('"broken"', '"broken", schedule="@hourly"'))
    before = {path: path.read_bytes() for path in site.home.glob("asynsched.db*")}
    simulated = site.run("simulate", *SPAN, "--output", "json", "--fail-on", "errors, failed", code=1)
    assert simulated.stderr.splitlines() == [
        "Assumed: each try fails, for 1 task that never succeeded in this home: broken.bad.",
        "Error: 24 runs failed (--fail-on errors,failed).",
    ]
    runs = [run for run in simulated.json if run["dag_id"] != "broken"]
    assert [run["state"] for run in simulated.json if run["dag_id"] == "broken"] == ["failed"] * 24
    assert {path: path.read_bytes() for path in site.home.glob("asynsched.db*")} == before
    assert {run["dag_id"] for run in runs} == {"known"}
    [task] = runs[0]["tasks"]
    length = datetime.fromisoformat(task["ended_at"]) - datetime.fromisoformat(task["started_at"])
    assert timedelta() < length < timedelta(seconds=30), "as long as it took, and not the minute of an unknown task"
    assert task["pool"] == "own"
    told = site.run("simulate", *SPAN, "--unpause", "--duration", "7", "--output", "json").json
    assert {run["dag_id"] for run in told} == {"known", "other", "broken"}
    assert told[0]["ended_at"] == "2026-03-28T18:00:07Z"


def test_nonsense_is_refused_in_one_line_and_a_broken_file_is_left_out(site):
    span = ("simulate", str(site.dags), *SPAN)
    for flags, complaint in (
        (("--to", "2026-03-28"), "the span must end after its start"),
        (("--from", "yesterday"), "'yesterday' is not an instant"),
        (("--pool", "narrow"), "'narrow' is not a pool: write NAME=SLOTS"),
        (
            ("--fail-on", "failed,warnings"),
            "'warnings' is not one of its values: write errors, failed, or errors,failed",
        ),
        (("--failure-rate", "2"), "'2' is neither a number from 0 to 1 nor 'history'"),
        (("--durations", "nowhere.toml"), "nowhere.toml: the file cannot be read"),
        (("--picture", "picture.gif"), "picture.gif: a picture is .svg or .png"),
        (("--compare", "nowhere"), "The DAG folder"),
    ):
        refused = site.run(*span, *flags, code=None)
        assert refused.code in (1, 2)
        assert complaint in refused.stderr
        assert "Traceback" not in refused.stderr
    site.write("bad.py", "import asynsched  # dag\n1 / 0\n")
    told = site.run(*span)
    assert "Left out: bad.py" in told.stderr
    assert "Assumed: each try lasts 60 s and succeeds, for 4 tasks that never ran in this home" in told.stderr
    assert "berlin" in told.stdout
    assert site.run(*span, "--fail-on", "failed").code == 0
    assert "Error: 1 error of DAG files" in site.run(*span, "--fail-on", "errors", code=1).stderr
