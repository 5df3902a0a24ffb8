"""Event loops that stand still for longer than the lease and its grace, and one that only waits for tries to end."""

import asyncio
import ctypes
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from asynsched import Scheduler
from asynsched.lease import renewal as lease
from asynsched.results import FinishedRun
from asynsched.settings import LeaseSettings
from asynsched.simulation.script import ScriptedExecutor
from asynsched.store.engines.opening import open_database
from asynsched.store.schedulers import unended_schedulers
from tests.support.waiting import eventually

DAGS = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task

    with DAG("ledger"):
        @task
        def writes():
            marks = Path(os.environ["FOLDER"], "marks")

            def append(line):
                with marks.open("a") as file:
                    file.write(line)

            for line in marks.read_text().splitlines() if marks.exists() else ():
                if Path("/proc", line.split()[1]).exists():
                    append(f"overlap {os.getpid()}\\n")
            append(f"begin {os.getpid()}\\n")
            while not Path(os.environ["FOLDER"], "gate").exists():
                time.sleep(0.01)

        writes()
"""
STALL_SECONDS = 5.0
OUTLASTED = LeaseSettings(duration=3.0, renew_interval=0.3, grace=1.5, kill_time=0.5)
"""Over before the stall is, unless it is renewed meanwhile; long enough for a thread that a busy machine holds up."""
OVER = LeaseSettings(duration=2.0, renew_interval=0.3, grace=0.5, kill_time=0.5)
"""Over long before the stall is: also for a keeper that a busy machine holds up."""

OFTEN = LeaseSettings(renew_interval=0.05)


def sleeps() -> None:
    """Stand still, and let other threads run."""
    time.sleep(STALL_SECONDS)


def keeps_the_lock() -> None:
    """Stand still as C code does that never lets go of the interpreter lock, such as a hanging regular expression."""
    ctypes.PyDLL(None).usleep(int(STALL_SECONDS * 1_000_000))


@pytest.fixture
def make_scheduler(program, monkeypatch) -> Callable[[LeaseSettings], Scheduler]:
    monkeypatch.setattr(lease, "STALL_SECONDS", 1.5)
    monkeypatch.setenv("FOLDER", str(program.root))
    program.write(DAGS)
    return lambda settings: Scheduler(**program.options(lease=settings))


async def run_through(scheduler: Scheduler, stall: Callable[[], None], folder: Path) -> tuple[FinishedRun, list[str]]:
    """Stall the loop while a task runs; return the run, once that has ended, and the stacks that were logged."""
    finished = []

    async def run() -> None:
        finished.append(await scheduler.run("ledger"))

    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            await tasks.start(scheduler.serve)
            tasks.start_soon(run)
            await eventually((folder / "marks").exists, "the task has begun", seconds=60)
            stall()
            (folder / "gate").touch()
            await eventually(lambda: finished, "the run has ended", seconds=60)
            scheduler.request_stop()
    return finished[0], [line["stack"] for line in logs if line["event"] == "loop.stalled"]


async def test_a_loop_blocked_by_its_program_keeps_its_lease_and_reports_where(make_scheduler, program):
    run, stacks = await run_through(make_scheduler(OUTLASTED), sleeps, program.root)
    [task] = run.tasks
    assert (task.state, task.try_number, task.reason) == ("success", 1, "")
    assert (program.root / "marks").read_text().count("\n") == 1
    # A busy machine may hold the loop up elsewhere, too.
    assert ["time.sleep(STALL_SECONDS)" in stack for stack in stacks].count(True) == 1


async def test_a_stall_that_keeps_the_interpreter_lock_runs_nothing_twice_at_once(make_scheduler, program):
    run, _ = await run_through(make_scheduler(OVER), keeps_the_lock, program.root)
    marks = [line.split()[0] for line in (program.root / "marks").read_text().splitlines()]
    assert run.state == "success"
    assert marks == ["begin"] * run.tasks[0].try_number, "no try began while another one ran"
    assert len(marks) > 1, "the lease was over, so the try was ended"


@pytest.mark.parametrize("is_open", [False, True], ids=["by url", "open"])
async def test_a_lease_is_renewed_without_a_stall_however_long_tries_take_to_end(program, monkeypatch, is_open):
    program.write(DAGS)
    url = f"sqlite:///{program.root / 'state.db'}"
    database = await open_database(url)
    beats = []
    monkeypatch.setattr(lease.ThreadRenewal, "beat", lambda _: beats.append("the loop is alive"))

    async def heard_of() -> tuple[datetime, bool]:
        [row] = await database.read(unended_schedulers)
        return row.heartbeat_at, is_open or len(beats) > before

    class Slow(ScriptedExecutor):
        async def drain(self, deadline):
            nonlocal before
            before = len(beats)
            first, _ = await heard_of()
            while (now := await heard_of())[0] == first or not now[1]:
                await anyio.lowlevel.checkpoint()
            drained.append(self)

    before, drained = 0, []
    scheduler = Scheduler(database=database if is_open else url, executor=Slow, **program.options(lease=OFTEN))
    serving = asyncio.create_task(scheduler.serve())
    await scheduler.started.wait()
    serving.cancel()
    with anyio.fail_after(20), pytest.raises(asyncio.CancelledError):
        await serving
    assert drained
    await database.close()
