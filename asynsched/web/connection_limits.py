"""What a connection may take of the server: its place among the others, and its time for requests and for answers.

Without limits, anybody who reaches the port could keep every file descriptor of the scheduler, by connections that send
or read a byte now and then.
"""

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HEAD_BYTES = 32 * 1024
"""Of the head of a request that comes in parts."""
HEAD_SECONDS = 10.0
"""How long the handshake of TLS may take, and the head of a request, from the connection or from its first byte on."""
BODY_SECONDS = 120.0
"""How long the body may take after its head."""
READ_SECONDS = 300.0
"""How long a client may take nothing of an answer that waits for it. Its system has a buffer of megabytes, too: nothing
is seen of a slow client while it empties that."""
ACKED_AT = 120
"""Where Linux's `struct tcp_info` has `tcpi_bytes_acked` (tcp(7), linux/tcp.h)."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 5\r\n\r\n"
    b'{"detail": "The server has as many connections as web.max_connections allows. Try again later."}'
)
SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedConnection(H11Protocol):
    """A connection of uvicorn's.

    Args:
        max_connections: Connections of the server at once; a further one is refused.
        given: For uvicorn's class.
    """

    def __init__(self, *, max_connections: int, **given: Any) -> None:
        super().__init__(**given)
        self._max_connections = max_connections
        self._missing: Any = None
        self._too_late: asyncio.TimerHandle | None = None
        self._reads_on: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # `pause_writing` comes once the system takes no more
        if len(self.connections) > self._max_connections:
            self.connections.discard(self)
            transport.write(FULL)
            transport.close()
        else:
            self._expect(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._expect(self.conn.their_state)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(h11.CLOSED)
        self._expect_no_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        self._expect_no_reader()
        super().resume_writing()

    def _expect_reader(self) -> None:
        """Look after a while whether the client has read on."""
        self._reads_on = self.loop.call_later(READ_SECONDS, self._look_at_reader, self._n_taken())

    def _look_at_reader(self, n_before: int) -> None:
        if self._n_taken() <= n_before:
            self.transport.abort()
        else:
            self._expect_reader()

    def _n_taken(self) -> int:
        """Return a number that rises by the bytes that the client's system takes.

        Linux counts what a client has acknowledged. The buffer here tells less: it shrinks only now and then, when the
        system takes more of it.
        """
        if sys.platform == "linux":
            with suppress(OSError, struct.error):
                told = self.transport.get_extra_info("socket").getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, ACKED_AT + 8
                )
                acknowledged: int = struct.unpack_from("Q", told, ACKED_AT)[0]
                return acknowledged
        return -self.transport.get_write_buffer_size()

    def _expect_no_reader(self) -> None:
        if self._reads_on is not None:
            self._reads_on.cancel()

    def _expect(self, missing: Any) -> None:
        """Begin to wait for the rest of a head or a body, unless it is awaited already.

        Args:
            missing: IDLE while the client is to send a head, SEND_BODY a body; otherwise it has sent all.
        """
        if missing is self._missing:
            return
        self._missing = missing
        if self._too_late is not None:
            self._too_late.cancel()
        seconds = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}.get(missing)
        self._too_late = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self._missing is h11.IDLE and self.conn.our_state is h11.IDLE:
            self.transport.write(SLOW)
            self.transport.close()
        else:
            self.transport.abort()  # an answer may be under way
