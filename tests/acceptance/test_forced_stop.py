"""The effect of signals on `asynsched up` and its tasks, if tasks do not end at its request."""

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.up import Site

COLD = True
DATABASES = ("postgresql",)

STUBBORN = """
    import os, signal, time
    from pathlib import Path
    from asynsched import DAG, task

    with DAG("stubborn"):

        @task(retries=0)
        def stays():
            signal.signal(signal.SIGTERM, lambda *_: Path(os.environ["ASKED"]).touch())
            Path(os.environ["MARKS"]).write_text(str(os.getpid()))
            while not Path(os.environ["GATE"]).exists():
                time.sleep(0.01)

        stays()
"""
LONGER_THAN_ANY_TEST = "600"


@pytest.fixture
def site(new_site) -> Site:
    """Return a site with a task that goes on when it is asked to end, and has all the time there is."""
    return with_stubborn_task(new_site())


def with_stubborn_task(site: Site) -> Site:
    site.env |= {name: str(site.root / name.lower()) for name in ("MARKS", "GATE", "ASKED")}
    site.env |= {"ASYNSCHED_LEASE__KILL_TIME": LONGER_THAN_ANY_TEST}
    site.write("stubborn.py", STUBBORN)
    return site


def start_task(site: Site) -> int:
    """Trigger a run, and return the process id of its task once that ignores requests to end."""
    site.wait_for_dag("stubborn")
    site.run("dags", "trigger", "stubborn", "--run-id", "r1")
    marks = Path(site.env["MARKS"])
    return int(site.until(lambda: marks.exists() and marks.read_text(), "the task has begun"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("grace", ["0", LONGER_THAN_ANY_TEST], ids=["asked-to-end", "left-in-peace"])
def test_a_second_signal_kills_tasks_that_do_not_end_and_hands_them_back(site, number, grace):
    site.env["ASYNSCHED_SHUTDOWN_GRACE"] = grace
    with site.up() as up:
        pid = start_task(site)
        up.process.send_signal(number)
        site.until(lambda: "scheduler.stopping" in up.log, "the stop is said")
        if grace == "0":
            site.until(Path(site.env["ASKED"]).exists, "the task was asked to end")
        up.process.send_signal(number)
        assert up.wait() == 1
        assert not psutil.pid_exists(pid)
        site.assert_nothing_left()
        assert up.log.endswith("Error: Stopped at once by a second signal.\n")
        assert "loop.stalled" not in up.log
    [task] = site.json("tasks", "list", "stubborn", "r1")
    assert task["state"] == "scheduled", "a killed task is not shown as running"
    assert re.fullmatch(r"try 1 was interrupted at .*: the scheduler stopped; it begins again", task["reason"])
    assert "Task stays: try 1 was interrupted at " in site.run("why", "stubborn", "r1", "stays").stdout
    shown = site.run("tasks", "logs", "stubborn", "r1", "stays")
    assert "The try was interrupted, and begins again: the scheduler stopped" in shown.stdout
    assert "failed" not in shown.stdout
    assert "Try 1 was interrupted at " in shown.stderr
    Path(site.env["GATE"]).touch()
    site.up_until_idle()
    [task] = site.json("tasks", "list", "stubborn", "r1")
    assert (task["state"], task["try_number"]) == ("success", 1), "an interrupted try is not a failed try"


def test_a_third_signal_leaves_without_a_database_that_does_not_answer(tmp_path):
    site = with_stubborn_task(Site(tmp_path))
    with site.up() as up:
        pid = start_task(site)
        with closing(sqlite3.connect(site.root / site.home_name / "asynsched.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            for said in ("scheduler.stopping ", "scheduler.stopping_at_once"):
                up.process.send_signal(signal.SIGTERM)
                site.until(lambda said=said: said in up.log, "the stop is said")
            site.until(lambda: not psutil.pid_exists(pid), "the task is killed")
            up.process.send_signal(signal.SIGTERM)
            assert up.wait() == 1
        assert "Error: Left by a third signal" in up.log
        Path(site.env["GATE"]).touch()
        site.up_until_idle()
    assert site.json("runs", "show", "stubborn", "r1")["state"] == "success"
