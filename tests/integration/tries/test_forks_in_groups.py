"""Processes for tries that are wanted at once are forked as a group."""

import signal
from collections import Counter
from typing import Any

import pytest

from asynsched.protocol.messages import Ended
from sandbox.template import MOST_AT_ONCE
from tests.integration.tries.bench import Bench, value

DAG_FILE = """
import os
from asynsched import DAG, task
{before}

template = os.getpid()

with DAG("d"):
    @task
    def work():
        return {result}
    for _ in range(20):
        work()
"""


async def forked_together(bench: Bench, n: int, before: str, result: str) -> tuple[Any, list[Ended]]:
    """Return the value of a first try, and the ends of n others that are wanted while the template stands still."""
    code = bench.code(DAG_FILE.format(before=before, result=result))
    async with bench.running() as executor:
        first = value(await bench.run(executor, bench.launch(code, "work")))  # one more is ready now
        _, [template] = bench.children_of_keeper()
        template.send_signal(signal.SIGSTOP)
        launches = [bench.launch(code, f"work__{number}") for number in range(1, n + 1)]
        await executor.launch(launches)
        await bench.until(lambda: len(bench.started) == 2, "the process runs that was ready")
        template.send_signal(signal.SIGCONT)  # it finds that others are wanted, and one to be ready
        return first, [await bench.end_of(launch) for launch in launches]


OPEN_FILES = """
from contextlib import suppress

def open_files():
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield os.readlink("/proc/self/fd/" + descriptor)
"""


async def test_tries_that_are_forked_together_share_only_the_tie_to_the_keeper(bench: Bench):
    _, ends = await forked_together(bench, 2 * MOST_AT_ONCE, OPEN_FILES, "list(open_files())")
    files = (path for ended in ends for path in set(value(ended)))
    holders = Counter(path for path in files if path.startswith(("pipe:", "socket:")))
    assert sorted(holders.values()) == [1] * 2 * len(ends) + [len(ends)]


FORKS = """
fork, forks = os.fork, []

def fork_as_there_is_room():
    forks.append(1)
    {before}
    pid = fork()
    {after}
    return pid

os.fork = fork_as_there_is_room
"""
HAS_ROOM_FOR_FOUR = FORKS.format(before="if len(forks) > 4: raise BlockingIOError(11, 'Try again')", after="")
FAILS_IN_THE_FOURTH = FORKS.format(before="", after="if pid == 0 and len(forks) == 4: raise MemoryError")


async def test_what_was_forked_before_there_was_no_more_room_runs_its_tries(bench: Bench):
    template, ends = await forked_together(bench, 4, HAS_ROOM_FOR_FOUR, "template")
    templates = [value(ended) for ended in ends]
    assert templates.count(template) == 3
    assert None not in templates, "the try that got no process is given another template"


async def test_a_process_that_fails_early_harms_none_that_is_forked_with_it(bench: Bench):
    template, ends = await forked_together(bench, 4, FAILS_IN_THE_FOURTH, "template")
    assert Counter(ended.state for ended in ends) == {"success": 3, "failed": 1}
    assert {value(ended) for ended in ends if ended.state == "success"} == {template}


LITTLE_ROOM = """
import resource

first = os.dup(0)
os.close(first)
resource.setrlimit(resource.RLIMIT_NOFILE, (first + {room}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
"""Five descriptors are opened for each process that is forked."""


@pytest.mark.parametrize("room", range(10, 15))
async def test_where_few_descriptors_can_be_opened_fewer_tries_are_forked_together(bench: Bench, room):
    result = "[template, len(os.listdir('/proc/self/fd'))]"
    first, ends = await forked_together(bench, 8, LITTLE_ROOM.format(room=room), result)
    assert [value(ended) for ended in ends] == [first] * 8
