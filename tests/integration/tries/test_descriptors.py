"""The keeper's descriptors that are open in processes that run user code."""

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest
from psutil import NoSuchProcess, Process

from tests.integration.tries.bench import Bench, value
from tests.support.waiting import eventually

UNFIT = "import socket; kept = socket.socket()"
"""A file whose process cannot be forked: each try loads the file itself."""
DAG_FILE = """
import os
from contextlib import suppress
from asynsched import DAG, task
{before}

def open_files():
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink("/proc/self/fd/" + descriptor))
    return found

AT_IMPORT = open_files()

with DAG("d"):
    @task
    def lists():
        return [AT_IMPORT, open_files()]
    lists()
"""


@pytest.mark.parametrize("before", ["", UNFIT])
async def test_a_file_and_its_tries_cannot_write_to_the_journal_of_the_keeper(bench: Bench, before):
    first, second = (bench.code(DAG_FILE.format(before=before + name), f"{name}.py") for name in ("", "#"))
    async with bench.running() as executor:
        found = value(await bench.run(executor, bench.launch(first, "lists")))
        [zygote], _ = bench.children_of_keeper()
        os.kill(zygote.pid, signal.SIGKILL)
        found += value(await bench.run(executor, bench.launch(second, "lists", try_number=2)))
    assert len(found) == 4
    assert all(found)
    assert not [path for paths in found for path in paths if path.startswith(str(bench.home / "attempts"))]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees a zygote's open files")
async def test_no_zygote_has_the_journal_of_the_keeper_open(bench: Bench, code):
    journal = str(bench.home / "attempts" / "journal")
    async with bench.running() as executor:
        assert journal in open_paths(bench.keeper().pid)
        await bench.run(executor, bench.launch(code, "asks"))
        forked = await eventually(lambda: zygotes(bench), "there are zygotes, of both kinds")
        assert not [process for process in forked if journal in open_paths(process.pid)]
        for zygote in forked:
            os.kill(zygote.pid, signal.SIGKILL)
        executed = await eventually(lambda: zygotes(bench, after=forked), "there are others, of both kinds")
        assert not [process for process in executed if journal in open_paths(process.pid)]


def zygotes(bench: Bench, after: Collection[Process] = ()) -> list[Process]:
    """Return the zygotes but earlier ones, once both are there."""
    found = []
    for process in bench.processes():
        with suppress(NoSuchProcess):  # just now
            if process.name().startswith("zygote") and process not in after:
                found.append(process)
    return found if sorted(process.name() for process in found) == ["zygote", "zygote-full"] else []


def open_paths(pid: int) -> list[str]:
    paths = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            paths.append(str(link.readlink()))
    return paths
