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
from asynsched.protocol.frames import HEADER_BYTES, encode_frame
from asynsched.protocol.home_files import KEEPER_SOCKET
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, Inventory, Kill, Started
from asynsched.settings import Settings
from tests.support.runs import NOON


async def test_a_kill_without_a_connection_is_sent_once_over_the_next_one(tmp_path):
    context = SimpleNamespace(settings=Settings(), home=tmp_path, scheduler_id="me", report=lambda _: None)
    executor, said = LocalExecutor(cast("Any", context)), []
    held = Inventory(running=(Started("t", NOON, 1),), starting=())
    executor._hold(held)
    await executor.kill("t", "it was marked")
    executor._connection = cast("Any", SimpleNamespace(is_open=True, send=said.append))
    executor._send_again(held)
    assert said == [Kill("t", "it was marked", grace=executor._kill_time)]


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
