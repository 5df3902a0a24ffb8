"""Brings the news of changes to the event feed of a process that is no scheduler.

On SQLite, inotify reports commits. On PostgreSQL, the schedulers notify of changes while the feed asks them.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import anyio
from anyio.abc import TaskGroup, TaskStatus

from asynsched.bell import Hint
from asynsched.channels import ChangesStored, Channels
from asynsched.clock import Clock, new_token
from asynsched.housekeeping.bell_listener import hand_out_changes
from asynsched.queries.events import EventFeed
from asynsched.queries.file_events import FileEvents
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.urls import DatabaseUrl, parse_url

FIRST_LOOK = timedelta(milliseconds=5)
"""When to look again after an event: most commits are published by then. The following intervals double."""
LAST_LOOK = timedelta(seconds=1)
"""The longest of these intervals: a commit that takes longer is found by the feed's sweep."""
BLIND_INTERVAL = timedelta(seconds=1)
"""How often to look where no event reports commits."""


class CommitListener(Service):
    """Reports the commits of a SQLite database."""

    name = "commit listener"

    def __init__(self, *, url: DatabaseUrl, channels: Channels, clock: Clock) -> None:
        super().__init__(clock)
        assert url.path is not None
        self._path = url.path
        self._channels = channels
        self._files: FileEvents | None = None
        self._look_in = 2 * LAST_LOOK

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        loop, self._files = asyncio.get_running_loop(), FileEvents()
        descriptor = self._files.fileno()
        try:
            if not self._files.watch_database(self._path):
                self.interval = BLIND_INTERVAL
            if descriptor is not None:
                loop.add_reader(descriptor, self.wake)
            await super().run(task_status=task_status)
        finally:
            if descriptor is not None:
                loop.remove_reader(descriptor)
            self._files.close()

    async def tick(self, now: datetime) -> None:
        self._channels.changes.offer(ChangesStored())
        self._look_in *= 2
        if self._files is not None and self._files.take():
            self._look_in = FIRST_LOOK
        self.due_at = now + self._look_in if self._look_in <= LAST_LOOK else None


def listener(url: DatabaseUrl, channels: Channels, clock: Clock, name: str) -> Service:
    """Return the service that reports changes of a database. `name` is that of this process's event feed."""
    if url.backend == "sqlite":
        return CommitListener(url=url, channels=channels, clock=clock)
    from asynsched.housekeeping.notification_listener import NotificationListener  # its driver is loaded only here

    return NotificationListener(url=url, channels=channels, clock=clock, scheduler_id=name, hand_out=_hand_out)


async def _hand_out(hints: Iterable[Hint], channels: Channels) -> None:
    for hint in hints:
        hand_out_changes(hint, channels)


async def start_feed(tasks: TaskGroup, settings: Settings, database: Database, clock: Clock) -> EventFeed:
    """Start the event feed of a process that is no scheduler, and what brings it news, as tasks of this group."""
    channels, name = Channels(), f"web:{new_token()}"
    feed = EventFeed(
        database, channels, clock, name=name, has_others=lambda: database.is_shared,
        sweep_interval=timedelta(seconds=settings.sweep_interval),
    )  # fmt: skip
    news = listener(parse_url(settings.database_url), channels, clock, name)
    await tasks.start(feed.run)
    await tasks.start(news.run)
    return feed
