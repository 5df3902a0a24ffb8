"""The scheduler dies or is stopped while tasks run: nothing is lost, nothing runs twice, nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.up import Site

COLD = True

on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], scope="module")
"""For tests in which the database does not matter."""

WAITER = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task, get_current_context

    def mark(line):
        with Path(os.environ["MARKS"]).open("a") as marks:
            marks.write(f"{line} {os.getpid()}\\n")

    with DAG("waiter"):

        @task(retries=2, retry_delay=0)
        def waits():
            mark(f"begin {get_current_context()['ti'].try_number}")
            while not Path(os.environ["GATE"]).exists():
                time.sleep(0.01)
            mark("end")

        @task
        def follows():
            mark("follow")

        waits() >> follows()
"""

CANCELS_AND_DIES = """
import os, signal, sys
from pathlib import Path

import anyio
from asynsched import Scheduler


async def main():
    async with anyio.create_task_group() as tasks:
        scheduler = Scheduler(dags=sys.argv[1], home=sys.argv[2], database=os.environ.get("ASYNSCHED_DATABASE"))
        await tasks.start(scheduler.serve)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(scheduler.run, "waiter")
            while not Path(os.environ["MARKS"]).exists():
                await anyio.sleep(0.01)
            waiting.cancel_scope.cancel()
        os.kill(os.getpid(), signal.SIGKILL)


anyio.run(main)
"""
"""Waits for a run, stops waiting while its task runs, and is killed as soon as that was taken."""


@pytest.fixture
def site(new_site) -> Site:
    """Return a site with a DAG whose first task waits until its gate exists."""
    site = new_site()
    site.env |= {"MARKS": str(site.root / "marks"), "GATE": str(site.root / "gate")}
    site.write("waiter.py", WAITER)
    return site


def marks(site: Site) -> list[list[str]]:
    path = Path(site.env["MARKS"])
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def open_gate(site: Site) -> None:
    Path(site.env["GATE"]).touch()


def start_waiting(site: Site) -> int:
    """Trigger a run, and return the process id of its task once that waits."""
    site.wait_for_dag("waiter")
    site.run("dags", "trigger", "waiter", "--run-id", "r1")
    site.until(lambda: marks(site), "the task has begun")
    return int(marks(site)[0][-1])


def state_of_run(site: Site) -> str:
    return site.json("runs", "show", "waiter", "r1")["state"]


def test_a_killed_scheduler_takes_its_running_task_back(site):
    with site.up() as up:
        pid = start_waiting(site)
        site.until(lambda: site.task_states("waiter", "r1")["waits"] == "running", "the start is stored")
        up.kill()
        assert psutil.pid_exists(pid)
        assert site.task_states("waiter", "r1") == {"waits": "running", "follows": None}
        assert site.run("check", "--live", code=1).stdout == ""
        _, owner, running = site.json("why", "waiter", "r1", "waits")["reasons"]
        assert "owns this run, and has been silent since 20" in owner["text"]
        assert "the next scheduler of its home" in owner["release"]
        assert "was running when its scheduler was last heard of" in running["text"]
        assert owner["text"] in site.run("tasks", "list", "waiter", "r1").stderr
        with site.up():
            assert site.run("tasks", "list", "waiter", "r1").stderr == ""
            open_gate(site)
            site.until(lambda: state_of_run(site) == "success", "the run has succeeded")
            assert [mark[:-1] for mark in marks(site)] == [["begin", "1"], ["end"], ["follow"]]
            assert [mark[-1] for mark in marks(site)][:2] == [str(pid), str(pid)]
            [task] = [task for task in site.json("tasks", "list", "waiter", "r1") if task["task_id"] == "waits"]
            assert (task["state"], task["try_number"]) == ("success", 1)


def test_a_task_that_ended_while_no_scheduler_lived_is_not_run_again(site):
    with site.up() as up:
        pid = start_waiting(site)
        up.kill()
        open_gate(site)
        site.until(lambda: not psutil.pid_exists(pid), "the task has ended")
        with site.up():
            site.until(lambda: state_of_run(site) == "success", "the run has succeeded")
    assert [mark[:-1] for mark in marks(site)] == [["begin", "1"], ["end"], ["follow"]]


