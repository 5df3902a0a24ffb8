"""Processes for tries that are wanted at once are forked as a group."""

import os
import signal
from collections import Counter

import pytest

from asynsched.executors.local import LocalExecutor
from sandbox.protocol import CodeVersion, Ended
from sandbox.template import MOST_AT_ONCE
from tests.integration.tries.bench import Bench, value

LISTS_OPEN_FILES = """
import os
from contextlib import suppress
from asynsched import DAG, task

def open_files():
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield os.readlink("/proc/self/fd/" + descriptor)

with DAG("d"):
    @task
    def work():
        return [os.getppid(), *open_files()]
    for _ in range(20):
        work()
"""


async def ends_of_those_asked_for_together(
    bench: Bench, executor: LocalExecutor, template: int, code: CodeVersion, n: int
) -> list[Ended]:
    """Launch so many tries while the template stands still, which has one process ready, and return their ends."""
    together = [bench.launch(code, f"work__{number}") for number in range(1, n + 1)]
    os.kill(template, signal.SIGSTOP)
    await executor.launch(together)
    await bench.until(lambda: len(bench.started) == 2, "the process runs that was ready")
    os.kill(template, signal.SIGCONT)  # it finds that others are wanted, and one to be ready
    return [await bench.end_of(launch) for launch in together]


async def test_tries_that_are_forked_together_share_nothing_but_what_ties_them_to_the_keeper(bench: Bench):
    code = bench.code(LISTS_OPEN_FILES)
    async with bench.running() as executor:
        template, *_ = value(await bench.run(executor, bench.launch(code, "work")))
        ends = await ends_of_those_asked_for_together(bench, executor, template, code, 2 * MOST_AT_ONCE)
    files = (path for ended in ends for path in set(value(ended)[1:]))
    holders = Counter(path for path in files if path.startswith(("pipe:", "socket:")))
    assert sorted(holders.values()) == [1] * 2 * len(ends) + [len(ends)]


FORKS_FOUR_TIMES = """
import os
from asynsched import DAG, task

fork, left, template = os.fork, [1] * 4, os.getpid()

def fork_while_there_is_room():
    if not left:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    left.pop()
    return fork()

os.fork = fork_while_there_is_room

with DAG("d"):
    @task
    def work():
        return template
    for _ in range(5):
        work()
"""


async def test_what_was_forked_before_there_was_no_more_room_runs_its_tries(bench: Bench):
    code = bench.code(FORKS_FOUR_TIMES)
    async with bench.running() as executor:
        template = value(await bench.run(executor, bench.launch(code, "work")))  # one more is ready now
        ends = await ends_of_those_asked_for_together(bench, executor, template, code, 4)
    templates = [value(ended) for ended in ends]
    assert templates.count(template) == 3
    assert None not in templates, "the try that got no process is given another template"


FAILS_IN_ONE_FORK = """
import os
from asynsched import DAG, task

fork, forks, template = os.fork, [], os.getpid()

def fork_and_fail_in_the_fourth():
    forks.append(1)
    pid = fork()
    if pid == 0 and len(forks) == 4:
        raise MemoryError
    return pid

os.fork = fork_and_fail_in_the_fourth

with DAG("d"):
    @task
    def work():
        return template
    for _ in range(5):
        work()
"""


async def test_a_process_that_fails_before_it_is_a_try_takes_none_of_those_along_that_are_forked_with_it(bench: Bench):
    code = bench.code(FAILS_IN_ONE_FORK)
    async with bench.running() as executor:
        template = value(await bench.run(executor, bench.launch(code, "work")))
        ends = await ends_of_those_asked_for_together(bench, executor, template, code, 4)
    assert Counter(ended.state for ended in ends) == {"success": 3, "failed": 1}
    assert {value(ended) for ended in ends if ended.state == "success"} == {template}


HAS_LITTLE_ROOM = """
import os, resource
from asynsched import DAG, task

first = os.dup(0)
os.close(first)
resource.setrlimit(resource.RLIMIT_NOFILE, (first + {room}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
template = os.getpid()

with DAG("d"):
    @task
    def work():
        return [template, len(os.listdir("/proc/self/fd"))]
    for _ in range(9):
        work()
"""
"""Five descriptors are opened for each process that is forked."""


@pytest.mark.parametrize("room", range(10, 15))
async def test_where_few_descriptors_can_be_opened_fewer_tries_are_forked_together(bench: Bench, room):
    code = bench.code(HAS_LITTLE_ROOM.format(room=room))
    async with bench.running() as executor:
        template, n_open = value(await bench.run(executor, bench.launch(code, "work")))
        ends = await ends_of_those_asked_for_together(bench, executor, template, code, 8)
    assert [value(ended) for ended in ends] == [[template, n_open]] * 8
