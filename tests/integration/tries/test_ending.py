"""Ending tries from outside: timeouts, kills, drains, and their remains."""

import signal
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from asynsched.executors import keeper_connection, local
from asynsched.executors.local import SequentialExecutor
from asynsched.settings import LeaseSettings, Settings
from tests.integration.tries.bench import Bench, value
from tests.support.waiting import eventually, until

DAG_FILE = """
import os, signal, subprocess, sys, time
from asynsched import DAG, AsynschedTaskTimeout, BaseOperator, BaseSensorOperator, task

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]

def family():
    '''Leave processes behind in this group, in a group of their own, and in sessions of their own.'''
    subprocess.Popen(SLEEPER)
    subprocess.Popen(SLEEPER, process_group=0)
    subprocess.Popen(SLEEPER, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(SLEEPER[0], SLEEPER)
        os._exit(0)
    print("has a family")

# The hooks of a process run in the order in which it got them: this one comes before those of a try.
os.register_at_fork(after_in_child=lambda: os.environ.get("ENDED_AT_ONCE") and os.kill(os.getpid(), signal.SIGTERM))

def end_of_a_fork():
    os.environ["ENDED_AT_ONCE"] = "1"
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    del os.environ["ENDED_AT_ONCE"]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

class Stubborn(BaseOperator):
    def execute(self, context):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        family()
        time.sleep(600)

class Content(BaseOperator):
    def execute(self, context):
        try:
            time.sleep(600)
        except AsynschedTaskTimeout:
            return "in part"

class LooksForLong(BaseSensorOperator):
    def poke(self, context):
        time.sleep(600)

class LooksAgain(BaseSensorOperator):
    def poke(self, context):
        try:
            time.sleep(600)
        except AsynschedTaskTimeout:
            return False

class Tidy(BaseOperator):
    def execute(self, context):
        try:
            print("has begun")
            time.sleep(600)
        except Exception:
            print("hidden by except Exception")
        finally:
            print("cleaned up")

    def on_kill(self):
        print("on_kill")

with DAG("d"):
    Stubborn(task_id="stubborn")
    Tidy(task_id="tidy")
    Content(task_id="content")
    LooksForLong(task_id="looks_for_long", soft_fail=True)
    LooksAgain(task_id="looks_again", mode="reschedule", poke_interval=60)

    @task
    def leaves_a_family():
        family()

    @task
    def swallows():
        try:
            time.sleep(600)
        except BaseException:
            return "swallowed"

    @task
    def forks():
        '''Say how forks end that get SIGTERM as they begin, before and after the task has a handler of its own.'''
        found = [end_of_a_fork()]
        signal.signal(signal.SIGTERM, lambda *_: None)
        return [*found, end_of_a_fork()]

    leaves_a_family(); swallows(); forks()
"""


@pytest.fixture
def code(bench: Bench):
    return bench.code(DAG_FILE)