def test_a_task_that_ended_without_a_scheduler_keeps_its_end_when_cleared(site):
    called = "@task(retries=2, retry_delay=0, on_success_callback=lambda context: mark('called'))"
    site.write("waiter.py", WAITER.replace("@task(retries=2, retry_delay=0)", called))
    with site.up() as up:
        pid = start_waiting(site)
        up.kill()
        open_gate(site)
        site.until(lambda: not psutil.pid_exists(pid), "the task has ended")
        assert "not done yet" in site.run("tasks", "clear", "waiter", "r1", "waits", "--yes").stdout
        site.up_until_idle()
    tries = [row for row in site.json("tasks", "list", "waiter", "r1", "--all-tries") if row["task_id"] == "waits"]
    assert [(row["try_number"], row["state"]) for row in tries] == [(1, "success"), (2, "success")]
    assert sorted(mark[0] for mark in marks(site)) == sorted(["begin", "end", "called"] * 2 + ["follow"])


@on_sqlite
def test_a_killed_task_is_known_at_once_and_retried(site):
    with site.up():
        pid = start_waiting(site)
        os.kill(pid, signal.SIGKILL)
        site.until(lambda: len(marks(site)) == 2, "the task has begun again")
        open_gate(site)
        site.until(lambda: state_of_run(site) == "success", "the run has succeeded")
    assert [mark[0] for mark in marks(site)] == ["begin", "begin", "end", "follow"]
    assert "SIGKILL" in site.run("tasks", "logs", "waiter", "r1", "waits", "--try", "1").stdout
    tries = site.json("tasks", "list", "waiter", "r1", "--all-tries")
    reasons = {(row["task_id"], row["try_number"]): row["reason"] for row in tries}
    assert "SIGKILL" in reasons["waits", 1]


@on_sqlite
def test_a_killed_keeper_takes_its_task_with_it_which_is_then_retried(site):
    with site.up():
        pid = start_waiting(site)
        os.kill(site.keeper(), signal.SIGKILL)
        site.until(lambda: not psutil.pid_exists(pid), "the task has ended with its keeper")
        site.until(lambda: len(marks(site)) == 2, "the task has begun again")
        open_gate(site)
        site.until(lambda: state_of_run(site) == "success", "the run has succeeded")
    assert [mark[0] for mark in marks(site)] == ["begin", "begin", "end", "follow"]


def edit(site: Site) -> None:
    text = WAITER.replace('mark("follow")', 'mark("new")')
    site.write("waiter.py", text.replace('"waiter"', '"waiter", tags=["new"]'))
    site.until(lambda: site.json("dags", "list")[0]["tags"] == ["new"], "the edit is known")


def break_file(site: Site) -> None:
    site.write("waiter.py", "from asynsched import DAG, task\n(")
    site.until(lambda: site.json("dags", "errors"), "the error is known")


def delete(site: Site) -> None:
    (site.dags / "waiter.py").unlink()
    site.until(lambda: site.json("dags", "list") == [], "the DAG has left")


@on_sqlite
@pytest.mark.parametrize("change", [edit, break_file, delete])
def test_a_run_goes_on_with_the_code_it_began_with(site, change):
    with site.up():
        start_waiting(site)
        change(site)
        open_gate(site)
        site.until(lambda: state_of_run(site) == "success", "the run has succeeded")
    assert [mark[0] for mark in marks(site)] == ["begin", "end", "follow"]


@pytest.mark.parametrize(
    ("backend", "stop"),
    [("sqlite", signal.SIGINT), ("postgresql", signal.SIGTERM), ("sqlite", signal.SIGHUP)],
    scope="module",
)
def test_a_stop_waits_for_what_runs_and_leaves_nothing_behind(site, stop):
    with site.up() as up:
        start_waiting(site)
        up.process.send_signal(stop)
        site.until(lambda: "stopping" in up.log.lower() or "drain" in up.log.lower(), "the stop is said")
        open_gate(site)
        assert up.wait() == 0
        site.assert_nothing_left()
    assert [mark[0] for mark in marks(site)] == ["begin", "end"]
    assert site.task_states("waiter", "r1")["waits"] == "success"
    site.up_until_idle()
    assert state_of_run(site) == "success"


@on_sqlite
def test_a_program_that_ignores_the_ends_of_children_can_start_a_scheduler(site):
    site.become = partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
    with site.up():
        start_waiting(site)
        open_gate(site)
        site.until(lambda: state_of_run(site) == "success", "the run has succeeded")


