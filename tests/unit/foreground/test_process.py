"""The process of a run in the foreground ends as quietly as the command that has started it."""

import socket
import subprocess
import sys

import msgspec
import pytest

from asynsched.foreground.process import ForegroundRequest
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import Reply

INTERRUPT = "import signal; signal.raise_signal(signal.SIGINT)"
IN_A_TASK = f"""
from asynsched import DAG, PythonOperator

def interrupt():
    {INTERRUPT}

with DAG("d"):
    PythonOperator(task_id="t", python_callable=interrupt)
"""


@pytest.mark.parametrize("text", [INTERRUPT, IN_A_TASK], ids=["while-it-is-read", "in-a-task"])
def test_a_run_in_the_foreground_that_is_interrupted_shows_no_traceback(tmp_path, text):
    (tmp_path / "d.py").write_text(text)
    request = msgspec.json.encode(ForegroundRequest(str(tmp_path), "d.py", "d")).decode()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode_frame(Reply("", 1, 1024)))  # how long a map may be, which it asks first
        command = [sys.executable, "-m", "asynsched.foreground.process", str(theirs.fileno()), request]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False, timeout=30
        )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
