"""A scheduler's claim to its runs: what renews its lease, and what knows the other schedulers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from asynsched.assembly.foundation import Foundation
from asynsched.executors.base import Executor
from asynsched.housekeeping.lease import LeaseKeeper
from asynsched.housekeeping.loop_beat import LoopBeat
from asynsched.housekeeping.loop_lease import LoopLease
from asynsched.housekeeping.outlasting import Outlasting
from asynsched.housekeeping.peer_watch import PeerWatch
from asynsched.service import Availability, Service
from asynsched.store.engines.direct_database import InlineDatabase
from asynsched.store.engines.sqlite_database import SqliteDatabase

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """What holds the claim.

    Attributes:
        lease: Renews the lease from a thread; None where `beat` renews it on the loop.
        peers: None where there can be no other scheduler.
    """

    lease: LeaseKeeper | None
    beat: Service
    peers: PeerWatch | None

    @property
    def services(self) -> tuple[Service, ...]:
        """Its tasks on the event loop."""
        return (self.beat,) if self.peers is None else (self.beat, self.peers)

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Within, the lease is renewed though no service runs yet."""
        # No task group: that would wrap what is raised within, why a start has failed.
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
        """Return whether there are other schedulers, as far as is known."""
        return self.peers is not None and self.peers.n_peers > 0


def _log_failure(renewing: asyncio.Task[None]) -> None:
    """Say at once why the lease is not renewed any more: it is raised later, unless something else is raised first."""
    if not renewing.cancelled() and (error := renewing.exception()) is not None:
        log.error("lease.not_renewed", exc_info=error)


def make_claim(base: Foundation, executor: Executor, availability: Availability, on_lost: Callable[[], None]) -> Claim:
    """Return the claim, not yet renewed. The executor is told how long it holds, as it has yet to start.

    Args:
        base: A lease needs a connection of its own to be renewed from a thread, and that a URL.
        executor: Is told how long the lease holds.
        availability: Is told when the database is away.
        on_lost: Called on the loop, once, when another scheduler may take the runs.
    """
    outlasting = Outlasting(base.settings.lease, base.entry, home_is_claim=_is_home_the_claim(base))
    executor.renew_lease(outlasting.allowed(base.entry.since))
    if base.database_url is None:
        return Claim(None, _loop_lease(base, outlasting, executor, on_lost), _peers(base, on_change=lambda: None))
    lease = LeaseKeeper(
        settings=base.settings.lease,
        database_url=base.database_url,
        outlasting=outlasting,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        lease_epoch=base.lease_epoch,
        executor=executor,
        availability=availability,
        on_lost=on_lost,
    )
    return Claim(lease, LoopBeat(clock=base.clock, lease=lease), _peers(base, on_change=lease.renew_soon))


def _is_home_the_claim(base: Foundation) -> bool:
    if base.database_url is None:
        return isinstance(base.database, SqliteDatabase | InlineDatabase)
    return base.postgresql_url is None


def _loop_lease(base: Foundation, outlasting: Outlasting, executor: Executor, on_lost: Callable[[], None]) -> LoopLease:
    return LoopLease(
        settings=base.settings.lease,
        database=base.database,
        outlasting=outlasting,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        lease_epoch=base.lease_epoch,
        executor=executor,
        on_lost=on_lost,
    )


def _peers(base: Foundation, on_change: Callable[[], None]) -> PeerWatch | None:
    if not base.database.is_shared:
        return None
    return PeerWatch(
        renew_interval=base.settings.lease.renew_interval,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        on_change=on_change,
    )