@on_sqlite
def test_a_scheduler_that_nohup_starts_goes_on_after_a_hangup(site):
    site.become = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with site.up() as up:
        start_waiting(site)
        up.process.send_signal(signal.SIGHUP)
        open_gate(site)
        site.until(lambda: state_of_run(site) == "success", "the run has succeeded")


def test_a_task_that_outlasts_the_stop_is_handed_back_and_not_failed(site):
    site.env["ASYNSCHED_SHUTDOWN_GRACE"] = "0.3"
    with site.up() as up:
        start_waiting(site)
        up.terminate()
        assert up.wait() == 0
        site.assert_nothing_left()
    [interrupted] = site.json("tasks", "list", "waiter", "r1", "--all-tries")
    assert (interrupted["state"], interrupted["try_number"], interrupted["started_at"]) == ("scheduled", 1, None)
    assert "interrupted" in interrupted["reason"] or "stopped" in interrupted["reason"]
    open_gate(site)
    site.up_until_idle()
    assert state_of_run(site) == "success"
    [task] = [task for task in site.json("tasks", "list", "waiter", "r1") if task["task_id"] == "waits"]
    assert task["try_number"] == 1, "an interrupted try is not a failed try"
    assert task["started_at"] >= task["queued_at"] > interrupted["queued_at"], "it began again"


@on_sqlite
def test_a_second_signal_stops_at_once_and_leaves_nothing_behind(site):
    with site.up() as up:
        start_waiting(site)
        up.terminate()
        site.until(lambda: [row["state"] for row in site.json("schedulers", "list")] == ["stopping"], "it is stopping")
        told = site.run("why", "waiter", "r1").stdout
        assert re.match(r"Scheduler \S+ is stopping: .*\. Once it has ended, start another one: `asynsched up`\.", told)
        assert "No scheduler is serving" not in told, "it serves the task that runs"
        assert "try 1 is running" in told.lower()
        up.terminate()
        up.wait(10)
        site.until(lambda: not site.processes(), "no process is left", seconds=10)


CALLBACKS = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, EmptyOperator, Variable

    def callback(context):
        name = context["ti"].task_id
        with Path(os.environ["MARKS"]).open("a") as marks:
            marks.write(f"{name} {os.getpid()}\\n")
        while not Path(os.environ["GATE"] + name).exists():
            time.sleep(0.01)
        if name == "goes_on":
            Variable.set(name, "done")

    with DAG("callbacks"):
        for name in ("ends", "goes_on"):
            EmptyOperator(task_id=name, on_success_callback=callback)
"""


@contextmanager
def callbacks_running(site):
    site.write("callbacks.py", CALLBACKS)
    with site.up() as up:
        site.wait_for_dag("callbacks")
        site.run("dags", "trigger", "callbacks")
        site.until(lambda: len(marks(site)) == 2, "both callbacks have begun")
        yield up


def test_callbacks_of_a_killed_scheduler_are_not_run_again(site):
    with callbacks_running(site) as up:
        pids = {name: int(pid) for name, pid in marks(site)}
        up.kill()
        Path(site.env["GATE"] + "ends").touch()
        site.until(lambda: not psutil.pid_exists(pids["ends"]), "one callback has ended while no scheduler served")
        with site.up():
            Path(site.env["GATE"] + "goes_on").touch()
            site.until(lambda: not psutil.pid_exists(pids["goes_on"]), "the other has ended")
            assert site.json("variables", "get", "goes_on")["value"] == "done"
    site.up_until_idle()
    assert sorted(name for name, _ in marks(site)) == ["ends", "goes_on"]


@on_sqlite
def test_callbacks_that_a_power_cut_ended_are_run_again(site):
    with callbacks_running(site) as up:
        up.kill()
        site.end_everything()
        for name in ("ends", "goes_on"):
            Path(site.env["GATE"] + name).touch()
        site.up_until_idle()
    assert sorted(name for name, _ in marks(site)) == ["ends", "ends", "goes_on", "goes_on"]
    assert site.json("variables", "get", "goes_on")["value"] == "done"


def test_a_run_that_its_caller_cancelled_does_not_go_on_after_a_kill(site):
    program = [sys.executable, "-c", CANCELS_AND_DIES, str(site.dags), str(site.home)]
    killed = subprocess.run(program, cwd=site.root, env=site.environment, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    site.up_until_idle()
    [run] = site.runs("waiter")
    assert (run["state"], run["reason"]) == ("failed", "the program cancelled the run")
    assert [mark[0] for mark in marks(site)] == ["begin"]
