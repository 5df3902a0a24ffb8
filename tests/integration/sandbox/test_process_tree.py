"""Nothing of a parse is left: not its processes, however it ended, nor its files."""

import signal
import time
from collections.abc import Callable

import psutil
import pytest

from tests.integration.sandbox.conftest import Parser

LEAVES_CHILDREN = """
import os, subprocess, time
subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
for _ in range(3):
    if os.fork() == 0:
        while True:
            pass
"""

ALL_OF_THEM = 8
"""The watching process and its helper, the file's own process, and five that it started."""


def _left_over(parse: Parser) -> list[psutil.Process]:
    """Return processes that still work in the scratch folder or were started for a file of the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(parse.dags) in " ".join(process.cmdline()) or process.cwd().startswith(str(parse.scratch)):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("ending", ["", "os._exit(3)", "os.abort()", "raise ValueError", "while True: pass"])
def test_children_end_with_the_parse(ending: str, parse: Parser) -> None:
    parse(LEAVES_CHILDREN + ending, import_timeout=1)
    assert _left_over(parse) == []
    assert list(parse.scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_parse_takes_everything_with_it(number: int, parse: Parser) -> None:
    parse.write(LEAVES_CHILDREN + "while True: pass")
    process = parse.popen("dag.py")
    _until(lambda: len(_left_over(parse)) >= ALL_OF_THEM)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert _left_over(parse) == []
    assert list(parse.scratch.iterdir()) == []


def test_file_runs_no_longer_than_the_process_that_watches_it(parse: Parser) -> None:
    parse.write(LEAVES_CHILDREN + "while True: pass")
    process = parse.popen("dag.py")
    _until(lambda: len(_left_over(parse)) >= ALL_OF_THEM)
    process.kill()
    process.communicate(timeout=30)
    _until(lambda: not _left_over(parse))


def test_what_a_parse_writes_is_removed_whatever_its_rights(parse: Parser) -> None:
    parsed = parse("import os\nos.mkdir('locked', 0)\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\n")
    assert not parsed.report.errors
    assert list(parse.scratch.iterdir()) == []
