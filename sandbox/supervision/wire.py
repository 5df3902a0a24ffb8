"""A connection of the keeper: frames in and out, without ever blocking."""

import selectors
import socket
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from sandbox.supervision.reactor import Reactor, Urgency

READ_BYTES = 256 * 1024


class Wire:
    """One end of a stream of frames.

    Args:
        expected: The union of structs that may arrive.
        on_message: Called with each message, in order.
        on_closed: Called once, when the other side has hung up or sent what is no frame.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        expected: Any,
        on_message: Callable[[Any], None],
        on_closed: Callable[[], None],
        urgency: Urgency = Urgency.FRAMES,
    ) -> None:
        sock.setblocking(False)
        self._reactor = reactor
        self._socket = sock
        self._reader = FrameReader(expected)
        self._on_message = on_message
        self._on_closed = on_closed
        self._outgoing = bytearray()
        self._hang_up_when_sent = False
        self.is_open = True
        reactor.watch(sock.fileno(), self._ready, urgency)

    @property
    def n_unsent(self) -> int:
        """How many bytes wait because the other side has not taken them yet."""
        return len(self._outgoing)

    def send(self, message: Struct) -> None:
        """Send a message; what the other side does not take yet waits here. Nothing happens once closed."""
        if not self.is_open:
            return
        frame = encode_frame(message)
        if self._outgoing:
            self._outgoing += frame
            return
        sent = self._try_send(frame)
        if sent < len(frame):
            self._outgoing += memoryview(frame)[sent:]
            self._reactor.change(self._socket.fileno(), selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self) -> None:
        """Hang up, without a call of `on_closed`."""
        if self.is_open:
            self.is_open = False
            self._reactor.forget(self._socket.fileno())
            self._socket.close()

    def close_when_sent(self) -> None:
        """Hang up as soon as everything is sent."""
        self._hang_up_when_sent = True
        if not self._outgoing:
            self.close()

    def change_urgency(self, urgency: Urgency) -> None:
        """Be served earlier or later than so far."""
        self._reactor.forget(self._socket.fileno())
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._reactor.watch(self._socket.fileno(), self._ready, urgency, events)

    def read_all(self) -> None:
        """Read whatever has arrived so far."""
        while self.is_open and self._read():
            pass

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if self.is_open and events & selectors.EVENT_READ:
            self._read()

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = self._socket.recv(READ_BYTES)
            messages = self._reader.feed(data)
        except BlockingIOError:
            return False
        except (OSError, ProtocolError):
            data, messages = b"", []
        if not data:
            self._lost()
            return False
        for message in messages:
            if not self.is_open:
                return False
            self._on_message(message)
        return True

    def _flush(self) -> None:
        del self._outgoing[: self._try_send(self._outgoing)]
        if not self._outgoing:
            self._reactor.change(self._socket.fileno(), selectors.EVENT_READ)
            if self._hang_up_when_sent:
                self.close()

    def _try_send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # The other side is gone. What it sent before is still to be read, and ends in its hanging up.
            return len(data)

    def _lost(self) -> None:
        self.close()
        self._on_closed()
