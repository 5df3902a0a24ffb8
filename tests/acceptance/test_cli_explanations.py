"""The messages of commands about missing things: a scheduler, a DAG, its file."""

import os
import socket
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta

from asynsched.bell import open_bell
from asynsched.store.engines.opening import open_direct
from asynsched.store.schedulers import register_scheduler, remove_scheduler
from tests.acceptance.idle_site import DAGS

DATABASES = ("sqlite",)


def test_why_only_reads_and_says_first_that_nobody_schedules_and_since_when(new_site):
    site = new_site()
    site.write("some.py", DAGS)
    site.run("dags", "trigger", "etl", "--run-id", "r")
    register_then_leave(site, at=datetime(2026, 3, 1, 12, tzinfo=UTC))
    with closing(sqlite3.connect(site.home / "asynsched.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for names in (["etl"], ["etl", "r"]):
            said = site.run("why", *names).stdout.splitlines()
            assert said[0].startswith(
                "No scheduler is serving; the last one served until 2026-03-01 12:00:00+00:00: start one with"
                " `asynsched up`."
            )


def test_why_alone_lists_what_is_late_and_why(new_site):
    site = new_site()
    site.write("some.py", DAGS)
    site.run("dags", "trigger", "broken", "--run-id", "fresh")
    assert site.run("why").stdout == "Nothing is late or stuck.\n"
    site.run("dags", "trigger", "etl", "--run-id", "old")
    with closing(sqlite3.connect(site.home / "asynsched.db", isolation_level=None)) as writer:
        at = 1772366400000000
        writer.execute("UPDATE dag_run SET queued_at = ?, run_after = ? WHERE run_id = 'old'", (at, at))
    assert site.run("why").stdout.splitlines() == [
        "No scheduler is serving; none has yet: start one with `asynsched up`.",
        "old of etl is queued since 2026-03-01 12:00:00+00:00",
    ]
    late = site.json("why")
    assert [(row["dag_id"], row["run_id"], row["state"]) for row in late["rows"]] == [("etl", "old", "queued")]
    with site.up():
        site.until(lambda: site.task_states("etl", "old").get("transform") == "success", "the run has been taken up")
        assert site.run("why").stdout == "Nothing is late or stuck.\n"


def register_then_leave(site, at):
    with open_direct(f"sqlite:///{site.home / 'asynsched.db'}") as database:
        database.write(
            register_scheduler, scheduler_id="gone", hostname="h", pid=1, home=str(site.home), version="1",
            now=at, lease_until=at, takeover_seconds=30,
        )  # fmt: skip
        database.write(remove_scheduler, "gone", at)


def test_runs_of_a_dag_whose_file_is_gone_are_explained(new_site):
    site = new_site()
    path = site.write("some.py", DAGS)
    site.run("dags", "trigger", "etl", "--run-id", "r")
    path.unlink()
    site.run("dags", "show", "the reason why it reads the folder", code=1)
    assert "some.py is gone" in site.run("why", "etl").stdout
    assert [reason["rule"] for reason in site.json("why", "etl")["reasons"]] == ["scheduler", "removed"]
    explained = site.json("why", "etl", "r")
    assert (explained["state"], explained["reasons"][0]["rule"]) == ("queued", "scheduler")
    assert "no run 'q'" in site.run("why", "etl", "q", code=1).stderr


def test_an_unknown_dag_is_sought_among_broken_files_and_removed_files(new_site):
    site = new_site()
    path = site.write("weather.py", "from asynsched import DAG\ndag = DAG('weather'")
    site.run("db", "upgrade")
    site.run("dags", "show", "weather", code=1)
    assert (
        site.run("dags", "list").stderr
        == f"No DAG is known in the home {site.home}. 1 DAG file has errors, weather.py: see `asynsched dags errors`.\n"
    )
    for command in (("runs", "list"), ("dags", "pause"), ("dags", "trigger"), ("dags", "test"), ("why",)):
        said = site.run(*command, "weather", code=1).stderr.splitlines()[-1]
        expected = "Error: There is no DAG 'weather'. Its file weather.py has an error: weather.py:2: SyntaxError: "
        assert said == f"{expected}'(' was never closed"
    path.write_text("from asynsched import DAG\ndag = DAG('weather')")
    site.run("dags", "show", "weather")
    path.rename(path.with_name("moved.py"))
    path.with_name("moved.py").write_text("from asynsched import DAG\nDAG(")
    site.run("dags", "show", "nothing", code=1)
    said = site.run("dags", "show", "weather", code=1).stderr
    assert "There is no DAG 'weather'. It was in weather.py, which is gone. 1 DAG file has errors, moved.py" in said


def test_a_scheduler_that_was_killed_on_this_machine_is_said_to_be_gone(new_site):
    site = new_site()
    with subprocess.Popen(["true"]) as ended:
        pass
    site.run("db", "upgrade")
    now, here = datetime.now(UTC), socket.gethostname()
    schedulers = {"gone": (ended.pid, here), "own": (os.getpid(), here), "heard": (ended.pid, here), "far": (1, "far")}
    bells = {name: open_bell(make_folder(site.root / name)) for name in schedulers}
    for name in ("gone", "far"):
        bells[name].close()
    with open_direct(f"sqlite:///{site.home / 'asynsched.db'}") as database:
        for name, (pid, host) in schedulers.items():
            database.write(
                register_scheduler, scheduler_id=name, hostname=host, pid=pid, home=str(site.root / name), version="1",
                now=now, lease_until=now + timedelta(hours=1), takeover_seconds=30,
            )  # fmt: skip
    listed = {row["id"]: row["state"] for row in site.json("schedulers", "list")}
    assert listed == {"gone": "gone", "own": "serving", "heard": "serving", "far": "serving"}
    for bell in bells.values():
        bell.close()


def make_folder(path):
    path.mkdir()
    return path
