"""The keeper's Unix socket in the home, to which schedulers connect. It serves one of them at a time."""

import logging
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from asynsched.protocol.frames import ProtocolError
from asynsched.protocol.home_files import KEEPER_SOCKET, socket_address
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, Lease, ToKeeper
from sandbox.supervision.reactor import Reactor, Urgency, Wire

log = logging.getLogger("sandbox.keeper")


def listen(home: Path) -> socket.socket:
    """Return the socket in the home, open for its user only. The lock of the keeper must be held."""
    (home / KEEPER_SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    mask = os.umask(0o177)
    try:
        with socket_address(home, KEEPER_SOCKET) as address:
            listener.bind(address)
    finally:
        os.umask(mask)
    listener.listen(16)
    return listener


class Caller(Wire):
    """A connection of a scheduler, which identifies itself by its Hello."""

    def __init__(self, port: "SchedulerPort", reactor: Reactor, connection: socket.socket) -> None:
        self.hello: Hello | None = None
        super().__init__(
            reactor,
            connection,
            ToKeeper,
            lambda message: port.heard(self, message),
            lambda: port.left(self),
            Urgency.LEASE,
        )

    def is_older_than(self, hello: Hello) -> bool:
        """Return whether this is a connection of an earlier lease epoch."""
        return self.hello is not None and self.hello.lease_epoch < hello.lease_epoch

    def _refuse(self, error: ProtocolError) -> None:
        # Any local process of this user can connect; only a scheduler that was greeted may add to the log.
        if self.hello is not None and self.hello.role == "scheduler":
            log.error("The keeper hangs up on the scheduler (process %d), which sent %s", self.hello.pid, error)


class SchedulerPort:
    """The connections of schedulers.

    Args:
        on_message: Takes the scheduler's messages, its Hello included.
        on_lease: Takes every Lease of the scheduler's epoch.
        welcome: Returns the first message to a scheduler after the keeper's Hello.
    """

    def __init__(
        self,
        reactor: Reactor,
        home: Path,
        on_message: Callable[[Any], None],
        on_lease: Callable[[Lease], None],
        welcome: Callable[[], Iterable[Struct]],
    ) -> None:
        self._reactor = reactor
        self._path = home / KEEPER_SOCKET
        self._listener: socket.socket | None = listen(home)
        self._on_message = on_message
        self._on_lease = on_lease
        self._welcome = welcome
        self._callers: set[Caller] = set()
        self._scheduler: Caller | None = None
        self._epoch = 0
        reactor.watch(self._listener.fileno(), self._accept, Urgency.LEASE)

    @property
    def is_connected(self) -> bool:
        """Whether a scheduler is connected."""
        return self._scheduler is not None

    def send(self, message: Struct) -> None:
        """Send a message to the scheduler if one is connected; a later one gets the message of `welcome`."""
        if self._scheduler is not None:
            self._scheduler.send(message)

    def close_listener(self) -> None:
        """Accept no more schedulers, and remove the socket: a later scheduler starts another keeper."""
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._reactor.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def heard(self, caller: Caller, message: Any) -> None:
        """Handle a message of a caller."""
        if isinstance(message, Hello):
            self._greeted(caller, message)
        elif caller.hello is None:
            self._hang_up(caller)
        elif isinstance(message, Lease):
            self._on_lease(message)
        elif caller is self._scheduler:
            self._on_message(message)

    def left(self, caller: Caller) -> None:
        """Forget a connection that was closed."""
        self._callers.discard(caller)
        if self._scheduler is caller:
            self._scheduler = None

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._callers.add(Caller(self, self._reactor, connection))

    def _greeted(self, caller: Caller, hello: Hello) -> None:
        if caller.hello is not None or hello.lease_epoch < self._epoch:
            self._callers.discard(caller)
            caller.send(self._own_hello())
            caller.close_when_sent()
            return
        caller.hello = hello
        self._epoch = hello.lease_epoch
        for other in [other for other in self._callers if other.is_older_than(hello)]:
            self._hang_up(other)
        caller.send(self._own_hello())
        if hello.role == "lease":
            return
        if self._scheduler is not None:
            self._hang_up(self._scheduler)
        self._scheduler = caller
        # From now on, news of the lease is served before it.
        caller.change_urgency(Urgency.FRAMES)
        self._on_message(hello)
        for message in self._welcome():
            caller.send(message)

    def _own_hello(self) -> Hello:
        return Hello(PROTOCOL_VERSION, os.getpid(), lease_epoch=self._epoch)

    def _hang_up(self, caller: Caller) -> None:
        caller.close()
        self.left(caller)
