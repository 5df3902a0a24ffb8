"""The lease: this scheduler's claim to its runs, renewed from a thread of its own while the event loop may be stalled.

The thread also watches the loop, and logs the stack that stalls it. A stall that holds the interpreter lock stops the
thread too; then the lease may lapse, and the epoch in every guarded update keeps that safe.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import anyio
import anyio.to_thread
import structlog

from asynsched.clock import Clock
from asynsched.executors.base import Executor
from asynsched.lease.promise import Outlasting
from asynsched.service import Availability, Pulse, Service
from asynsched.settings import LeaseSettings
from asynsched.store.database import Database, DirectDatabase
from asynsched.store.engines.opening import open_direct
from asynsched.store.engines.urls import hurried

STALL_SECONDS = 2.5
"""How long ago the loop may have beaten last before its stack is logged; it beats once a second."""
JOIN_SECONDS = 5.0
"""Longest that a stop waits for a renewal under way."""


class LeaseKeeper:
    """Renews the lease until it is stopped.

    Args:
        database_url: Opened anew: the thread shares no connection with the loop.
        outlasting: Says how long the executor's tries may go on.
        availability: Told when the lease cannot be renewed, and when it can again.
        on_lost: Called on the event loop when the database says that the lease is another's.
    """

    def __init__(
        self,
        *,
        settings: LeaseSettings,
        database_url: str,
        outlasting: Outlasting,
        clock: Clock,
        scheduler_id: str,
        lease_epoch: int,
        executor: Executor,
        availability: Availability,
        on_lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        # A renewal that is not answered must not last until the lease is over.
        self._database_url = hurried(database_url, settings.renew_interval)
        self._clock = clock
        self._scheduler_id = scheduler_id
        self._lease_epoch = lease_epoch
        self._executor = executor
        self._availability = availability
        self._on_lost = on_lost
        self._outlasting = outlasting
        self._is_due = threading.Event()
        self._stopped = threading.Event()
        self.pulse = Pulse(clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = threading.get_ident()
        self._beat_at = clock.monotonic()
        self._stall_is_logged = False
        self._thread = threading.Thread(target=self._run, name="asynsched lease", daemon=True)

    def start(self) -> None:
        """Begin to renew. Call it on the event loop: its thread is watched."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing, and wait for a renewal under way: it would revive a lease that was given up meanwhile."""
        self._stopped.set()
        if self._thread.is_alive():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._thread.join, JOIN_SECONDS)

    def renew_soon(self) -> None:
        """Renew before it is time, within a second: what is said with a renewal has changed."""
        self._is_due.set()

    def beat(self) -> None:
        """Say that the event loop is alive."""
        self._beat_at = self._clock.monotonic()

    def _run(self) -> None:
        try:
            with self.pulse.running():
                self._keep_renewing()
        except Exception:
            # Nobody renews it any more: others may take the runs.
            log.exception("lease.failed", scheduler_id=self._scheduler_id)
            self._lose()

    def _keep_renewing(self) -> None:
        database: DirectDatabase | None = None
        next_renewal = self._clock.monotonic()
        try:
            while not self._stopped.wait(min(1.0, self._settings.renew_interval)):
                self._watch_loop()
                if self._clock.monotonic() < next_renewal and not self._is_due.is_set():
                    continue
                self._is_due.clear()
                try:
                    boottime = self._clock.boottime()
                    # Before as well: the database may be away.
                    self._executor.renew_lease(self._outlasting.allowed(boottime))
                    with self.pulse.step():
                        database = database or open_direct(self._database_url)
                        self._renew(database, boottime)
                    self.pulse.waits_for_database = False
                    next_renewal = self._clock.monotonic() + self._settings.renew_interval
                except Exception as exc:  # noqa: BLE001 - whatever it is, the next attempt may succeed
                    self.pulse.waits_for_database = True
                    self._availability.lost("lease", exc)
                else:
                    self._availability.found("lease")
        finally:
            if database is not None:
                database.close()

    def _renew(self, database: DirectDatabase, boottime: float) -> None:
        is_ours, promise = database.write(
            self._outlasting.renew,
            self._scheduler_id,
            self._lease_epoch,
            now=self._clock.now(),
            boottime=boottime,
        )
        if is_ours:
            self._outlasting.renewed(promise)
            self._executor.renew_lease(self._outlasting.allowed(boottime))
            return
        log.error("lease.lost", scheduler_id=self._scheduler_id)
        self._lose()

    def _lose(self) -> None:
        self._stopped.set()
        with suppress(RuntimeError):  # the loop has ended, so nobody is left to be told
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._on_lost)

    def _watch_loop(self) -> None:
        stalled_for = self._clock.monotonic() - self._beat_at
        if stalled_for < STALL_SECONDS:
            self._stall_is_logged = False
        elif not self._stall_is_logged:
            self._stall_is_logged = True
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to another thread's stack
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            log.warning("loop.stalled", seconds=round(stalled_for, 1), stack=stack)


log = structlog.get_logger(__name__)


class LoopLease(Service):
    """Renews the lease while it runs.

    Args:
        outlasting: As in LeaseKeeper.
        on_lost: Called when the database says that the lease is another's.
    """

    name = "lease"

    def __init__(
        self,
        *,
        settings: LeaseSettings,
        database: Database,
        outlasting: Outlasting,
        clock: Clock,
        scheduler_id: str,
        lease_epoch: int,
        executor: Executor,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(clock)
        self.interval = timedelta(seconds=settings.renew_interval)
        self.longest_backoff = self.interval / 2  # when the database is back, tries have little time left
        self._database = database
        self._scheduler_id = scheduler_id
        self._lease_epoch = lease_epoch
        self._executor = executor
        self._on_lost = on_lost
        self._outlasting = outlasting
        self._is_lost = False

    async def tick(self, now: datetime) -> None:
        """Renew once."""
        if self._is_lost:
            return
        boottime = self.clock.boottime()
        # Before as well: the database may be away.
        await self._tell_executor(self._outlasting.allowed(boottime))
        is_ours, promise = await self._database.write(
            self._outlasting.renew, self._scheduler_id, self._lease_epoch, now=now, boottime=boottime
        )
        if is_ours:
            self._outlasting.renewed(promise)
            await self._tell_executor(self._outlasting.allowed(boottime))
        else:
            log.error("lease.lost", scheduler_id=self._scheduler_id)
            self._is_lost = True
            self._on_lost()

    async def _tell_executor(self, valid_until: float) -> None:
        # It may block for a moment: it is made for a thread of its own.
        await anyio.to_thread.run_sync(self._executor.renew_lease, valid_until)


class LoopBeat(Service):
    """Beats once a second."""

    name = "loop beat"
    interval = timedelta(seconds=1)

    def __init__(self, *, clock: Clock, lease: LeaseKeeper) -> None:
        super().__init__(clock)
        self._lease = lease

    async def tick(self, now: datetime) -> None:
        """Beat."""
        self._lease.beat()
        self.metrics.count("scheduler_heartbeat")
