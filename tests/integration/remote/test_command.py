"""`asynsched worker run` as people start it."""

import subprocess
import sys

import pytest

from tests.support.waiting import DEADLINE_SECONDS


def test_a_worker_without_any_input_has_no_tickets_and_ends(tmp_path):
    command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "standard input"])
def test_a_ticket_that_cannot_be_read_is_named_and_ends_the_worker_with_1(tmp_path, is_file):
    (tmp_path / "ticket").write_text('{"no": "ticket"}\n')
    command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(tmp_path / "home")]
    with (tmp_path / "ticket").open() as file:
        done = subprocess.run(
            [*command, str(tmp_path / "ticket")] if is_file else command, stdin=file, capture_output=True, text=True,
            timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
    where = tmp_path / "ticket" if is_file else "standard input, line 1"
    assert f"{where}: this is not a ticket" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: 1 ticket is unreadable")
    assert done.returncode == 1


def test_a_line_that_is_longer_than_any_ticket_does_not_end_the_worker(tmp_path):
    command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(tmp_path / "home")]
    lines = "x" * 70_000 + '\n{"no": "ticket"}\n'
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "tickets are unreadable" in done.stderr.splitlines()[-1]
    assert done.returncode == 1
