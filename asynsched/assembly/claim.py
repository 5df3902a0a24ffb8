"""A scheduler's claim to its runs: what renews its lease, and what knows the other schedulers."""

from collections.abc import Callable
from dataclasses import dataclass

from asynsched.assembly.foundation import Foundation
from asynsched.executors.base import Executor
from asynsched.housekeeping.lease import LeaseKeeper
from asynsched.housekeeping.loop_beat import LoopBeat
from asynsched.housekeeping.loop_lease import LoopLease
from asynsched.housekeeping.peer_watch import PeerWatch
from asynsched.service import Availability, Service
from asynsched.store.engines.direct_database import InlineDatabase
from asynsched.store.engines.sqlite_database import SqliteDatabase


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

    def has_peers(self) -> bool:
        """Return whether there are other schedulers, as far as is known."""
        return self.peers is not None and self.peers.n_peers > 0


def make_claim(base: Foundation, executor: Executor, availability: Availability, on_lost: Callable[[], None]) -> Claim:
    """Return the claim, not yet renewed.

    Args:
        base: A lease needs a connection of its own to be renewed from a thread, and that a URL.
        executor: Is told how long the lease holds.
        availability: Is told when the database is away.
        on_lost: Called on the loop, once, when another scheduler may take the runs.
    """
    if base.database_url is None:
        return Claim(None, _loop_lease(base, executor, on_lost), _peers(base, on_change=lambda: None))
    lease = LeaseKeeper(
        settings=base.settings.lease,
        database_url=base.database_url,
        home_is_claim=base.postgresql_url is None,
        clock=base.clock,
        scheduler_id=base.scheduler_id,
        lease_epoch=base.lease_epoch,
        executor=executor,
        availability=availability,
        on_lost=on_lost,
    )
    return Claim(lease, LoopBeat(clock=base.clock, lease=lease), _peers(base, on_change=lease.renew_soon))


def _loop_lease(base: Foundation, executor: Executor, on_lost: Callable[[], None]) -> LoopLease:
    return LoopLease(
        settings=base.settings.lease,
        database=base.database,
        home_is_claim=isinstance(base.database, SqliteDatabase | InlineDatabase),
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
