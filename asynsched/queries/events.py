"""The events of a database, for any number of readers: each stored change of a run or a task instance, in order.

A process reads the database once for all of its readers, and only after it has heard of a change: from its own writes,
or from another process. Nothing is read while there are no readers.

A reader that begins at an old number first reads for itself, at its own pace. Once it has caught up, it is live: the
feed gives it each change that it reads. What a live reader has yet to take is bounded. If it takes too little, the feed
drops all of that, and tells the reader the number at which it goes on.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Self
from weakref import WeakSet

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint
from msgspec import Struct

from asynsched.bell import Hint
from asynsched.channels import ChangesWatched, Channels
from asynsched.clock import Clock
from asynsched.errors import AsynschedError, StoreError, StoreUnavailable
from asynsched.service import Service
from asynsched.store.changes import ChangesRead, StoredNumbers, read_changes, stored_numbers
from asynsched.store.database import Database
from asynsched.store.schedulers import notify
from asynsched.store.schema import Change
from asynsched.timers import has_come

__all__ = ["Change", "EventFeed", "EventReader", "Missed", "NoEvents"]

MOST_READ = 500
"""How many changes are read at once."""
MOST_WAITING = 10_000
"""How many changes may wait for a live reader."""
PAUSE = timedelta(milliseconds=10)
"""Shortest time between two looks at the database: a busy scheduler commits more often than a look is useful."""
RENEW_INTERVAL = timedelta(seconds=10)
"""Time between two requests to other processes for news of changes; they answer each for longer."""
WATCHED_FOR = timedelta(seconds=30)
"""How long this process notifies others of changes after they have asked; they ask more often than that."""
LAST_READ_SECONDS = 1.0
"""How long the last look may take when the scheduler stops."""


class Missed(Struct, frozen=True):
    """The reader has missed changes, and goes on with those above the number `go_on_at`.

    It was too slow, or the changes after the number that it gave are not stored any more. The rows of runs and task
    instances have the present states.
    """

    go_on_at: int


class NoEvents(AsynschedError):
    """This process does not read the changes of its database."""

    def __init__(self) -> None:
        super().__init__("This process reads no events: ask a scheduler that serves, or `asynsched web`.")


class EventReader(AsyncIterator[Change | Missed]):
    """Reads events: iterate over it. `EventFeed.read` makes one, and explains its arguments.

    It begins at the first step, or at `async with`: from then on it misses nothing. It may simply be dropped. One task
    at a time may use it.

    Raises:
        StoreUnavailable: The database cannot be reached at the moment. The next step tries again.
    """

    def __init__(self, feed: "EventFeed", since: int | None, dag_id: str | None, run_id: str | None) -> None:
        self._feed = feed
        self._since = since
        self._dag_id, self._run_id = dag_id, run_id
        self._waiting: deque[Change] = deque()
        self._missed: int | None = None
        self._told = since
        self._read_until: int | None = None
        self._is_live = self._is_closed = False
        self._woken = anyio.Event()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change | Missed:
        await self._begin()
        while (event := self._take()) is None:
            if self._is_closed or self._feed.has_ended:
                raise StopAsyncIteration
            if self._is_live:
                self._woken = anyio.Event()
                await self._woken.wait()
            else:
                await self._catch_up()
        return event

    def take_waiting(self) -> list[Change | Missed]:
        """Return the events that need not be waited for, oldest first."""
        events: list[Change | Missed] = []
        while (event := self._take()) is not None:
            events.append(event)
        return events

    @property
    def go_on_at(self) -> int | None:
        """The number to give as `since` to another reader that goes on after the last event; None before the first."""
        if self._missed is not None:
            return self._told  # the other one must learn it, too
        return self._waiting[0].number - 1 if self._waiting else self._read_until

    def close(self) -> None:
        """End the iteration, for another task that waits for the next event too."""
        self._is_closed = True
        self._feed.leave(self)
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    async def _begin(self) -> None:
        if self._read_until is not None or self._feed.has_ended:
            return
        numbers = await self._feed.numbers()
        self._read_until, has_missed = where_to_begin(numbers, self._since)
        if has_missed:
            self._missed = self._read_until
        else:
            self._told = self._read_until
        if self._since is None:
            self._is_live = self._feed.join(self, self._read_until)

    async def _catch_up(self) -> None:
        assert self._read_until is not None
        try:
            found = await self._feed.read_some(self._read_until)
        except StoreError:
            if self._feed.has_ended:
                return  # the database was closed meanwhile
            raise
        self._waiting.extend(filter(self._wants, found.changes))
        self._read_until = found.until
        self._is_live = found.is_last and self._feed.join(self, found.until)

    def give(self, changes: list[Change], until: int) -> None:
        """Take the changes up to a number from the feed."""
        assert self._read_until is not None
        self._waiting.extend(each for each in changes if each.number > self._read_until and self._wants(each))
        self._read_until = max(self._read_until, until)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            self._missed = self._read_until
        if self._waiting or self._missed is not None:
            self.wake()

    def _wants(self, change: Change) -> bool:
        return self._dag_id in (None, change.dag_id) and self._run_id in (None, change.run_id)

    def _take(self) -> Change | Missed | None:
        if self._missed is not None:
            self._told, self._missed = self._missed, None
            return Missed(self._told)
        if not self._waiting:
            return None
        change = self._waiting.popleft()
        self._told = change.number
        return change


def where_to_begin(numbers: StoredNumbers, since: int | None) -> tuple[int, bool]:
    """Return the number after which a reader begins, and whether it has missed changes.

    Args:
        numbers: Those of the database.
        since: The number that the reader gives; None: it begins with the present.
    """
    if since is None:
        return numbers.settled, False
    if since > numbers.newest:
        return numbers.settled, True  # a number of another database, or of one that was restored
    kept_from = numbers.settled if numbers.oldest is None else numbers.oldest - 1
    return (kept_from, True) if since < kept_from else (since, False)


class EventFeed(Service):
    """Reads changes for all readers of this process, and tells other processes of this one's while they ask.

    Args:
        database: Where changes are stored.
        channels: Brings the news of other processes.
        clock: Where time comes from.
        name: Names this process to the others.
        has_others: Whether other schedulers are to be asked for news, by PostgreSQL's notifications.
        sweep_interval: Time between two looks without news, while there are readers: news may be lost.
    """

    name = "event feed"

    def __init__(
        self,
        database: Database,
        channels: Channels,
        clock: Clock,
        *,
        name: str,
        has_others: Callable[[], bool],
        sweep_interval: timedelta,
    ) -> None:
        super().__init__(clock)
        self._sweep_interval = sweep_interval
        self._database = database
        self._channels = channels
        self._origin = name
        self._has_others = has_others
        self._live: WeakSet[EventReader] = WeakSet()
        self._read_until = 0
        self._to_be_told: deque[tuple[EventReader, ChangesRead]] = deque()
        self._look_at = clock.now()
        self._asked_at: datetime | None = None
        self._watched_until: datetime | None = None
        self._has_written = False
        self.has_ended = False
        channels.changes.wakes(self.wake)

    # For readers

    def read(self, since: int | None = None, *, dag_id: str | None = None, run_id: str | None = None) -> EventReader:
        """Return a new reader.

        Args:
            since: Begin after the change with this number; 0: with the oldest that is stored; None: with the present.
            dag_id: Only events of this DAG.
            run_id: Only events of runs with this run_id.

        Raises:
            ValueError: `since` is negative.
        """
        if since is not None and since < 0:
            raise ValueError(f"since must be the number of an event, or 0 for all that are stored, not {since}")
        return EventReader(self, since, dag_id, run_id)

    async def numbers(self) -> StoredNumbers:
        """Return which numbers the database has. Raises StoreUnavailable."""
        return await self._database.read_at_once(stored_numbers)

    async def present(self) -> int:
        """Return a number up to which every change is stored, for a reader that begins later.

        It costs nothing while there are readers. Raises StoreUnavailable.
        """
        return self._read_until if self._live else (await self.numbers()).settled

    async def read_some(self, after: int) -> ChangesRead:
        """Return the next changes after a number. Raises StoreUnavailable."""
        return await self._database.read_at_once(read_changes, after, limit=MOST_READ)

    def join(self, reader: EventReader, read_until: int) -> bool:
        """Make a reader live, unless the feed has read further than it. Returns whether it is."""
        if not self._live:
            self._read_until = read_until
        elif read_until < self._read_until:
            return False
        self._live.add(reader)
        self.wake()  # for changes since the reader looked
        return True

    def leave(self, reader: EventReader) -> None:
        self._live.discard(reader)

    # For those that write

    def note_write(self) -> None:
        """Note that this process has written to the database."""
        if self._live or self._watched_until is not None:
            self._has_written = True
            self.wake()

    # The service

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled. Then the readers get the last changes, and end."""
        try:
            await super().run(task_status=task_status)
        finally:
            with anyio.move_on_after(LAST_READ_SECONDS, shield=True), suppress(StoreUnavailable):
                await self._tell()
                while self._live and not await self._read_for_all():
                    pass
            self.has_ended = True
            for reader in list(self._live):
                reader.wake()

    async def tick(self, now: datetime) -> None:
        if any(isinstance(message, ChangesWatched) for message in self._channels.changes.take()):
            self._watched_until, self._has_written = now + WATCHED_FOR, True
        if self._watched_until is not None and now >= self._watched_until:
            self._watched_until = None
        self.due_at = None
        if not self._live and self._watched_until is None:
            return
        if not has_come(self._look_at, now, PAUSE):
            self.due_at = self._look_at
            return
        if self._watched_until is not None and self._has_written:
            self._has_written = False
            await self._notify(Hint("changed", origin=self._origin))
        if self._live:
            await self._ask(now)
            if not await self._read_for_all():
                self.wake()
            self.due_at = now + (RENEW_INTERVAL if self._has_others() else self._sweep_interval)
        self._look_at = self.clock.now() + PAUSE

    async def _ask(self, now: datetime) -> None:
        """Ask other processes for news of changes, if there are any, and unless they were asked recently."""
        is_recent = self._asked_at is not None and self._asked_at <= now < self._asked_at + RENEW_INTERVAL
        if self._has_others() and not is_recent:
            await self._notify(Hint("follow", origin=self._origin))
            self._asked_at = now

    async def _notify(self, hint: Hint) -> None:
        await self._database.write_at_once(notify, hint)

    async def _read_for_all(self) -> bool:
        """Read some changes for the live readers. Returns whether these were the last ones."""
        after = self._read_until
        found = await self.read_some(after)
        if self._read_until != after:  # all readers have left meanwhile, and another one has come
            return False
        self._read_until = found.until
        self._to_be_told.extend((reader, found) for reader in self._live)
        await self._tell()
        return found.is_last

    async def _tell(self) -> None:
        """Give the changes that were read to those readers that do not have them yet: a cancellation leaves some."""
        while self._to_be_told:
            reader, found = self._to_be_told.popleft()
            if reader in self._live:
                reader.give(found.changes, found.until)
            await checkpoint()  # many readers do not hold up the event loop
