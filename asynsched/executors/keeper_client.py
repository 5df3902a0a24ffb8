"""One connection to a keeper, on the event loop."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

from asynsched.errors import ExecutorError, KeeperGone
from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import PROTOCOL_VERSION, FromKeeper, Hello, Inventory, Lease

GREETING_SECONDS = 30.0


class KeeperConnection(asyncio.Protocol):
    """Frames to and from a keeper.

    Args:
        on_message: Takes everything that arrives but the Hello.
        on_lost: Called once, when a connection that was greeted has ended.
        shares_database: Whether other schedulers may take over our runs.
    """

    def __init__(
        self, on_message: Callable[[Any], None], on_lost: Callable[[], None], *, shares_database: bool
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._shares_database = shares_database
        self._reader = FrameReader(FromKeeper)
        self._transport: asyncio.Transport | None = None
        self._epoch = 0
        self._greeted: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.closed.set()
        """Set while there is no connection any more."""

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def greet(
        self, connection: socket.socket, scheduler_id: str, lease_epoch: int, lease: Lease | None = None
    ) -> Inventory:
        """Say who we are, and return what the keeper holds. Ends that it reports meanwhile go to `on_message`.

        Args:
            lease: The lease as it is now, where that is known.

        Raises:
            ExecutorError: The keeper serves a newer lease, or does not answer.
        """
        self._epoch = lease_epoch
        await asyncio.get_running_loop().create_connection(lambda: self, sock=connection)
        shares = self._shares_database
        self.send(Hello(PROTOCOL_VERSION, os.getpid(), scheduler_id, lease_epoch, shares_database=shares, lease=lease))
        if lease is not None:
            # A keeper of an earlier version takes a Hello for a renewal.
            self.send(lease)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                return await self._greeted
        except TimeoutError:
            self.close()
            raise ExecutorError(f"the keeper did not answer within {GREETING_SECONDS:g} s") from None

    def send(self, message: Struct) -> None:
        """Send a message; nothing happens once the connection has ended."""
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops, such as uvloop, have transports that are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.closed.clear()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except ProtocolError as exc:
            self._fail(ExecutorError(f"the keeper sent what is no frame: {exc}"))
            self.close()
            return
        for message in messages:
            if isinstance(message, Hello):
                if message.lease_epoch > self._epoch:
                    self._fail(ExecutorError("the keeper of this home serves a newer scheduler"))
            elif isinstance(message, Inventory):
                if not self._greeted.done():
                    self._on_message(message)
                    self._greeted.set_result(message)
            else:
                self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        was_greeted = self._greeted.done() and not self._greeted.cancelled() and self._greeted.exception() is None
        self._fail(KeeperGone("the keeper hung up"))
        self._transport = None
        self.closed.set()
        if was_greeted:
            self._on_lost()

    def _fail(self, error: ExecutorError) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(error)
