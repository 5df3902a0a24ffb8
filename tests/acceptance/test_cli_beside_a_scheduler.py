"""Commands beside a scheduler that serves: those that follow a run, those that leave it alone, and stops of `up`."""

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.acceptance.gated_site import serving_gated, wait_running

DATABASES = ("sqlite",)  # steering a scheduler on PostgreSQL is tested elsewhere


@pytest.fixture(scope="module")
def site(new_site) -> Any:
    """Yield a site whose scheduler serves until the module has ended."""
    site = new_site()
    with serving_gated(site):
        yield site


def start(site, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        site.command(*arguments), env=site.environment, cwd=site.root, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    """Read what a command says beside its answer, up to a line with that text."""
    assert process.stderr is not None
    while text not in process.stderr.readline():
        assert process.poll() is None


def test_a_log_is_followed_until_the_try_has_ended(site):
    site.run("dags", "trigger", "slow", "--run-id", "followed")
    with start(site, "tasks", "logs", "slow", "followed", "waits", "--follow") as following:
        assert "it waits" in following.stdout.readline()
        (site.root / "followed").touch()
        out, err = following.communicate(timeout=30)
    assert "it goes on" in out
    assert (following.returncode, err) == (0, "")
    assert site.json("tasks", "logs", "slow", "followed", "waits", "--try", "1")["log"].endswith(out)
    refused = site.run("tasks", "logs", "slow", "followed", "waits", "--try", "2", code=1)
    assert refused.stderr == "Error: The task 'waits' has no try 2; it has try 1.\n"


def test_events_are_followed_as_lines_from_a_number_on_until_ctrl_c(site):
    site.run("dags", "trigger", "slow", "--run-id", "told")
    with start(site, "events", "slow", "told", "--since", "0", "--output", "json") as following:
        changes = [json.loads(following.stdout.readline()) for _ in range(3)]
        (site.root / "told").touch()
        while (changes[-1]["kind"], changes[-1]["state"]) != ("run", "success"):
            changes.append(json.loads(following.stdout.readline()))
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=30)
    assert (following.returncode, err) == (130, "Error: Interrupted.\n")
    assert {change["run_id"] for change in changes} == {"told"}
    before = changes[-2]["number"]
    with start(site, "events", "slow", "--since", str(before)) as following:
        line = following.stdout.readline()
        following.stdout.close()
        site.run("dags", "trigger", "slow", "--run-id", "later")
        assert following.wait(30) == 1, "the reader has gone, and there was something to write"
        assert following.stderr.read() == ""
    assert line.startswith(f"{changes[-1]['number']} ")
    assert line.endswith(" told of slow success: all tasks have ended\n"), line
    assert "Did you mean slow?" in site.run("events", "slwo", code=1).stderr


def test_ctrl_c_ends_the_wait_and_leaves_the_run_alone(site):
    with start(site, "dags", "trigger", "slow", "--run-id", "alone", "--wait") as waiting:
        wait_for(waiting, "running")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (130, "")
    assert "the run goes on" in err
    assert "Traceback" not in err
    assert site.json("runs", "show", "slow", "alone")["state"] == "running"
    (site.root / "alone").touch()
    site.until(lambda: site.json("runs", "show", "slow", "alone")["state"] == "success", "the run has succeeded")


def test_a_wait_tells_that_the_scheduler_is_gone_and_when_another_serves(new_site):
    site = new_site()
    site.env["ASYNSCHED_SHUTDOWN_GRACE"] = "0"
    with serving_gated(site) as up:
        waiting = start(site, "dags", "trigger", "slow", "--run-id", "left", "--wait")
        wait_for(waiting, "running")
        up.interrupt()
        assert up.wait() == 0
        wait_for(waiting, "No scheduler is serving any more; the run waits for one.")
        with site.up():
            wait_for(waiting, "A scheduler serves now.")
            (site.root / "left").touch()
            out, _ = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (0, "Run 'left' of the DAG 'slow': success.\n")


def test_a_second_signal_stops_at_once_and_leaves_no_process(new_site):
    site = new_site()
    site.env["ASYNSCHED_SHUTDOWN_GRACE"] = "600"
    with serving_gated(site) as up:
        site.run("dags", "trigger", "slow", "--run-id", "endless")
        wait_running(site, "endless")
        up.interrupt()
        site.until(lambda: "Waiting for 1 try to end, 600 s at most: slow.waits (run endless" in up.log, "it is said")
        assert "Ctrl-C kills them." in up.log
        up.terminate()
        assert up.wait() == 1
        assert "Stopped at once" in up.log
        site.assert_nothing_left()
    assert site.json("runs", "show", "slow", "endless")["state"] in {"running", "queued"}
