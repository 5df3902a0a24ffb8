"""Acquires a scheduler's lease, holds it while the scheduler serves, and releases it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import anyio
from sqlalchemy import Connection

from asynsched._version import __version__
from asynsched.bell import Hint
from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.home import remember_database
from asynsched.lease.expiry import Expiry, Lease, takeover_seconds
from asynsched.lease.renewal import LoopBeat, LoopRenewal, ThreadRenewal
from asynsched.lease.takeover import PeerWatch
from asynsched.loggers import get_logger
from asynsched.service import Availability, Service
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.schedulers import notify, register_scheduler, remove_scheduler, sqlite_file, takeover_of_home

log = get_logger(__name__)

RELEASE_SECONDS = 10.0
"""How long a stopping scheduler tries to release its lease while the database is away."""
RELEASE_PAUSE = timedelta(seconds=1)


async def acquire(database: Database, settings: Settings, clock: Clock, scheduler_id: str) -> Lease:
    """Register a scheduler in the database, and return its lease.

    Raises:
        HomeInUse: The database serves one scheduler only, and another home's may still run tries.
        StoreError: The database cannot be used.
    """
    if not database.is_shared:
        remember_database(settings.home_path, await database.read(sqlite_file))
    times, boottime, now = settings.lease, clock.boottime(), clock.now()
    epoch, seconds = await database.write(
        register,
        scheduler_id=scheduler_id,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        home=str(settings.home_path),
        version=__version__,
        now=now,
        lease_until=now + timedelta(seconds=times.duration),
        takeover_seconds=takeover_seconds(times, is_alone=False),
        is_alone=not database.is_shared,
    )
    expiry = Expiry(boottime, seconds)
    return Lease(scheduler_id, epoch, times, expiry, home_is_lock=not database.is_shared)


async def release(database: Database, clock: Clock, scheduler_id: str) -> None:
    """Release the lease, so that others take the runs immediately. While the database stays away, it expires."""
    with anyio.move_on_after(RELEASE_SECONDS, shield=True):
        while True:
            try:
                return await database.write(unregister, scheduler_id, clock.now())
            except StoreUnavailable as exc:
                log.warning("lease.not_given_up", error=str(exc))
                await clock.sleep(RELEASE_PAUSE)


def register(conn: Connection, /, *, takeover_seconds: float, **values: Any) -> tuple[int, float]:
    """Register a scheduler, and tell the others; see `register_scheduler`.

    Returns:
        Its lease epoch, and how long others leave its runs alone. That is `takeover_seconds`, or longer if the row of
        its home's last scheduler says so: the home's keeper relies on that until a scheduler greets it.
    """
    seconds = max(takeover_seconds, takeover_of_home(conn, values["hostname"], values["home"]))
    epoch = register_scheduler(conn, takeover_seconds=seconds, **values)
    notify(conn, Hint("scheduler", origin=values["scheduler_id"]))
    return epoch, seconds


def unregister(conn: Connection, scheduler_id: str, now: datetime) -> None:
    """Free the runs of a stopped scheduler, and tell the others, which take them immediately."""
    remove_scheduler(conn, scheduler_id, now)
    notify(conn, Hint("scheduler", origin=scheduler_id))


@dataclass(frozen=True, slots=True)
class HeldLease:
    """The parts that hold a lease.

    Attributes:
        scheduler_id: The scheduler that holds the lease.
        thread: Renews the lease; None where `beat` renews it on the event loop.
        beat: Tells the thread that the event loop is alive, or renews the lease itself.
        peers: Watches the other schedulers; None where there can be none.
    """

    scheduler_id: str
    thread: ThreadRenewal | None
    beat: Service
    peers: PeerWatch | None

    @property
    def services(self) -> tuple[Service, ...]:
        return (self.beat,) if self.peers is None else (self.beat, self.peers)

    @asynccontextmanager
    async def thread_running(self) -> AsyncIterator[None]:
        """Run the thread that renews the lease, if there is one, during the block."""
        if self.thread is None:
            yield
            return
        self.thread.start()
        try:
            yield
        finally:
            await self.thread.stop()

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew the lease during the block, although no service runs."""
        # A task group would wrap the error that is raised within: why a start has failed.
        renewing = asyncio.create_task(self.beat.run(), name=self.beat.name)
        renewing.add_done_callback(_log_failure)
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        if not renewing.cancelled():
            renewing.result()

    def has_peers(self) -> bool:
        return self.peers is not None and self.peers.n_peers > 0


def _log_failure(renewing: asyncio.Task[None]) -> None:
    """Log immediately why the lease is no longer renewed: the error is raised later, or hidden by another one."""
    if not renewing.cancelled() and (error := renewing.exception()) is not None:
        log.error("lease.not_renewed", exc_info=error)


def make_held_lease(
    lease: Lease,
    *,
    database: Database,
    database_url: str | None,
    channels: Channels,
    clock: Clock,
    tell_executor: Callable[[float], None],
    availability: Availability,
    on_lost: Callable[[], None],
) -> HeldLease:
    """Return the parts that hold a lease, not yet started. Pass the lease to the executor before the executor starts.

    Args:
        database: Has the other schedulers' rows. Without a URL, the lease is renewed through it.
        database_url: For the thread's own connection; None where a program has passed an open database.
        channels: Receive the messages about other schedulers.
        tell_executor: The executor's `renew_lease`.
        on_lost: Called once, on the event loop, when another scheduler may take the runs.
    """
    tell_executor(lease.keeper_expiry(clock.boottime()))
    thread = None
    beat: Service
    if database_url is None:
        beat = LoopRenewal(lease, database=database, clock=clock, tell_executor=tell_executor, on_lost=on_lost)
    else:
        thread = ThreadRenewal(
            lease,
            database_url=database_url,
            clock=clock,
            tell_executor=tell_executor,
            availability=availability,
            on_lost=on_lost,
        )
        beat = LoopBeat(clock=clock, thread=thread)
    peers = None
    if database.is_shared:
        on_change = (lambda: None) if thread is None else thread.renew_soon
        peers = PeerWatch(lease, channels=channels, database=database, clock=clock, on_change=on_change)
    return HeldLease(lease.scheduler_id, thread, beat, peers)
