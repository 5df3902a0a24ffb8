"""How a command's process ends, wherever its output goes."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("no-such-command", 2)])
@pytest.mark.parametrize("elsewhere", ["", ">&-", "2>&-", ">&- 2>&-"])
def test_a_command_ends_with_its_exit_code_though_its_output_is_closed(tmp_path, arguments, code, elsewhere):
    line = f"{sys.executable} -m asynsched {arguments} {elsewhere}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    if not elsewhere:
        assert done.stdout.count("\n") + done.stderr.count("\n") >= 1


def test_a_command_whose_output_has_no_room_says_so_in_one_line(tmp_path):
    line = f"{sys.executable} -m asynsched config show >/dev/full"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: The output cannot be written: No space left on device\n")
