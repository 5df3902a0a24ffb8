"""Any process may die, at any moment: what is lost, what goes on, and what never happens twice."""

import asyncio
import os
import signal
from contextlib import suppress

import msgspec
import psutil
import pytest
from msgspec import Struct

from asynsched.clock import SystemClock
from asynsched.errors import ExecutorError
from asynsched.executors import keeper_client, local
from asynsched.executors.local import REFUSAL_PAUSE
from asynsched.settings import LeaseSettings, Settings
from sandbox.protocol import PROTOCOL_VERSION
from sandbox.supervision.watchdog import PATIENCE_SECONDS
from tests.integration.tries.bench import Bench, replies, value
from tests.support.waiting import eventually, until

DAG_FILE = """
import os, subprocess, sys
from asynsched import DAG, Variable, task
HOME = {home!r}
with DAG("d"):
    @task
    def waits():
        with open(HOME + "/begun", "a") as file:
            file.write("x")
        return open(HOME + "/gate").read()

    @task
    def asks():
        return Variable.get("colour")

    @task
    def escapes():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with open(HOME + "/escaped", "w") as file:
            file.write(str(child.pid))
        return open(HOME + "/gate").read()

    waits(); asks(); escapes()
"""


@pytest.fixture
def code(bench: Bench):
    os.mkfifo(bench.home / "gate")
    return bench.code(DAG_FILE.format(home=str(bench.home)))


def begun(bench: Bench) -> int:
    return len((bench.home / "begun").read_text())


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_scheduler_that_comes_back_takes_its_tries_back(bench: Bench, code):
    first = bench.executor()
    await first.start(1)
    running, finished = bench.launch(code, "waits"), bench.launch(code, "asks")
    await first.launch([running])
    await bench.start_of(running)
    assert value(await bench.run(first, finished)) is None
    await first.close()
    bench.ended.clear()

    second = bench.executor()
    held = await second.start(2)
    assert (held.running, held.starting, held.ended) == ({running.token}, frozenset(), {finished.token})
    assert len(bench.ended[finished.token]) == 1, "an end that nobody acknowledged is reported again"
    await second.acknowledge([finished.token])
    await second.launch([running, finished])
    (bench.home / "gate").write_text("through")
    assert value(await bench.end_of(running)) == "through"
    await second.drain(SystemClock().now())
    await second.close()
    assert begun(bench) == 1


async def test_a_launch_that_is_repeated_runs_once(bench: Bench, code):
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        for _ in range(3):
            await executor.launch([launch])
            executor._connection.send(launch)
        await bench.start_of(launch)
        (bench.home / "gate").write_text("through")
        await bench.end_of(launch)
        executor._connection.send(launch)
        await bench.run(executor, bench.launch(code, "asks"))
        assert begun(bench) == 1
        assert len(bench.ended[launch.token]) == 1
        await executor.close()
    bench.ended.clear()
    async with bench.running():
        assert value(bench.ended[launch.token][0]) == "through"


async def test_a_request_is_answered_across_a_restart_of_the_scheduler(bench: Bench, code):
    first = bench.executor()
    silent = asyncio.Event()

    async def never(request):
        bench.requests.append(request)
        bench._changed.set()
        await silent.wait()

    object.__setattr__(first.context, "answer", never)
    await first.start(1)
    launch = bench.launch(code, "asks")
    await first.launch([launch])
    await bench.until(lambda: bench.requests, "the request")
    await first.close()
    bench.answers["variable_get"] = replies("green")
    async with bench.running(lease_epoch=1):
        assert value(await bench.end_of(launch)) == "green"
    assert [request.request_id for request in bench.requests] == [1, 1]


async def test_a_killed_keeper_takes_its_tries_with_it_and_another_reports_them(bench: Bench, code):
    async with bench.running() as executor:
        running, escaping = bench.launch(code, "waits"), bench.launch(code, "escapes")
        await executor.launch([running, escaping])
        pids = [(await bench.start_of(launch)).pid for launch in (running, escaping)]
        until(lambda: (bench.home / "escaped").exists() and (bench.home / "escaped").read_text(), "the child")
        escaped = int((bench.home / "escaped").read_text())
        keeper = bench.keeper().pid
        os.kill(keeper, signal.SIGKILL)
        ends = [await bench.end_of(launch) for launch in (running, escaping)]
        assert {(end.state, end.cause) for end in ends} == {("failed", "machine")}
        assert "keeper" in ends[0].reason
        assert "keeper" in bench.log("waits")
        assert not [pid for pid in [*pids, escaped] if is_alive(pid)], "also what had left the try's session"
        assert bench.keeper().pid != keeper
        assert value(await bench.run(executor, bench.launch(code, "asks"))) is None
    assert begun(bench) == 1


