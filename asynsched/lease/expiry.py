"""When a lease expires: the instants that the keeper and other schedulers rely on.

A scheduler cannot distinguish a database that is down from a broken connection to it, in which case another scheduler
still reaches the database and takes the runs. So both sides rely on a time that is stored *before* anything fails. With
each renewal, the scheduler stores how long others leave its runs alone after it, and reports the same time, less a
margin, to its keeper:

    renewed_at                                                    takeover_at
        |-- duration --|-- outage --|-- grace --|-- kill_time --|-- drift, margin --|
                                    ^           ^               ^                   ^
        the keeper's lease expires -'           |               |                   |
        the keeper begins to end the tries -----'               |                   |
        no try is left -----------------------------------------'                   |
        another scheduler takes the runs -------------------------------------------'

Until their end, tries continue even if the database is away, or the scheduler, keeper or machine is stalled.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.settings import LeaseSettings
from asynsched.store.schedulers import has_peers, renew_scheduler, set_takeover

MARGIN_SECONDS = 1.0
"""Added to the takeover time: a busy machine ends processes late."""
DRIFT = 0.01
"""Share of the takeover time that is added because the clocks of two machines run at different rates. Linux slews a
clock by at most 0.05 %, unless it is configured to correct faster."""


def takeover_seconds(lease: LeaseSettings, *, is_alone: bool) -> float:
    """Return how many seconds after a scheduler's last renewal others leave its runs alone. No try of it runs later."""
    beside_others = lease.longest_shared_outage
    outage = max(lease.outage, beside_others) if is_alone else beside_others
    return (lease.duration + outage + lease.grace + lease.kill_time) * (1 + DRIFT) + MARGIN_SECONDS


class Expiry(NamedTuple):
    """When a lease expires, unless it is renewed. Instants are seconds of CLOCK_BOOTTIME.

    Attributes:
        renewed_at: When it was last renewed, or a little earlier.
        takeover_seconds: How long after that others leave the runs alone, as the scheduler's row says.
    """

    renewed_at: float
    takeover_seconds: float

    @property
    def takeover_at(self) -> float:
        return self.renewed_at + self.takeover_seconds

    def for_keeper(self, lease: LeaseSettings) -> float:
        """Return when the lease expires for the keeper, which then grants its tries grace and kill time."""
        without_margins = (self.takeover_seconds - MARGIN_SECONDS) / (1 + DRIFT)
        return self.renewed_at + without_margins - lease.grace - lease.kill_time


@dataclass(eq=False)
class Lease:
    """This scheduler's lease.

    Attributes:
        scheduler_id: The scheduler's name, also in the database.
        epoch: The fencing token: part of every guarded update. Each scheduler that registers gets a higher one.
        expiry: The time that was stored at registration, or by the last committed renewal.
        home_is_lock: Whether no other scheduler can take the runs while the home is locked, as on SQLite. Then tries go
            on as long as the scheduler lives, even while the database cannot be written.
    """

    scheduler_id: str
    epoch: int
    settings: LeaseSettings = field(default_factory=LeaseSettings)
    expiry: Expiry = field(default_factory=lambda: Expiry(0.0, 0.0))
    home_is_lock: bool = field(default=False, kw_only=True)

    def renew(self, conn: Connection, *, now: datetime, boottime: float) -> Expiry | None:
        """Renew the lease, and store how long others leave the runs alone.

        Args:
            boottime: CLOCK_BOOTTIME of this instant, or earlier.

        Returns:
            The new `expiry`, for once the transaction is committed; None if the lease is lost.
        """
        lease_until = now + timedelta(seconds=self.settings.duration)
        if not renew_scheduler(conn, self.scheduler_id, self.epoch, now=now, lease_until=lease_until):
            return None
        seconds = takeover_seconds(self.settings, is_alone=not has_peers(conn, self.scheduler_id))
        # `takeover_at` never moves back, even when another scheduler comes or the last one goes: the keeper relies on
        # the last time that it was told, and may hear late of a shorter one. So an unconfirmed commit does no harm.
        expiry = Expiry(boottime, max(seconds, self.expiry.takeover_at - boottime))
        set_takeover(conn, self.scheduler_id, expiry.takeover_seconds)
        return expiry

    def keeper_expiry(self, boottime: float) -> float:
        """Return when the lease expires for the keeper if it is never renewed again; both are of CLOCK_BOOTTIME."""
        if self.home_is_lock:
            return boottime + self.settings.duration
        return self.expiry.for_keeper(self.settings)
