"""Commands that wait for a scheduler are woken: they end though they never look by themselves."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.acceptance.gated_site import serving_gated, wait_running

WITHOUT_SWEEP = """
import asynsched.cli.changes as changes
changes.SWEEP_SECONDS = 600
import asynsched.cli
asynsched.cli.main()
"""


@pytest.fixture(scope="module")
def site(new_site) -> Any:
    """Yield a site whose scheduler serves until the module has ended."""
    site = new_site()
    with serving_gated(site):
        yield site


@contextmanager
def started(site, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_SWEEP, *arguments], env=site.environment, cwd=site.root, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_waits_for_a_run_a_log_and_a_request_end_by_events_alone(site):
    with started(site, "dags", "trigger", "slow", "--run-id", "a", "--wait") as waiting:
        assert waiting.stderr.readline() == "Waiting for the run 'a' of the DAG 'slow'.\n"
        wait_running(site, "a")
        with started(site, "tasks", "logs", "slow", "a", "waits", "--follow") as following:
            assert "it waits" in following.stdout.readline()
            (site.root / "a").touch()
            assert "it goes on" in following.communicate(timeout=30)[0]
        assert waiting.communicate(timeout=30)[0].startswith("Run 'a' of the DAG 'slow': success.")
        assert (waiting.returncode, following.returncode) == (0, 0)
    site.run("dags", "trigger", "slow", "--run-id", "b")
    wait_running(site, "b")
    with started(site, "runs", "cancel", "slow", "b", "--yes") as cancelling:
        assert cancelling.communicate(timeout=30) == ("Cancelled the run b, and with it 1 task instance.\n", "")