def left_over(bench: Bench) -> list[int]:
    """Return the processes of `family` that live: they have the home as their working folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(bench.home) and "time.sleep(600)" in " ".join(process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


async def test_a_task_that_somebody_else_ends_was_ended_by_the_machine(bench: Bench, code):
    async with bench.running() as executor:
        launch = bench.launch(code, "tidy")
        await executor.launch([launch])
        started = await bench.start_of(launch)
        await eventually(lambda: "has begun" in bench.log("tidy"), "the task's own code runs")
        psutil.Process(started.pid).terminate()
        ended = await bench.end_of(launch)
    assert (ended.state, ended.cause, ended.reason) == ("failed", "machine", "ended from outside by SIGTERM")
    assert [line for line in ("cleaned up", "on_kill") if line not in bench.log("tidy")] == []


async def test_execution_timeout_interrupts_user_code_and_lets_it_clean_up(bench: Bench, code):
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "tidy", execution_timeout=1.5))
    assert (ended.state, ended.reason, ended.cause, ended.retry) == (
        "failed", "execution_timeout of 1.5 s is over", "task", True,
    )  # fmt: skip
    assert "cleaned up\n" in bench.log("tidy")
    assert "on_kill\n" in bench.log("tidy")
    assert "hidden by" not in bench.log("tidy")
    assert "AsynschedTaskTimeout: execution_timeout of 1.5 s is over" in bench.log("tidy")


CAUGHT = [("content", "success"), ("looks_for_long", "skipped"), ("looks_again", "up_for_reschedule")]


@pytest.mark.parametrize(("task_id", "state"), CAUGHT)
async def test_a_try_may_catch_its_timeout_as_in_airflow(bench: Bench, code, task_id, state):
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, task_id, execution_timeout=1.0))
    assert ended.state == state
    assert state != "success" or value(ended) == "in part"


async def test_a_try_that_ignores_its_timeout_is_killed_with_all_that_it_started(bench: Bench, code, monkeypatch):
    monkeypatch.chdir(bench.home)
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "stubborn", execution_timeout=1.5))
        assert ended.reason == "execution_timeout of 1.5 s is over"
        assert "has a family" in bench.log("stubborn")
        until(lambda: not left_over(bench), "all processes of the try are gone")


async def test_what_a_try_leaves_behind_is_killed_when_it_ends(bench: Bench, code, monkeypatch):
    monkeypatch.chdir(bench.home)
    async with bench.running() as executor:
        ended = await bench.run(executor, bench.launch(code, "leaves_a_family"))
        assert (ended.state, "has a family" in bench.log("leaves_a_family")) == ("success", True)
        until(lambda: not left_over(bench), "all processes of the try are gone")


async def test_sigterm_ends_what_a_task_forks_unless_the_task_handles_it(bench: Bench, code):
    async with bench.running() as executor:
        found = value(await bench.run(executor, bench.launch(code, "forks")))
    assert found == [-signal.SIGTERM, 7]


async def test_a_killed_try_has_failed_whatever_its_code_says(bench: Bench, code):
    async with bench.running() as executor:
        launch = bench.launch(code, "swallows")
        await executor.launch([launch])
        await bench.start_of(launch)
        await executor.kill("unknown", "nobody")
        await executor.kill(launch.token, "somebody wants it ended")
        ended = await bench.end_of(launch)
    assert (ended.state, ended.reason, ended.cause) == ("failed", "somebody wants it ended", "task")
    assert value(ended) is None


async def test_a_drain_ends_what_is_left_at_its_deadline_as_interrupted(bench: Bench, code):
    executor = bench.executor()
    await executor.start(1)
    launch = bench.launch(code, "tidy")
    await executor.launch([launch])
    await bench.start_of(launch)
    await executor.drain(datetime.now(UTC) + timedelta(seconds=0.1))
    ended = await bench.end_of(launch)
    await executor.acknowledge([launch.token])
    await executor.close()
    assert (ended.state, ended.cause) == ("failed", "interrupted")
    until(lambda: not bench.processes(), "no process is left")
    assert not (bench.home / "keeper.sock").exists()
    assert (bench.home / "attempts" / "journal").read_bytes() == b""


@pytest.mark.parametrize("is_connected", [True, False])
async def test_tries_whose_keeper_does_not_answer_are_left_and_this_is_told(
    bench: Bench, code, monkeypatch, is_connected
):
    bench.settings = Settings(lease=LeaseSettings(kill_time=0.1))
    executor = bench.executor()
    await executor.start(1)
    launch = bench.launch(code, "tidy")
    await executor.launch([launch])
    started = await bench.start_of(launch)
    keeper = bench.keeper()
    keeper.suspend()
    with monkeypatch.context() as hurry:
        hurry.setattr(local, "LAST_WORDS", timedelta(seconds=0.1))
        hurry.setattr(keeper_connection, "GREETING_SECONDS", 0.1)
        if not is_connected:
            executor._connection.close()
        await executor.drain(datetime.now(UTC))
        await executor.close()
    assert executor.has_left_tries
    assert psutil.pid_exists(started.pid)
    keeper.resume()
    async with bench.running(lease_epoch=2) as second:
        await second.drain(datetime.now(UTC))
    assert not second.has_left_tries
    until(lambda: not bench.processes(), "no process is left")


async def test_a_drain_lets_short_tries_finish(bench: Bench):
    gate = bench.home / "gate"
    code = bench.code(
        f"from asynsched import DAG, task\nwith DAG('d'):\n @task\n def t():\n  open({str(gate)!r}, 'w')\n t()"
    )
    executor = bench.executor()
    await executor.start(1)
    launch = bench.launch(code, "t")
    await executor.launch([launch])
    await executor.drain(datetime.now(UTC) + timedelta(seconds=20))
    await executor.close()
    assert bench.ended[launch.token][0].state == "success"


def test_the_sequential_executor_has_room_for_one(bench: Bench):
    bench.settings = Settings(parallelism=7)
    assert (bench.executor().parallelism, bench.executor(SequentialExecutor).parallelism) == (7, 1)


async def test_what_is_launched_in_the_moment_of_a_stop_is_handed_back_at_once(bench: Bench, code):
    executor = bench.executor()
    await executor.drain(datetime.now(UTC))
    launch = bench.launch(code, "tidy")
    await executor.launch([launch])
    assert [(end.cause, end.started_at) for end in bench.ended[launch.token]] == [("interrupted", None)]
    assert not bench.processes()
