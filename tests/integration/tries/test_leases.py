"""The end of a scheduler's lease, and the fate of its tries, whichever process is stopped then."""

import asyncio
import os
import signal
import socket
from contextlib import suppress

import psutil
import pytest

from asynsched.clock import Clock
from asynsched.errors import ExecutorError
from asynsched.executors.keeper_connection import KeeperConnection, connect
from asynsched.executors.local import REFUSAL_PAUSE
from asynsched.lease.expiry import Expiry, takeover_seconds
from asynsched.protocol.frames import FrameReader, encode_frame
from asynsched.protocol.messages import PROTOCOL_VERSION, Ended, FromKeeper, Hello, LeaseTerm, ToKeeper
from asynsched.settings import LeaseSettings, Settings
from sandbox.supervision.lifeline import PATIENCE_SECONDS
from tests.integration.tries.bench import DEADLINE, Bench
from tests.integration.tries.waiting_tasks import begun, is_alive, leave_waiting
from tests.support.waiting import eventually, until


async def test_a_scheduler_of_an_older_lease_is_refused(bench: Bench):
    async with bench.running(lease_epoch=2):
        old = bench.executor()
        with pytest.raises(ExecutorError, match="newer scheduler"):
            await old.start(1)
        await old.close()


async def test_a_greeting_without_a_lease_counts_as_a_renewal(bench: Bench, code):
    async with bench.running():
        over = Clock().boottime()
        hello = Hello(
            PROTOCOL_VERSION, os.getpid(), "heir", lease_epoch=2, lease=LeaseTerm(over, grace=0.0, kill_time=0.0)
        )
        reader = FrameReader(FromKeeper)
        with connect(bench.home) as heir:
            heir.settimeout(DEADLINE)
            heir.sendall(encode_frame(hello) + encode_frame(bench.launch(code, "asks")))
            told = []
            while not any(isinstance(message, Ended) for message in told):
                told += reader.feed(heir.recv(65536))
        assert "lease" in told[-1].reason


async def test_an_older_keeper_hears_of_the_lease_right_after_the_greeting():
    lease = LeaseTerm(5.0, grace=1.0, kill_time=1.0)
    ours, theirs = socket.socketpair()
    connection = KeeperConnection(lambda _: None, lambda: None, shares_database=True)
    greeting = asyncio.create_task(connection.greet(ours, "s", 1, lease))
    with theirs:
        await eventually(lambda: connection.is_open, "it is connected")
        frames = list(FrameReader(ToKeeper).feed(theirs.recv(65536)))
        connection.close()
    with pytest.raises(ExecutorError):
        await greeting
    assert [frames[0].lease, *frames[1:]] == [lease, lease]


async def test_tries_of_a_scheduler_that_does_not_come_back_end_with_its_lease(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=2.0, renew_interval=0.1, grace=0.1, kill_time=0.5))
    launch, pid = await leave_waiting(bench, code)
    until(lambda: not bench.processes(), "keeper and try have ended")
    assert not is_alive(pid)
    assert not (bench.home / "keeper.sock").exists()
    async with bench.running(lease_epoch=2) as second:
        ended = await bench.end_of(launch)
        assert (ended.state, ended.cause) == ("failed", "machine")
        assert "lease" in ended.reason
        await second.acknowledge([launch.token])


async def test_a_renewed_lease_keeps_tries_alive_and_its_end_ends_them(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=3.0, renew_interval=0.1, grace=0.1, kill_time=0.5))
    clock = Clock()
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


async def test_a_new_connection_or_keeper_makes_a_lease_no_longer(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=100, grace=0.0, kill_time=0.5))
    async with bench.running() as executor:
        launch = bench.launch(code, "waits")
        await executor.launch([launch])
        await bench.start_of(launch)
        executor.renew_lease(Clock().boottime() + 1)
        connection = executor._connection
        connection.close()
        ended = await bench.end_of(launch)
        assert executor._connection is not connection
        assert (ended.cause, "lease" in ended.reason) == ("machine", True)
        bench.keeper().kill()
        late = await bench.run(executor, bench.launch(code, "asks"))
        assert (late.cause, "lease" in late.reason) == ("interrupted", True)


