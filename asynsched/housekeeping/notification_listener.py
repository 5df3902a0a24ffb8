"""Hears PostgreSQL's notifications: hints from commands and schedulers on other machines.

It has a connection of its own, and opens another whenever that is lost. The sweeps find changes that were notified
meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

import anyio
import asyncpg

from asynsched.bell import Hint, decode_hints
from asynsched.channels import Channels
from asynsched.clock import Clock, jitter
from asynsched.errors import StoreUnavailable
from asynsched.housekeeping.bell_listener import hand_out
from asynsched.loggers import get_logger
from asynsched.service import FIRST_BACKOFF, LONGEST_BACKOFF, Service
from asynsched.store.engines.driver_errors import store_errors
from asynsched.store.engines.postgres import ServerOrder, command_timeout, connect
from asynsched.store.engines.urls import DatabaseUrl
from asynsched.store.schedulers import CHANNEL

log = get_logger(__name__)

MAX_UNREAD = 10_000
QUIET_SECONDS = 30.0
"""How long nothing may be heard before the server is asked whether it is still there: a router that forgets an idle
connection tells nobody."""
HandOut = Callable[[Iterable[Hint], Channels], Awaitable[None]]


class NotificationListener(Service):
    """Listens on the database's channel.

    `hand_out` sends hints to those that they concern.
    """

    name = "notification listener"

    def __init__(
        self, *, url: DatabaseUrl, channels: Channels, clock: Clock, scheduler_id: str, hand_out: HandOut = hand_out
    ) -> None:
        super().__init__(clock)
        self._hand_out = hand_out
        self._scheduler_id = scheduler_id
        self._url = url
        self._order = ServerOrder()
        self._channels = channels
        self._payloads: asyncio.Queue[str] = asyncio.Queue(MAX_UNREAD)

    async def _go_round(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            try:
                with store_errors(self._url.shown):
                    await self._listen()
                backoff = FIRST_BACKOFF
            except (StoreUnavailable, asyncpg.InterfaceError) as exc:
                log.debug("notifications.unavailable", error=str(exc))
            await self.clock.sleep(backoff + jitter(backoff))
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    async def tick(self, now: datetime) -> None:
        while not self._payloads.empty():
            payload = self._payloads.get_nowait()
            try:
                hints = decode_hints(payload)
            except ValueError as exc:
                log.warning("notification.unintelligible", error=str(exc))
                continue
            await self._hand_out([hint for hint in hints if hint.origin != self._scheduler_id], self._channels)

    async def _listen(self) -> None:
        """Hear notifications until the connection is lost."""
        connection = await connect(self._url, self._order, command_timeout=command_timeout(self._url.dsn))
        connection.add_termination_listener(lambda _: self.wake())
        try:
            await connection.add_listener(CHANNEL, self._hear)
            while not connection.is_closed():
                self._wakeup = anyio.Event()
                with self.pulse.step():
                    await self.tick(self.clock.now())
                with anyio.move_on_after(QUIET_SECONDS) as quiet:
                    await self._wakeup.wait()
                if quiet.cancelled_caught:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _hear(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        if not self._payloads.full():
            self._payloads.put_nowait(str(payload))
        self.wake()