async def test_tries_die_with_their_keeper_though_nobody_is_left_to_see_it(bench: Bench, code):
    executor = bench.executor()
    await executor.start(1)
    launch = bench.launch(code, "waits")
    await executor.launch([launch])
    pid = (await bench.start_of(launch)).pid
    await executor.close()
    os.kill(bench.keeper().pid, signal.SIGKILL)
    until(lambda: not is_alive(pid) and not bench.processes(), "the try and its template are gone", seconds=5)


async def test_what_a_dead_keeper_had_not_heard_of_is_launched_by_the_next(bench: Bench, code):
    async with bench.running() as executor:
        os.kill(bench.keeper().pid, signal.SIGKILL)
        ended = await bench.run(executor, bench.launch(code, "asks"))
    assert (ended.state, ended.cause) == ("success", "task")


async def test_a_keeper_that_is_killed_while_it_starts_is_made_up_for(bench: Bench, code, monkeypatch):
    kill = [True]

    def start_and_kill(*arguments):
        start(*arguments)
        if kill:
            kill.clear()
            os.kill(bench.keeper().pid, signal.SIGKILL)
            until(lambda: not bench.processes(), "the keeper is gone")

    start = local.start_keeper
    monkeypatch.setattr(local, "start_keeper", start_and_kill)
    async with bench.running() as executor:
        assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
    assert not kill


async def test_a_scheduler_of_an_older_lease_is_refused(bench: Bench, code):
    async with bench.running(lease_epoch=2):
        old = bench.executor()
        with pytest.raises(ExecutorError, match="newer scheduler"):
            await old.start(1)
        await old.close()


async def test_tries_of_a_scheduler_that_does_not_come_back_end_with_its_lease(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=0.3, renew_interval=0.1, grace=0.1, kill_time=0.5))
    first = bench.executor()
    await first.start(1)
    launch = bench.launch(code, "waits")
    await first.launch([launch])
    pid = (await bench.start_of(launch)).pid
    await first.close()
    until(lambda: not bench.processes(), "keeper and try have ended", seconds=5)
    assert not is_alive(pid)
    assert not (bench.home / "keeper.sock").exists()
    async with bench.running(lease_epoch=2) as second:
        ended = await bench.end_of(launch)
        assert (ended.state, ended.cause) == ("failed", "machine")
        assert "lease" in ended.reason
        await second.acknowledge([launch.token])


async def test_a_lease_that_is_renewed_keeps_tries_alive_and_one_that_is_over_ends_them(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=0.4, renew_interval=0.1, grace=0.1, kill_time=0.5))
    clock = SystemClock()
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        executor.renew_lease(clock.boottime() + 100)
        await executor.launch([launch])
        await bench.start_of(launch)
        keeper = bench.keeper().pid
        executor.renew_lease(clock.boottime() - 100)
        ended = await bench.end_of(launch)
        assert (ended.cause, "lease" in ended.reason) == ("machine", True)
        refused = await bench.run(executor, bench.launch(code, "asks"))
        assert (refused.cause, "lease" in refused.reason) == ("interrupted", True), "it is handed back, not killed"
        assert executor.context.clock.now() - refused.ended_at >= REFUSAL_PAUSE
        executor.renew_lease(clock.boottime() + 100)
        assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
        assert bench.keeper().pid == keeper


async def test_a_lease_is_no_longer_because_its_scheduler_connects_anew(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=100, grace=0.0, kill_time=0.5))
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        await executor.launch([launch])
        await bench.start_of(launch)
        executor.renew_lease(SystemClock().boottime() + 1)
        connection = executor._connection
        connection.close()
        ended = await bench.end_of(launch)
        assert executor._connection is not connection
        assert (ended.cause, "lease" in ended.reason) == ("machine", True)


async def test_a_keeper_that_was_stopped_past_its_lease_notices_before_it_does_anything(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0))
    clock = SystemClock()
    async with bench.running() as executor:
        executor.renew_lease(clock.boottime() + 100)
        running = bench.launch(code, "waits")
        await executor.launch([running])
        await bench.start_of(running)
        await asyncio.to_thread(until, (bench.home / "begun").exists, "the try has begun")
        keeper = bench.keeper()
        valid_until = clock.boottime() + 0.1
        executor.renew_lease(valid_until)
        os.kill(keeper.pid, signal.SIGSTOP)
        late = bench.launch(code, "waits", try_number=2)
        await executor.launch([late])
        until(lambda: clock.boottime() > valid_until, "the lease is over")
        os.kill(keeper.pid, signal.SIGCONT)
        ends = [await bench.end_of(launch) for launch in (running, late)]
        assert [(end.cause, "lease" in end.reason) for end in ends] == [("machine", True), ("interrupted", True)]
    assert begun(bench) == 1