async def test_the_next_executor_of_an_epoch_finds_the_lease_of_its_keeper(bench: Bench, code):
    bench.shares_database = True
    first = bench.executor()
    await first.start(1)
    launch = bench.launch(code, "waits")
    await first.launch([launch])
    await bench.start_of(launch)
    told = Clock().boottime() + 100
    first.renew_lease(told)
    await first.close()
    async with bench.running() as second:
        assert second.found_lease == told


async def test_tries_have_the_kill_time_of_the_present_scheduler(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(duration=100, renew_interval=1, grace=0.0, kill_time=100))
    bench.shares_database = True
    first = bench.executor()
    await first.start(1)
    deaf = bench.launch(code, "is_deaf")
    await first.launch([deaf])
    await bench.start_of(deaf)
    await first.close()
    bench.settings = Settings(lease=LeaseSettings(grace=0.0, kill_time=0.2))
    async with bench.running(lease_epoch=2) as second:
        second.renew_lease(Clock().boottime())
        assert "lease" in (await bench.end_of(deaf)).reason


async def test_a_keeper_stopped_past_its_lease_notices_before_it_acts(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0))
    clock = Clock()
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


async def test_tries_outlast_a_stopped_keeper_while_nobody_takes_their_runs(bench: Bench, code):
    lease = LeaseSettings(duration=0.2, renew_interval=0.1, grace=0.1, kill_time=0.1, shared_outage=60)
    bench.settings, bench.shares_database = Settings(lease=lease), True
    renewed_at = Clock().boottime()
    expiry = Expiry(renewed_at, takeover_seconds(lease, is_alone=False))
    async with bench.running() as executor:
        executor.renew_lease(expiry.for_keeper(lease))
        running = bench.launch(code, "waits")
        await executor.launch([running])
        pid = (await bench.start_of(running)).pid
        keeper = bench.keeper()
        keeper.suspend()
        over = Clock().boottime() + 0.4 + 2 * PATIENCE_SECONDS
        await eventually(lambda: Clock().boottime() > over, "lease, grace and kill time are over")
        keeper.resume()
        assert (await bench.run(executor, bench.launch(code, "asks"))).state == "success"
        assert is_alive(pid)


@pytest.mark.parametrize("zygote", ["forked", "executed", "beside a disk that hangs"])
async def test_tries_end_in_time_without_a_scheduler_and_with_a_stopped_keeper(bench: Bench, code, zygote):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0, kill_time=0.2))
    bench.shares_database = True
    first = bench.executor()
    await first.start(1)
    first.renew_lease(Clock().boottime() + 100)
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
    first.renew_lease(Clock().boottime() + 1)
    if zygote == "beside a disk that hangs":
        unread = bench.code("# never read", "unread.py")
        source = bench.home / "sources" / f"{unread.version_hash}.py"
        source.unlink()
        os.mkfifo(source)
        await first.launch([bench.launch(unread, "unread")])
    # The keeper hears of the lease before it is asked for this.
    await bench.run(first, bench.launch(code, "asks"))
    os.kill(keeper, signal.SIGSTOP)
    await first.close()
    await eventually(lambda: not [pid for pid in pids if is_alive(pid)], "the tries and their children have ended")
    with suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)  # where a busy machine let it end the tries before it was stopped
    async with bench.running(lease_epoch=2):
        ends = [await bench.end_of(launch) for launch in launches]
        assert {(end.state, end.cause) for end in ends} == {("failed", "machine")}
    for process in bench.processes():
        process.kill()  # what waits for the disk


async def test_a_keeper_that_is_well_is_not_killed_though_a_try_is_long_in_exiting(bench: Bench, code):
    bench.settings = Settings(lease=LeaseSettings(grace=0.0, kill_time=0.2))
    bench.shares_database = True
    clock = Clock()
    async with bench.running() as executor:
        executor.renew_lease(clock.boottime() + 100)
        running = bench.launch(code, "waits")
        await executor.launch([running])
        process = psutil.Process((await bench.start_of(running)).pid)
        keeper, template = bench.keeper(), process.parent()
        # It reaps no process now: the try does not get rid of its child.
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
