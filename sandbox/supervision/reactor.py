"""Waits for descriptors and timers in one thread, and runs their callbacks, the most urgent first.

The keeper forks, so it may have no threads, and asyncio's event loop would slow down every fork.
"""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from msgspec import Struct

from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.timers import Timers

READ_BYTES = 256 * 1024


class Urgency(IntEnum):
    """The order in which descriptors that are ready together are served."""

    LEASE = 0
    FRAMES = 1
    OUTPUT = 2
    EXITS = 3


class Watch(NamedTuple):
    """The callback for a ready descriptor."""

    urgency: Urgency
    callback: Callable[[int], object]


class Timer:
    """A call at a time; `cancel` revokes it, even in the turn in which it is due."""

    __slots__ = ("_armed", "callback")

    def __init__(self, armed: "Timers[float, Timer]", callback: Callable[[], None]) -> None:
        self._armed = armed
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Revoke the call."""
        self.callback = None
        self._armed.disarm(self)


def boottime() -> float:
    """Return seconds since the machine started, suspension included: the clock of leases."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Reactor:
    """Descriptors and timers. Times are those of `boottime`, in seconds."""

    def __init__(self, now: Callable[[], float] = boottime) -> None:
        self.now = now
        self._selector = selectors.DefaultSelector()
        self._timers: Timers[float, Timer] = Timers()

    def watch(
        self, descriptor: int, callback: Callable[[int], object], urgency: Urgency, events: int = selectors.EVENT_READ
    ) -> None:
        """Call back with the ready events whenever this descriptor is ready."""
        self._selector.register(descriptor, events, Watch(urgency, callback))

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._selector.modify(descriptor, events, self._selector.get_key(descriptor).data)

    def forget(self, descriptor: int) -> None:
        """Stop watching this descriptor. Call it before the descriptor is closed."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once, after this many seconds."""
        return self.at(self.now() + seconds, callback)

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once, at this time."""
        timer = Timer(self._timers, callback)
        self._timers.arm(when, timer)
        return timer

    def turn(self, before_frames: Callable[[], None]) -> None:
        """Wait until something is ready or due, and serve it: news of the lease first, then call `before_frames`."""
        next_at = self._timers.next_at
        patience = None if next_at is None else max(0.0, next_at - self.now())
        ready = sorted(self._selector.select(patience), key=lambda pair: pair[0].data.urgency)
        leases = sum(key.data.urgency == Urgency.LEASE for key, _ in ready)
        self._serve(ready[:leases])
        before_frames()
        self._serve(ready[leases:])
        self._call_due()

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        watched = self._selector.get_map()
        for key, events in ready:
            # A callback earlier in this turn may have ended the watch of this one.
            current = watched.get(key.fd)
            if current is not None and current.data is key.data:
                key.data.callback(events)

    def _call_due(self) -> None:
        for timer in self._timers.due(self.now()):
            if timer.callback is not None:
                timer.callback()


class Pipe:
    """The reading end of a pipe, read without ever blocking, until it ends or is closed. `write` takes the bytes."""

    def __init__(self, reactor: Reactor, descriptor: int, write: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._reactor = reactor
        self._descriptor: int | None = descriptor
        self._write = write
        reactor.watch(descriptor, lambda _: self.read(), Urgency.OUTPUT)

    def read(self) -> int:
        """Read once, and return the number of bytes."""
        if self._descriptor is None:
            return 0
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._write(data)
        else:
            self.close()
        return len(data)

    def close(self) -> None:
        """Close it, if it is open."""
        if self._descriptor is not None:
            self._reactor.forget(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


class Wire:
    """A connection of the keeper: frames in and out, without ever blocking.

    `expected` is the union of structs that may arrive. `on_closed` is called once, when the other side has hung up or
    sent an invalid frame.
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
        """The number of bytes that the other side has not taken yet."""
        return len(self._outgoing)

    def send(self, message: Struct) -> None:
        """Send a message. Bytes that the other side does not take yet are kept here. Does nothing after a close."""
        if not self.is_open:
            return
        frame = encode_frame(message)
        sent = 0 if self._outgoing else self._try_send(frame)
        if sent == len(frame):
            return
        if not self._outgoing:
            self._reactor.change(self._socket.fileno(), selectors.EVENT_READ | selectors.EVENT_WRITE)
        self._outgoing += memoryview(frame)[sent:]

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
        """Serve this connection earlier or later than others that are ready."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        self._reactor.forget(self._socket.fileno())
        self._reactor.watch(self._socket.fileno(), self._ready, urgency, events)

    def read_all(self) -> None:
        """Read all messages that have arrived."""
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
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        for message in self._messages(data):
            self._on_message(message)
            if not self.is_open:
                return False
        return self.is_open

    def _messages(self, data: bytes) -> Iterator[Any]:
        """Yield the messages completed by `data`; end the connection at a bad frame."""
        try:
            yield from self._reader.feed(data)
        except ProtocolError as exc:
            self._refuse(exc)
            self._end()

    def _refuse(self, error: ProtocolError) -> None:
        """Note that a bad frame has arrived. Most connections lead to user code, so nothing is logged here."""

    def _end(self) -> None:
        self.close()
        self._on_closed()

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
            # The other side is gone. Its earlier messages are still to be read, up to the hang-up.
            return len(data)
