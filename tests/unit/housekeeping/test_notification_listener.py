"""The listener of PostgreSQL's notifications survives every answer of a server that goes and comes back."""

import anyio
import asyncpg

from asynsched.channels import Channels
from asynsched.clock import SystemClock
from asynsched.housekeeping import notification_listener
from asynsched.housekeeping.notification_listener import NotificationListener
from asynsched.store.engines.urls import parse_url


class QuickClock(SystemClock):
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

    async def connect(url, _order):
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
