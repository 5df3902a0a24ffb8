"""The LocalExecutor with a keeper that cannot be reached, or that hangs up."""

import asyncio
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from asynsched.errors import ExecutorError
from asynsched.executors import local
from asynsched.executors.keeper_connection import KeeperConnection, connect
from asynsched.executors.local import FIRST_BACKOFF, LocalExecutor
from asynsched.protocol.frames import HEADER_BYTES, FrameReader, encode_frame
from asynsched.protocol.home_files import KEEPER_SOCKET
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, Inventory, Kill, Started, ToKeeper
from asynsched.settings import Settings
from tests.support.runs import NOON


class HeldClock:
    """A clock whose pauses end when the test says so."""

    def __init__(self):
        self.paused, self.goes_on = asyncio.Event(), asyncio.Event()

    def monotonic(self):
        return 0.0

    async def sleep(self, _length):
        self.paused.set()
        await self.goes_on.wait()


async def test_a_kill_without_a_connection_is_sent_once_over_the_next_one(tmp_path):
    connections = asyncio.Queue()

    async def hold_a_try(reader, writer):
        connections.put_nowait((reader, writer))
        held = Inventory(running=(Started("t", NOON, 1),), starting=())
        writer.write(encode_frame(Hello(PROTOCOL_VERSION, os.getpid())) + encode_frame(held))

    clock = HeldClock()
    fields = {"settings": Settings(), "home": tmp_path, "scheduler_id": "me", "clock": clock}
    executor = LocalExecutor(cast("Any", SimpleNamespace(**fields, report=lambda _: None, shares_database=False)))
    async with asyncio.timeout(30), await asyncio.start_unix_server(hold_a_try, tmp_path / KEEPER_SOCKET):
        await executor.start(1)
        _, writer = await connections.get()
        writer.close()
        await clock.paused.wait()
        await executor.kill("t", "it was marked")
        clock.goes_on.set()
        reader, writer = await connections.get()
        said, frames = [], FrameReader(ToKeeper)
        while len(said) < 2:
            said += frames.feed(await reader.read(HEADER_BYTES))
        await executor.close()
        said += frames.feed(await reader.read())
        writer.close()
    assert said[1:] == [Kill("t", "it was marked", grace=Settings().lease.kill_time)]


class ImpatientClock:
    """Notes each pause, and stops the test's wait after a few of them instead of pausing."""

    def __init__(self):
        self.pauses, self.enough = [], asyncio.Event()

    def monotonic(self):
        return 0.0

    async def sleep(self, length):
        self.pauses.append(length)
        if len(self.pauses) == 4:
            self.enough.set()
            await asyncio.Event().wait()


async def test_a_keeper_that_hangs_up_at_once_is_asked_again_ever_more_slowly(tmp_path):
    """As one that cannot read a message: it would be sent again a thousand times a second."""

    async def greet_and_hang_up(reader, writer):
        await reader.read(HEADER_BYTES)
        writer.write(encode_frame(Hello(PROTOCOL_VERSION, os.getpid())) + encode_frame(Inventory((), ())))
        writer.close()

    clock = ImpatientClock()
    fields = {"settings": Settings(), "home": tmp_path, "scheduler_id": "me", "clock": clock}
    context = SimpleNamespace(**fields, report=lambda _: None, shares_database=False)
    async with await asyncio.start_unix_server(greet_and_hang_up, tmp_path / KEEPER_SOCKET):
        executor = LocalExecutor(cast("Any", context))
        await executor.start(1)
        await asyncio.wait_for(clock.enough.wait(), 30)
        for task in executor._tasks:
            task.cancel()
    assert clock.pauses == [timedelta(), FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF]


async def test_a_keeper_that_cannot_be_replaced_is_asked_for_ever_more_slowly(tmp_path, monkeypatch):
    clock = ImpatientClock()
    fields = {"settings": Settings(), "home": tmp_path, "scheduler_id": "me", "clock": clock}
    context = SimpleNamespace(**fields, report=lambda _: None, shares_database=False)

    def no_keeper(*_, **__):
        raise ExecutorError("no room")

    monkeypatch.setattr(local, "start_keeper", no_keeper)
    executor = LocalExecutor(cast("Any", context))
    executor._lost()  # after a connection that had lasted
    await asyncio.wait_for(clock.enough.wait(), 30)
    for task in executor._tasks:
        task.cancel()
    assert clock.pauses == [timedelta(), FIRST_BACKOFF, 2 * FIRST_BACKOFF, 4 * FIRST_BACKOFF]


async def test_a_bad_frame_of_a_greeted_keeper_is_logged_and_those_before_it_are_taken(tmp_path):
    async def greet_and_say_nonsense(reader, writer):
        await reader.read(HEADER_BYTES)
        frames = [Hello(PROTOCOL_VERSION, os.getpid()), Inventory((), ()), Started("t", NOON, 1)]
        writer.write(b"".join(map(encode_frame, frames)) + b"\0\0\0\2{]")
        await reader.read()
        writer.close()

    taken = []
    async with await asyncio.start_unix_server(greet_and_say_nonsense, tmp_path / KEEPER_SOCKET):
        connection = KeeperConnection(taken.append, lambda: None, shares_database=False)
        with capture_logs() as logged:
            await connection.greet(connect(tmp_path), "me", 1)
            await asyncio.wait_for(connection.closed.wait(), 30)
    assert taken == [Inventory((), ()), Started("t", NOON, 1)]
    [entry] = logged
    assert (entry["event"], "not JSON" in entry["error"]) == ("executor.invalid_frame", True)
