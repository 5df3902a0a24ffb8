"""Commands about DAGs on a home that no scheduler serves: listings, next runs, test runs."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.idle_site import DAGS, make_idle_site
from tests.conformance.dag_text import HEADER, dag_id_of, dag_text, usable_cases
from tests.conformance.test_timetables import instant
from tests.support.up import Site

DATABASES = ("sqlite",)


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    return make_idle_site(new_site)


def test_a_dag_is_shown_with_its_tasks_and_edges(site):
    on_demand, listed = site.json("dags", "list")
    assert (on_demand["dag_id"], on_demand["schedule"]) == ("broken", None)
    told = {
        "dag_id": "etl", "file": "some.py", "schedule": "30 6 * * *", "paused": False, "next_run_at": None,
        "tags": ["a", "b"], "has_errors": False, "owners": ["airflow"],
    }  # fmt: skip
    assert listed.items() >= told.items()
    shown = site.json("dags", "show", "etl")
    assert {task["task_id"]: task["group_id"] for task in shown["tasks"]} == {
        "extract": None, "inner.load": "inner", "transform": None,
    }  # fmt: skip
    assert shown["edges"] == [{"source_id": "extract", "target_id": "transform", "label": "all of it"}]
    assert shown["task_start"] == "each task is a fork of a process that has loaded the file"
    dot = site.run("dags", "show", "etl", "--output", "dot").stdout
    assert '"extract" -> "transform" [label="all of it"]' in dot
    assert 'subgraph "cluster_inner"' in dot
    assert "transform" in site.run("dags", "show", "etl").stdout


def test_a_dag_is_shown_with_what_keeps_its_tasks_from_being_forked(new_site):
    site = new_site()
    site.write(
        "threads.py",
        """
        from threading import Event, Thread
        from asynsched import DAG, task

        Thread(target=Event().wait, daemon=True).start()
        with DAG("threads"):
            task(print)()
    """,
    )
    site.run("db", "upgrade")
    assert "it leaves a thread running; start that in a task" in site.json("dags", "show", "threads")["task_start"]
    told = site.run("dags", "errors")
    assert (told.stdout, "threads.py" in site.run("dags", "errors", "--warnings").stdout) == ("", True)
    assert "not shown: 1. `asynsched dags errors --warnings` shows them.\nNo DAG file has errors." in told.stderr


def test_errors_name_file_line_and_reason(site):
    [error] = site.json("dags", "errors")
    assert (error["file"], error["kind"], error["line"]) == ("wrong.py", "import", 3)
    assert "no_such_module" in error["message"]
    assert "no_such_module" in error["traceback"]
    assert "wrong.py" in site.run("dags", "errors").stdout


def test_next_runs_are_those_of_the_given_moment_and_last_run(site):
    runs = site.json(
        "dags", "next", "etl", "-n", "2", "--now", "2026-03-01T00:00Z", "--last-run", "2026-02-01/2026-02-01"
    )
    assert [run["run_after"] for run in runs] == ["2026-02-28T06:30:00Z", "2026-03-01T06:30:00Z"]
    assert "2026-02-28T06:30:00Z" in site.run("dags", "next", "etl", "--now", "2026-02-28T07:00Z").stdout


def test_a_paused_dag_is_shown_as_such_and_can_be_unpaused(site):
    site.run("dags", "pause", "broken")
    assert {dag["dag_id"]: dag["paused"] for dag in site.json("dags", "list")} == {"broken": True, "etl": False}
    assert site.json("dags", "unpause", "broken") == {
        "dags": [{"dag_id": "broken", "paused": False, "due_runs": 0, "first_logical_date": None, "next_run_at": None}]
    }


def test_several_dags_or_all_are_paused_at_once_and_none_if_one_is_unknown(new_site):
    site = new_site()
    site.write("some.py", DAGS)

    def paused() -> list[str]:
        return [dag["dag_id"] for dag in site.json("dags", "list") if dag["paused"]]

    refused = site.run("dags", "pause", "etl", "elt", "brokn", code=1).stderr.splitlines()[-1]
    assert refused == (
        "Error: There is no DAG 'elt'. Did you mean etl? There is no DAG 'brokn'. Did you mean broken?"
        " Nothing is changed."
    )
    assert paused() == []
    assert site.run("dags", "pause", "etl", "broken", "etl").stdout == "DAG 'etl' is paused.\nDAG 'broken' is paused.\n"
    assert paused() == ["broken", "etl"]
    assert site.json("dags", "pause", "--all") == {"dags": []}
    unpaused = site.json("dags", "unpause", "--all")["dags"]
    assert [(dag["dag_id"], dag["paused"]) for dag in unpaused] == [("broken", False), ("etl", False)]
    assert {dag["due_runs"] for dag in unpaused} == {0, 1}
    assert site.run("dags", "unpause", "--all").stdout == "No DAG is paused.\n"
    assert "Name DAGs, or give --all" in site.run("dags", "pause", code=2).stderr
    assert "Name no DAG beside --all" in site.run("dags", "pause", "etl", "--all", code=2).stderr


def test_unpausing_says_what_is_about_to_be_created(site):
    [due] = site.json("dags", "next", "etl")
    site.run("dags", "pause", "etl")
    [told] = site.json("dags", "unpause", "etl")["dags"]
    assert (told["due_runs"], told["first_logical_date"]) == (1, due["logical_date"])
    following = datetime.fromisoformat(told["next_run_at"])
    assert following - datetime.fromisoformat(due["run_after"]) == timedelta(days=1)
    site.run("dags", "pause", "etl")
    said = site.run("dags", "unpause", "etl").stdout
    assert f"One run is due, from the logical date {due['logical_date'][:10]}" in said
    assert f"The next one is due at {following:%Y-%m-%d %H:%M:%S}" in said


def test_next_runs_pass_over_a_run_that_exists_already(site):
    asked = ("dags", "next", "etl", "--now", "2031-03-01T00:00Z")
    first, second, third = site.json(*asked, "-n", "3")
    site.run("dags", "trigger", "etl", "--logical-date", first["logical_date"])
    assert site.json(*asked) == [second]
    assert site.json(*asked, "-n", "2") == [second, third]


def test_next_runs_of_every_kind_of_timetable_are_told_as_airflow_makes_them(new_site):
    site = new_site()
    cases = list({case["kind"]: case for case in usable_cases() if case["advance"] == "fixed"}.values())
    site.write("kinds.py", HEADER + "\n".join(map(dag_text, cases)))
    assert len(cases) == 9
    for case in cases:
        last = case.get("last_run")
        given = ["--last-run", f"{last['data_interval_start']}/{last['data_interval_end']}"] if last else []
        runs = site.json("dags", "next", dag_id_of(case), "-n", str(case["n"]), "--now", case["now"], *given)
        wanted = [{name: instant(value) for name, value in run.items() if name != "now"} for run in case["runs"]]
        names = ("logical_date", "data_interval_start", "data_interval_end", "run_after")
        assert [{name: instant(run[name]) for name in names} for run in runs] == wanted, case["id"]


def test_a_triggered_run_waits_for_a_scheduler(site):
    site.run("dags", "trigger", "etl", "--run-id", "by hand", code=1)
    made = site.json("dags", "trigger", "etl", "--run-id", "by_hand", "--logical-date", "2026-05-01", "--conf", "{}")
    assert (made["state"], made["run_type"], made["logical_date"]) == ("queued", "manual", "2026-05-01T00:00:00Z")
    assert made in site.json("runs", "list", "etl", "--state", "queued", "--type", "manual")
    assert made not in site.json("runs", "list", "etl", "--until", made["run_after"])
    [act] = site.json("audit", "list", "etl", "--action", "dag.trigger", "--limit", "1")
    assert (act["run_id"], "@" in act["actor"]) == ("by_hand", True)
    assert site.json("runs", "show", "etl", "by_hand").items() >= made.items()
    assert site.json("tasks", "list", "etl", "by_hand") == []
    refused = site.run("tasks", "logs", "etl", "by_hand", "extract", code=1).stderr
    assert refused == "Error: The run 'by_hand' is queued, and has no tasks yet.\n"
    refused = site.run("runs", "logs", "etl", "by_hand", code=1).stderr
    what = "No try of the run 'by_hand' (queued) has written anything"
    assert refused == f"Error: {what}, or their logs are not in the home {site.home}.\n"
    site.run("dags", "pause", "etl")
    said = site.run("dags", "trigger", "etl", "--run-id", "paused", "--no-logical-date").stderr.splitlines()
    assert said[0] == "The DAG is paused; the run waits until `asynsched dags unpause etl`."
    assert said[1:] == ["No scheduler is serving at the moment; the run waits for one."]
    site.run("dags", "unpause", "etl")
    site.run("runs", "cancel", "etl", "paused", "--yes")


def test_a_run_is_named_by_its_id_the_beginning_of_it_or_as_the_latest(site):
    for run_id in ("Weekly_1", "weekly_1", "weekly_10", "weekly%", "latest_of_all", "daily_1"):
        site.run("dags", "trigger", "broken", "--run-id", run_id, "--no-logical-date", code=1 if "%" in run_id else 0)

    def shown(name: str) -> str:
        return str(site.json("runs", "show", "broken", name)["run_id"])

    assert [shown(name) for name in ("weekly_10", "W", "d", "latest", "weekly_1")] == [
        "weekly_10", "Weekly_1", "daily_1", "daily_1", "weekly_1",
    ]  # fmt: skip
    refused = site.run("tasks", "list", "broken", "weekly", code=1).stderr
    assert refused == "Error: Several runs of the DAG 'broken' begin with 'weekly': weekly_10, weekly_1.\n"
    assert "no run ''" in site.run("runs", "show", "broken", "", code=1).stderr
    for command in (("why",), ("tasks", "list")):
        site.run(*command, "broken", "lat")
    for command in (("cancel",), ("clear",), ("mark",)):
        state = ("failed",) if command == ("mark",) else ()
        refused = site.run("runs", *command, "broken", "lat", *state, "--yes", code=1).stderr
        assert "'lat' is only the beginning of a run_id: write latest_of_all, or latest, where you" in refused
    site.run("runs", "cancel", "broken", "latest_of_all", "--yes")
    assert "Did you mean latest?" in site.run("runs", "show", "broken", "LATEST", code=1).stderr
    refused = site.run("dags", "trigger", "broken", "--run-id", "latest", code=1).stderr
    assert refused == "Error: The run id 'latest' is reserved: commands name the newest run so. Choose another one.\n"
    assert "The run id '' is not valid: use 1 to" in site.run("dags", "trigger", "broken", "-r", "", code=1).stderr
    assert "There is no DAG 'elt'. Did you mean etl?" in site.run("runs", "show", "elt", "latest", code=1).stderr


COMPLETE = """
eval "$(_ASYNSCHED_COMPLETE=bash_source asynsched)"
COMP_WORDBREAKS=$' \\t\\n"\\'@><=;|&(:'
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _asynsched_completion asynsched
    echo "${COMPREPLY[*]}"
done
"""
COMPLETIONS = {
    "asynsched dags sh": "show",
    "asynsched dags show ": "broken etl",
    "asynsched tasks list etl ": "latest manual__2026-05-01T00:00:00+00:00 manual__2026-05-02T00:00:00+00:00",
    "asynsched runs show etl manual__2026-05-01T": "manual__2026-05-01T00:00:00+00:00",
    "asynsched runs show etl manual__2026-05-01T00:0": "00:00+00:00",  # the last word, as bash splits them
    "asynsched tasks logs etl manual__2026-05-01 ": "",  # it has no tasks yet
    "asynsched tasks logs --home nowhere etl ": "",
    "asynsched dgas show et": "",
}


def test_bash_completes_only_names_that_the_home_knows(new_site):
    site = new_site()
    site.write("some.py", DAGS)
    for date in ("2026-05-01", "2026-05-02"):
        at = f"{date}T00:00:00+00:00"
        site.run("dags", "trigger", "etl", "--run-id", f"manual__{at}", "--logical-date", at)
    environment = site.environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", COMPLETE], input="".join(f"{line}\n" for line in COMPLETIONS), capture_output=True, text=True,
        cwd=site.root, env=environment, check=True,
    )  # fmt: skip
    answers = dict(zip(COMPLETIONS, ended.stdout.splitlines(), strict=True))
    assert {line: " ".join(sorted(answer.split())) for line, answer in answers.items()} == COMPLETIONS
    assert ended.stderr == ""
    assert sorted(path.name for path in site.root.iterdir()) == ["dags", "home"]


def test_a_dag_is_tested_in_the_foreground_with_its_output_beside_the_answer(site):
    tested = site.run("dags", "test", "etl", "--output", "json")
    assert tested.json["state"] == "success"
    assert {task["task_id"]: task["state"] for task in tested.json["tasks"]}["extract"] == "success"
    assert "from the task" in tested.stderr
    assert site.run("dags", "test", "etl", "--fail-on", "errors,failed").code == 0
    failed = site.run("dags", "test", "broken", "--output", "json", code=1)
    assert failed.json["state"] == "failed"
    assert "as it must" in failed.stderr


def test_a_dag_test_fails_on_request_when_another_dag_of_the_file_fails(new_site):
    site = new_site()
    site.write(
        "two.py",
        """
        from asynsched import DAG, EmptyOperator

        with DAG("good"):
            EmptyOperator(task_id="only")
        with DAG("circle"):
            first, last = EmptyOperator(task_id="first"), EmptyOperator(task_id="last")
            first >> last >> first
    """,
    )
    for wanted in ((), ("--fail-on", "failed")):
        assert "circle" not in site.run("dags", "test", "good", *wanted).stdout
    refused = site.run("dags", "test", "good", "--fail-on", "errors", "--output", "json", code=1)
    assert refused.json["state"] == "success"
    told = refused.stderr.splitlines()[-2:]
    assert told[0].startswith("two.py: DAG 'circle': tasks depend on each other in a cycle")
    assert told[1] == "Error: 1 of the other DAGs of two.py cannot be used (--fail-on errors)."


def test_a_file_that_no_parse_may_read_is_not_tested_either(site):
    link, outside = site.dags / "some.py", site.root / "outside.py"
    link.rename(outside)
    link.symlink_to(outside)
    refused = site.run("dags", "reparse", "etl", code=1).stderr
    assert "some.py is a link to" in refused
    assert site.run("dags", "test", "etl", code=1).stderr == refused
    outside.rename(link)
    site.run("dags", "reparse", "etl")


def test_reparse_without_a_scheduler_waits_for_the_result(site):
    assert site.json("dags", "reparse", "etl") == {"dag_id": "etl", "file": "some.py"}
    site.write("some.py", "from asynsched import DAG DAG")
    refused = site.run("dags", "reparse", "etl", code=1)
    site.write("some.py", DAGS)
    assert "some.py:1" in refused.stderr
    site.run("dags", "reparse", "etl")
    assert "no_such_module" in site.run("dags", "reparse", "wrong.py", code=1).stderr
    refused = site.run("dags", "reparse", "rong.py", code=1).stderr
    assert f"no DAG 'rong.py', and no file of that name in {site.dags}. Did you mean wrong.py?\n" in refused
    assert "no file" not in site.run("dags", "reparse", "elt", code=1).stderr


def test_a_file_that_was_never_read_is_parsed_by_its_name_there_or_from_here(site):
    for name, path in (("new_1.py", "new_1.py"), ("new_2.py", "dags/new_2.py"), ("new_3.py", f"{site.dags}/new_3.py")):
        written = site.write(name, f"from asynsched import DAG\ndag = DAG({name[:-3]!r})\n")
        assert site.json("dags", "reparse", path) == {"dag_id": None, "file": name}
        assert name[:-3] in {dag["dag_id"] for dag in site.json("dags", "list")}
        written.unlink()
    site.write("no_dags.py", "x = 1\n")
    assert "no_dags.py is not taken for a DAG file" in site.run("dags", "reparse", "no_dags.py", code=1).stderr
    (site.dags / "no_dags.py").unlink()
    site.run("dags", "reparse", "etl")
