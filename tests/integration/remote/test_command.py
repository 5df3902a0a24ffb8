"""`asynsched worker run` as people start it."""

import subprocess
import sys

from tests.support.waiting import DEADLINE_SECONDS


def test_a_worker_without_any_input_has_no_tickets_and_ends(tmp_path):
    command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (0, False), done.stderr
