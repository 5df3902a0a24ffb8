"""The lease: this scheduler's claim to its runs, renewed from a thread of its own while the event loop may be stalled.

The thread also watches the loop, and logs the stack that stalls it. A stall that holds the interpreter lock stops the
thread too; then the lease may lapse, and the epoch in every guarded update keeps that safe.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta

import structlog

from asynsched.clock import Clock
from asynsched.errors import StoreError
from asynsched.executors.base import Executor
from asynsched.settings import LeaseSettings
from asynsched.store.direct_database import DirectDatabase, open_direct
from asynsched.store.schedulers import renew_scheduler

log = structlog.get_logger(__name__)

STALL_SECONDS = 2.0
"""How long the loop may fail to answer before its stack is logged."""


class LeaseKeeper:
    """Renews the lease until it is stopped.

    Args:
        database_url: Opened anew: the thread shares no connection with the loop.
        on_lost: Called from the thread when the database says that the lease is another's.
    """

    def __init__(
        self,
        *,
        settings: LeaseSettings,
        database_url: str,
        clock: Clock,
        scheduler_id: str,
        lease_epoch: int,
        executor: Executor,
        on_lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._database_url = database_url
        self._clock = clock
        self._scheduler_id = scheduler_id
        self._lease_epoch = lease_epoch
        self._executor = executor
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._beat_at = clock.monotonic()
        self._stall_is_logged = False
        self._thread = threading.Thread(target=self._run, name="asynsched lease", daemon=True)

    def start(self) -> None:
        """Begin to renew. Call it on the event loop's thread: that one is watched."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing. Does not wait for a renewal under way."""
        self._stopped.set()

    def beat(self) -> None:
        """Say that the event loop is alive."""
        self._beat_at = self._clock.monotonic()

    def _run(self) -> None:
        database: DirectDatabase | None = None
        next_renewal = self._clock.monotonic()
        try:
            while not self._stopped.wait(min(1.0, self._settings.renew_interval)):
                self._watch_loop()
                if self._clock.monotonic() < next_renewal:
                    continue
                try:
                    database = database or open_direct(self._database_url)
                    self._renew(database)
                    next_renewal = self._clock.monotonic() + self._settings.renew_interval
                except StoreError as exc:
                    log.warning("lease.not_renewed", error=str(exc))
        finally:
            if database is not None:
                database.close()

    def _renew(self, database: DirectDatabase) -> None:
        duration = timedelta(seconds=self._settings.duration)
        valid_until = self._clock.boottime() + self._settings.duration
        now = self._clock.now()
        if database.write(renew_scheduler, self._scheduler_id, self._lease_epoch, now=now, lease_until=now + duration):
            self._executor.renew_lease(valid_until)
        else:
            log.error("lease.lost", scheduler_id=self._scheduler_id)
            self._stopped.set()
            self._on_lost()

    def _watch_loop(self) -> None:
        stalled_for = self._clock.monotonic() - self._beat_at
        if stalled_for < STALL_SECONDS:
            self._stall_is_logged = False
        elif not self._stall_is_logged:
            self._stall_is_logged = True
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to another thread's stack
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            log.warning("loop.stalled", seconds=round(stalled_for, 1), stack=stack)