@pytest.mark.parametrize("zygote", ["forked", "executed"])
async def test_tries_end_in_time_though_their_scheduler_is_gone_and_their_keeper_is_stopped(bench: Bench, code, zygote):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0, kill_time=0.2))
    bench.shares_database = True
    first = bench.executor()
    await first.start(1)
    first.renew_lease(SystemClock().boottime() + 100)
    launches = [bench.launch(code, "waits"), bench.launch(code, "escapes")]
    await first.launch(launches)
    pids = [(await bench.start_of(launch)).pid for launch in launches]
    child = bench.home / "escaped"
    pids.append(int(await eventually(lambda: child.exists() and child.read_text(), "the child of a try")))
    keeper, [watching] = bench.keeper().pid, bench.children_of_keeper()[0]
    if zygote == "executed":
        watching.kill()
        await eventually(
            lambda: [one for one in bench.children_of_keeper()[0] if one.pid != watching.pid], "another zygote"
        )
    first.renew_lease(SystemClock().boottime() + 1)
    # The keeper hears of the lease before it is asked for this.
    await bench.run(first, bench.launch(code, "asks"))
    os.kill(keeper, signal.SIGSTOP)
    await first.close()
    await eventually(lambda: not [pid for pid in pids if is_alive(pid)], "the tries have ended, and what they started")
    with suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)  # where a busy machine let it end the tries before it was stopped
    async with bench.running(lease_epoch=2):
        ends = [await bench.end_of(launch) for launch in launches]
        assert {(end.state, end.cause) for end in ends} == {("failed", "machine")}


async def test_a_keeper_that_is_well_is_not_killed_though_a_try_is_long_in_exiting(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0, kill_time=0.2))
    bench.shares_database = True
    clock = SystemClock()
    async with bench.running() as executor:
        executor.renew_lease(clock.boottime() + 100)
        running = bench.launch(code, "waits")
        await executor.launch([running])
        process = psutil.Process((await bench.start_of(running)).pid)
        keeper, template = bench.keeper(), process.parent()
        # It reaps nobody now: the try does not get rid of its process.
        template.suspend()
        valid_until = clock.boottime() + 0.2
        executor.renew_lease(valid_until)
        await eventually(lambda: process.status() == psutil.STATUS_ZOMBIE, "the try is killed")
        await eventually(lambda: clock.boottime() > valid_until + 0.2 + 4 * PATIENCE_SECONDS, "the zygote would have")
        template.resume()
        ended = await bench.end_of(running)
        assert (ended.cause, "lease" in ended.reason) == ("machine", True)
        assert bench.keeper() == keeper
    assert "it is killed" not in bench.keeper_log()


async def test_a_home_with_a_very_long_path_works(tmp_path):
    bench = Bench(tmp_path / ("long" * 40))
    os.mkfifo(bench.home / "gate")
    code = bench.code(DAG_FILE.format(home=str(bench.home)))
    try:
        async with bench.running() as executor:
            assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
    finally:
        bench.end_processes()


async def test_a_keeper_that_cannot_start_is_reported_in_one_line(bench: Bench):
    (bench.home / "attempts").rmdir()
    (bench.home / "attempts").write_text("in the way")
    with pytest.raises(ExecutorError, match=r"the keeper could not be started: .*attempts"):
        await bench.executor().start(1)


async def test_a_keeper_goes_on_with_the_tries_of_a_scheduler_that_was_upgraded(bench: Bench, code, monkeypatch):
    first = bench.executor()
    await first.start(1)
    running = bench.launch(code, "waits")
    await first.launch([running])
    await bench.start_of(running)
    await first.close()

    monkeypatch.setattr(keeper_client, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    monkeypatch.setattr(keeper_client, "encode_frame", frame_of_a_later_version)
    async with bench.running(lease_epoch=2) as upgraded:
        assert value(await bench.run(upgraded, bench.launch(code, "asks"))) is None
        (bench.home / "gate").write_text("through")
        assert value(await bench.end_of(running)) == "through"
    assert begun(bench) == 1


def frame_of_a_later_version(message: Struct) -> bytes:
    """Return a frame with a field that nobody knew before, and before it one of a kind that nobody knew."""
    frames = b""
    for fields in ({"type": "greeting", "words": "hello"}, msgspec.to_builtins(message) | {"zone": {"of": "later"}}):
        body = msgspec.json.encode(fields)
        frames += len(body).to_bytes(4, "big") + body
    return frames
