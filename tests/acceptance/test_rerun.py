"""Users clear, mark and cancel from another terminal: running tasks are killed, cleared ones run again."""

import os
import pty
import subprocess
from typing import Any

import pytest

DATABASES = ("postgresql",)

DAGS = """
    import time
    from pathlib import Path
    from asynsched import DAG, task

    FLAGS = Path({flags!r})

    def flag(run_id, name):
        return FLAGS / f"{{run_id}}.{{name}}"

    with DAG("etl"):

        @task
        def extract(ti=None):
            print("extract, try", ti.try_number)
            return 1

        @task
        def load(ti=None, run_id=None):
            if not flag(run_id, "repaired").exists():
                raise ValueError("not repaired yet")
            print("load, try", ti.try_number)

        @task
        def report():
            return "reported"

        extract() >> load() >> report()

    with DAG("slow"):

        @task
        def waits(run_id=None):
            with flag(run_id, "begun").open("a") as begun:
                begun.write("x")
            while not flag(run_id, "go").exists():
                time.sleep(0.02)

        @task
        def after():
            pass

        waits() >> after()
"""


@pytest.fixture(scope="module")
def site(new_site, tmp_path_factory) -> Any:
    """Yield a site with a scheduler."""
    site = new_site()
    site.flags = tmp_path_factory.mktemp("flags")
    site.write("reruns.py", DAGS.format(flags=str(site.flags)))
    with site.up():
        site.wait_for_dag("slow")
        yield site


class Run:
    """A run, as people at a terminal see it."""

    def __init__(self, site, dag_id, run_id):
        self.site, self.key = site, (dag_id, run_id)
        site.run("dags", "trigger", dag_id, "--run-id", run_id)

    def command(self, group, name, *arguments, code=0):
        yes = ("--yes",) if name in ("clear", "mark", "cancel") else ()
        return self.site.run(group, name, *self.key, *arguments, *yes, code=code)

    def shown(self):
        return self.site.json("runs", "show", *self.key)

    def wait(self, state):
        self.site.until(lambda: self.shown()["state"] == state, f"the run is {state}")

    def wait_until_begun(self, times):
        flag = self.site.flags / f"{self.key[1]}.begun"
        self.site.until(lambda: flag.exists() and flag.read_text() == "x" * times, f"it has begun {times} times")

    @property
    def tried(self):
        tasks = self.site.json("tasks", "list", *self.key)
        return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}

    @property
    def states(self):
        return self.site.task_states(*self.key)


def test_clearing_failed_tasks_repairs_a_run_and_every_try_stays_visible(site):
    run = Run(site, "etl", "repaired")
    run.wait("failed")
    assert run.states == {"extract": "success", "load": "failed", "report": "upstream_failed"}
    assert [site.json("runs", "show", "etl", name)["run_id"] for name in ("rep", "latest")] == ["repaired"] * 2
    assert completed(site, "asynsched tasks logs etl rep ") == ["plain,extract", "plain,load", "plain,report"]
    would = site.json("tasks", "clear", *run.key, "load", "--downstream", "--dry-run")
    assert {row["task_id"] for row in would} == {"load", "report"}
    (site.flags / "repaired.repaired").touch()
    run.command("runs", "clear", "--only-failed")
    run.wait("success")
    assert "load, try 2" in run.command("tasks", "logs", "load").stdout
    assert "not repaired yet" in run.command("tasks", "logs", "load", "--try", "1").stdout
    run.command("tasks", "clear", "extract", "--downstream")
    run.wait("success")
    tries = {row["task_id"]: row["try_number"] for row in site.json("tasks", "list", *run.key)}
    assert tries == {"extract": 2, "load": 3, "report": 2}
    every = [(row["task_id"], row["state"]) for row in site.json("tasks", "list", *run.key, "--all-tries")]
    assert every == [
        ("extract", "success"), ("extract", "success"), ("load", "failed"), ("load", "success"), ("load", "success"),
        ("report", "success"), ("report", "success"),
    ]  # fmt: skip
    assert site.json("tasks", "xcom", *run.key, "report")[0]["value"] == "reported"


@pytest.mark.parametrize(
    ("command", "more", "question"),
    [
        (("runs", "clear"), (), "Clear 3 task instances of asked?"),
        (("runs", "mark"), ("failed",), "Mark the run asked as failed, and with it 0 task instances?"),
        (("tasks", "clear"), ("report",), "Clear 1 task instance of asked?"),
        (("tasks", "mark"), ("load", "failed"), "Mark 1 task instance of asked as failed?"),
    ],
)
def test_a_command_that_asks_does_nothing_where_there_is_nobody_to_ask(site, command, more, question):
    if "asked" not in {run["run_id"] for run in site.runs("etl")}:
        (site.flags / "asked.repaired").touch()
        Run(site, "etl", "asked").wait("success")
    before = site.json("runs", "show", "etl", "asked"), site.json("tasks", "list", "etl", "asked")
    refused = site.run(*command, "etl", "asked", *more, code=1).stderr
    assert refused.startswith(f"Error: {question} There is no terminal")
    assert "--yes" in refused
    assert (site.json("runs", "show", "etl", "asked"), site.json("tasks", "list", "etl", "asked")) == before


def test_a_command_on_a_terminal_shows_its_targets_and_waits_for_a_yes(site):
    run = Run(site, "slow", "answered")
    run.wait_until_begun(1)
    for answer, code, state in (("n", 1, "running"), ("y", 0, "failed")):
        ours, terminal = pty.openpty()
        with subprocess.Popen(
            site.command("runs", "cancel", *run.key), cwd=site.root, env=site.environment,
            stdin=terminal, stderr=terminal, stdout=subprocess.DEVNULL,
        ) as asks:  # fmt: skip
            os.close(terminal)
            os.write(ours, f"{answer}\n".encode())
            assert asks.wait(30) == code
        told = os.read(ours, 10_000).decode()
        os.close(ours)
        assert "waits (running)" in told
        assert "Cancel the run answered, and with it 2 task instances?" in told
        assert run.shown()["state"] == state


