"""A process that answers one question."""

import subprocess
import sys

PROGRAM = """
import sys, time
from msgspec import Struct
from asynsched.simulation import own_process

class Question(Struct):
    pass

def answer(question):
    try:
        time.sleep(600)
    finally:
        sys.stderr.write("cleaned up")

own_process.ALONE_SECONDS = 0.1 - own_process.LONGEST_SECONDS
own_process.answer_once(Question, answer)
"""


def test_a_process_that_nobody_stops_ends_itself_and_cleans_up():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], input=b"{}\n{}", capture_output=True, timeout=60)
    assert ended.returncode != 0
    assert b"cleaned up" in ended.stderr
