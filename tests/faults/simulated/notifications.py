"""PostgreSQL's notifications, which SQLite has not: from the transaction that says something to all who listen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg

from asynsched.bell import Hint, decode_hints, encode_hints
from asynsched.store.schedulers import CHANNEL
from tests.faults.simulated.loop import PROCESS


class Notifications:
    """Notifications of a commit reach every connection that listens then, some time later, unless it breaks."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._said: list[str] = []
        self._connections: dict[ListeningConnection, None] = {}

    @contextmanager
    def of_one_transaction(self) -> Iterator[None]:
        """Deliver the notifications of a transaction if it commits."""
        self._said.clear()
        yield
        for payload in self._said:
            self._deliver(payload)
        self._said.clear()

    def notify(self, _conn: Any, *hints: Hint) -> None:
        """Stand in for `asynsched.store.schedulers.notify`. PostgreSQL delivers duplicates once."""
        if hints and (payload := encode_hints(hints)) not in self._said:
            self._said.append(payload)

    async def connect(self, _url: Any, _order: Any, **_options: Any) -> "ListeningConnection":
        """Stand in for a connection that is made to listen."""
        made = ListeningConnection(self)
        self._connections[made] = None
        return made

    def forget(self, connection: "ListeningConnection") -> None:
        """Deliver nothing more to one."""
        self._connections.pop(connection, None)

    def _deliver(self, payload: str) -> None:
        world = self._world
        heard = set()
        for connection in list(self._connections):
            if connection.process is None or connection.process.is_dead:
                self.forget(connection)
            elif world.chance.happens("cut"):
                world.say("fault", f"{connection.process.name} is cut off from notifications")
                connection.terminate()
            else:
                heard.add(connection.process)
                world.later(world.chance.latency(), connection.hear, payload, process=connection.process)
        if all(hint.kind == "scheduler" for hint in decode_hints(payload)):
            return  # schedulers look at one another every few seconds as well
        for site in world.sites.values():
            if site.process is not None and not site.process.is_dead and site.process not in heard:
                site.has_missed_hint_at = world.clock.monotonic()


class ListeningConnection:
    """A connection to the database that notifications arrive on, as the driver has it."""

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications
        self._hear: Callable[..., None] = lambda *_: None
        self._tell_of_end: Callable[[Any], None] = lambda _: None
        self._is_closed = False
        self.process = PROCESS.get()

    def add_termination_listener(self, listener: Callable[[Any], None]) -> None:
        self._tell_of_end = listener

    async def add_listener(self, _channel: str, listener: Callable[..., None]) -> None:
        self._hear = listener

    async def execute(self, _query: str) -> None:
        if self._is_closed:
            raise asyncpg.InterfaceError("connection is closed")

    def is_closed(self) -> bool:
        return self._is_closed

    def terminate(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._notifications.forget(self)
            self._tell_of_end(self)

    def hear(self, payload: str) -> None:
        """Deliver the notifications to the listeners."""
        if not self._is_closed:
            self._hear(self, 0, CHANNEL, payload)


URL = SimpleNamespace(shown="the simulated database", dsn="postgresql://simulated")
