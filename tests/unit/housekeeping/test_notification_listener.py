"""The listener of PostgreSQL's notifications survives every answer of a server that goes and comes back."""

import anyio
import asyncpg
import pytest

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.housekeeping import notification_listener
from asynsched.housekeeping.notification_listener import NotificationListener
from asynsched.store.engines.urls import parse_url
from tests.support.database_gate import gate_before
from tests.support.waiting import eventually


class QuickClock(Clock):
    """A clock whose waits return at once."""

    async def sleep(self, length) -> None:
        await anyio.lowlevel.checkpoint()


async def test_a_server_that_is_starting_up_or_hangs_up_is_asked_again(monkeypatch):
    answers = [
        asyncpg.CannotConnectNowError("the database system is starting up"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.InterfaceError("connection is closed"),
        ConnectionRefusedError("refused"),
    ]
    asked_again = anyio.Event()

    async def connect(_url, _order, **_options):
        if answers:
            raise answers.pop(0)
        asked_again.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(notification_listener, "connect", connect)
    listener = NotificationListener(
        url=parse_url("postgresql://somewhere/else"), channels=Channels(), clock=QuickClock(), scheduler_id="me"
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(listener.run)
        with anyio.fail_after(20):
            await asked_again.wait()
        tasks.cancel_scope.cancel()
    assert answers == []


@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_a_server_that_falls_silent_is_asked_again(postgres_url, tmp_path, monkeypatch, when):
    connected, connect = [], notification_listener.connect

    async def connect_and_fall_silent(url, order, **options):
        connected.append(await connect(url, order, **options))
        if len(connected) == 1 and when == "at the start":
            gate.silence()
        return connected[-1]

    monkeypatch.setattr(notification_listener, "command_timeout", lambda _dsn: 0.2)
    monkeypatch.setattr(notification_listener, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(notification_listener, "connect", connect_and_fall_silent)
    async with gate_before(postgres_url, tmp_path) as gate, anyio.create_task_group() as tasks:
        listener = NotificationListener(url=parse_url(gate.url), channels=Channels(), clock=Clock(), scheduler_id="me")
        await tasks.start(listener.run)
        if when == "later":
            await eventually(lambda: connected and connected[-1]._listeners, "it listens")
            gate.silence()
        await eventually(lambda: connected and connected[-1].is_closed(), "the silent connection is given up")
        silent = connected[-1]
        await gate.open()
        await eventually(lambda: connected[-1] is not silent, "another connection is made")
        tasks.cancel_scope.cancel()
