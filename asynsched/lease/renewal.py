"""Renews the lease, from a thread of its own: the event loop may be stalled.

The thread also watches the loop, and logs the stack that stalls it. A stall that holds the interpreter lock stops the
thread too. Then the lease may expire, and the epoch in every guarded update keeps that safe.

No event can wake the thread: only the passing of time reveals a missing renewal or a stalled loop.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta

import anyio
import anyio.to_thread

from asynsched.clock import Clock
from asynsched.lease.expiry import Lease
from asynsched.loggers import get_logger
from asynsched.service import Availability, Pulse, Service
from asynsched.store.database import Database, DirectDatabase
from asynsched.store.engines.opening import open_direct
from asynsched.store.engines.urls import hurried

log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""Time between two looks at the loop, and between two attempts to renew while the database is away."""
STALL_SECONDS = 2.5
"""Silence of the loop after which its stack is logged; it beats once a second."""
JOIN_SECONDS = 5.0
"""Longest that a stop waits for a renewal under way."""


@dataclass(eq=False)
class ThreadRenewal:
    """Renews a lease from a thread until it is stopped.

    Attributes:
        database_url: The thread opens a connection of its own.
        tell_executor: Takes the instant at which the lease expires for the executor's keeper.
        availability: Is notified when the database is away, and when it is back.
        on_lost: Called on the event loop when the database says that the lease is lost.
        pulse: When its steps began and ended.
    """

    lease: Lease
    _: KW_ONLY
    database_url: str
    clock: Clock
    tell_executor: Callable[[float], None]
    availability: Availability
    on_lost: Callable[[], None]

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.clock)
        self.interval = timedelta(seconds=self.lease.settings.renew_interval)
        # A renewal without an answer must not last until the lease has expired.
        self.database_url = hurried(self.database_url, self.lease.settings.renew_interval)
        self._is_due = threading.Event()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = threading.get_ident()
        self._beat_at = self.clock.monotonic()
        self._stall_is_logged = False
        self._thread = threading.Thread(target=self._run, name="asynsched lease", daemon=True)

    def start(self) -> None:
        """Begin to renew. Call it on the event loop to be watched."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing, and wait for a renewal under way: it would report a lease that is released then as lost."""
        self._is_stopped = True
        self._is_due.set()
        if self._thread.is_alive():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._thread.join, JOIN_SECONDS)

    def renew_soon(self) -> None:
        """Renew now: another scheduler has come or gone, so the takeover time changes."""
        self._is_due.set()

    def beat(self) -> None:
        self._beat_at = self.clock.monotonic()

    def _run(self) -> None:
        try:
            with self.pulse.running():
                self._keep_renewing()
        except Exception:
            # The lease is no longer renewed: others may take the runs.
            log.exception("lease.failed", scheduler_id=self.lease.scheduler_id)
            self._lose()

    def _keep_renewing(self) -> None:
        database: DirectDatabase | None = None
        next_renewal = self.clock.monotonic()
        try:
            while not self._is_stopped:
                self._is_due.wait(min(LOOK_SECONDS, self.lease.settings.renew_interval))
                self._watch_loop()
                if self._is_stopped or (self.clock.monotonic() < next_renewal and not self._is_due.is_set()):
                    continue
                self._is_due.clear()
                try:
                    boottime = self.clock.boottime()
                    # Before the renewal as well: the database may be away.
                    self.tell_executor(self.lease.keeper_expiry(boottime))
                    with self.pulse.step():
                        database = database or open_direct(self.database_url)
                        self._renew(database, boottime)
                    self.pulse.waits_for_database = False
                    next_renewal = self.clock.monotonic() + self.lease.settings.renew_interval
                except Exception as exc:  # noqa: BLE001 - after any error, the next attempt may succeed
                    self.pulse.waits_for_database = True
                    self.availability.lost("lease", exc)
                else:
                    self.availability.found("lease")
        finally:
            if database is not None:
                database.close()

    def _renew(self, database: DirectDatabase, boottime: float) -> None:
        expiry = database.write(self.lease.renew, now=self.clock.now(), boottime=boottime)
        if expiry is None:
            log.error("lease.lost", scheduler_id=self.lease.scheduler_id)
            self._lose()
        else:
            self.lease.expiry = expiry
            self.tell_executor(self.lease.keeper_expiry(boottime))

    def _lose(self) -> None:
        self._is_stopped = True
        with suppress(RuntimeError):  # the loop has ended, so nothing receives the call
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.on_lost)

    def _watch_loop(self) -> None:
        stalled_for = self.clock.monotonic() - self._beat_at
        if stalled_for < STALL_SECONDS:
            self._stall_is_logged = False
        elif not self._stall_is_logged:
            self._stall_is_logged = True
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to another thread's stack
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            log.warning("loop.stalled", seconds=round(stalled_for, 1), stack=stack)


class LoopRenewal(Service):
    """Renews a lease on the event loop: a program that passes an open database gives no URL for a second connection.

    Takes the arguments of ThreadRenewal, and the open database.
    """

    name = "lease"

    def __init__(
        self,
        lease: Lease,
        *,
        database: Database,
        clock: Clock,
        tell_executor: Callable[[float], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=lease.settings.renew_interval)
        self.longest_backoff = self.interval / 2  # once the database is back, tries have little time left
        self._lease = lease
        self._database = database
        self._tell = tell_executor
        self._on_lost = on_lost
        self._is_lost = False

    async def tick(self, now: datetime) -> None:
        if self._is_lost:
            return
        boottime = self.clock.boottime()
        # Before the renewal as well: the database may be away.
        await self._tell_executor(self._lease.keeper_expiry(boottime))
        expiry = await self._database.write(self._lease.renew, now=now, boottime=boottime)
        if expiry is not None:
            self._lease.expiry = expiry
            await self._tell_executor(self._lease.keeper_expiry(boottime))
        else:
            log.error("lease.lost", scheduler_id=self._lease.scheduler_id)
            self._is_lost = True
            self._on_lost()

    async def _tell_executor(self, expires_at: float) -> None:
        # It may block for a moment: executors expect the lease's own thread.
        await anyio.to_thread.run_sync(self._tell, expires_at)


class LoopBeat(Service):
    """Tells the lease's thread once a second that the event loop is alive."""

    name = "loop beat"
    interval = timedelta(seconds=1)

    def __init__(self, *, clock: Clock, thread: ThreadRenewal) -> None:
        super().__init__(clock)
        self._thread = thread

    async def tick(self, now: datetime) -> None:
        self._thread.beat()
        self.metrics.count("scheduler_heartbeat")