def test_clearing_restarts_a_running_task_and_cancelling_leaves_no_process(site):
    run = Run(site, "slow", "killed")
    run.wait_until_begun(1)
    run.command("tasks", "clear", "waits", "--only-running")
    run.wait_until_begun(2)
    site.until(lambda: run.tried["waits"] == ("running", 2), "its second try is shown")
    assert site.json("runs", "cancel", *run.key, "--yes")["done"]
    assert (run.shown()["state"], "cancelled" in run.shown()["reason"]) == ("failed", True)
    assert run.states == {"waits": "failed", "after": "skipped"}
    assert "has already ended" in run.command("runs", "cancel", code=1).stderr


def test_a_task_is_forced_to_start_by_ignoring_what_holds_it(site):
    run = Run(site, "slow", "forced")
    run.wait_until_begun(1)
    run.command("tasks", "run", "after", "--ignore-task-deps")
    site.until(lambda: run.states["after"] == "success", "it runs, though its upstream has not ended")
    assert "--ignore-ti-state" in run.command("tasks", "run", "after", code=1).stderr
    (site.flags / "forced.go").touch()
    run.wait("success")
    run.command("tasks", "run", "after", "--ignore-all-deps")
    site.until(lambda: run.shown()["state"] == "success" and len(tries_of(run, "after")) == 2, "it has run again")


def completed(site, line):
    """Return the completions that a shell offers at the end of a line."""
    asked = {"_ASYNSCHED_COMPLETE": "bash_complete", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    told = subprocess.run(
        site.command(), cwd=site.root, env=site.environment | asked, stdout=subprocess.PIPE, text=True, check=True
    )
    return told.stdout.split()


def tries_of(run, task_id):
    return [row for row in run.site.json("tasks", "list", *run.key, "--all-tries") if row["task_id"] == task_id]


def test_a_task_that_is_marked_lets_the_rest_go_on(site):
    failed, running = Run(site, "etl", "marked"), Run(site, "slow", "marked")
    failed.wait("failed")
    failed.command("tasks", "mark", "load", "success")
    failed.wait("success")
    assert failed.states == dict.fromkeys(("extract", "load", "report"), "success")
    running.wait_until_begun(1)
    running.command("tasks", "mark", "waits", "skipped")
    running.wait("success")
    assert running.states == {"waits": "skipped", "after": "skipped"}
    assert "waits" in running.command("tasks", "mark", "wait", "success", code=1).stderr
    running.command("runs", "mark", "failed")
    assert running.shown()["state"] == "failed"


def test_a_run_keeps_its_version_and_tasks_until_it_is_moved_to_the_newest(new_site):
    site = new_site()
    version = """
        from asynsched import DAG, task

        with DAG("changing"):

            @task
            def stays():
                return {number}

            @task
            def {other}():
                return {number}

            stays() >> {other}()
    """
    site.write("changing.py", version.format(number=1, other="old"))
    with site.up():
        site.wait_for_dag("changing")
        run = Run(site, "changing", "r")
        run.wait("success")

        def value(task_id):
            return site.json("tasks", "xcom", *run.key, task_id)[0]["value"]

        def save(number, other):
            site.write("changing.py", version.format(number=number, other=other))
            site.run("dags", "reparse", "changing")
            site.until(lambda: other in site.run("dags", "show", "changing").stdout, f"version {number} is known")

        save(2, "new")
        run.command("runs", "clear")
        run.wait("success")
        assert (run.states, value("stays")) == ({"stays": "success", "old": "success"}, 1)
        run.command("runs", "clear", "--latest")
        run.wait("success")
        assert run.states == {"stays": "success", "old": "removed", "new": "success"}
        assert (value("stays"), value("new")) == (2, 2)
        save(3, "old")
        run.command("runs", "clear", "--latest", "--only-failed")
        run.wait("success")
        assert run.states == {"stays": "success", "old": "success", "new": "removed"}
        assert (value("stays"), value("old")) == (2, 3)


def test_what_is_asked_for_while_no_scheduler_serves_is_done_by_the_next(new_site, tmp_path):
    site = new_site()
    site.flags = tmp_path
    site.write("reruns.py", DAGS.format(flags=str(site.flags)))
    with site.up() as served:
        site.wait_for_dag("slow")
        cancelled, cleared = Run(site, "slow", "cancelled"), Run(site, "slow", "cleared")
        cancelled.wait_until_begun(1)
        cleared.wait_until_begun(1)
        served.kill()
        for answer in (
            site.json("runs", "cancel", *cancelled.key, "--yes"),
            site.json("tasks", "clear", *cleared.key, "waits", "--only-running", "--yes"),
        ):
            assert not answer["done"]
        asked = site.json("why", *cancelled.key)
        assert asked["answer"].endswith("Before that: cancelling the run.")
        told = [(reason["rule"], reason["text"].split(";")[0].split(" by ")[0]) for reason in asked["reasons"]]
        assert told[:2] == [("scheduler", "no scheduler is serving"), ("request", "cancelling the run was asked for")]
        assert "clearing task waits was asked for" in site.run("why", *cleared.key, "waits").stdout
        with site.up():
            cancelled.wait("failed")
            assert cancelled.states == {"waits": "failed", "after": "skipped"}
            cleared.wait_until_begun(2)
            (site.flags / "cleared.go").touch()
            cleared.wait("success")
