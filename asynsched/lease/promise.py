"""How long the tries of a scheduler go on without news of it, and when others take its runs, which follows from that.

Whoever cannot reach the database cannot tell whether others can. So a scheduler says beforehand, with each renewal, how
much more time it is to be given than lease, grace and kill time: `lease.outage` if it is alone, `lease.shared_outage`
as soon as it sees another scheduler, which waits so much longer for the runs of one that has died. Its keeper is told
the same. Within that time its tries go on, whatever stands still or is away: database, scheduler, keeper, machine.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from asynsched.settings import LeaseSettings
from asynsched.store.schedulers import has_peers, renew_scheduler, set_takeover

MARGIN_SECONDS = 1.0
"""What is added to the time after which no try of a lost scheduler runs: a busy machine ends processes late."""
DRIFT = 0.01
"""What is added for clocks of two machines that do not run alike, a share of that time. Linux lets each be made faster
or slower by 0.05 % as long as it is not told to hurry."""


def takeover_seconds(lease: LeaseSettings, *, is_alone: bool) -> float:
    """Return how long after a renewal others take the runs, should that be the last one: no try can run any more."""
    beside_others = lease.longest_shared_outage
    outage = max(lease.outage, beside_others) if is_alone else beside_others
    return (lease.duration + outage + lease.grace + lease.kill_time) * (1 + DRIFT) + MARGIN_SECONDS


class Promise(NamedTuple):
    """What the row of a scheduler says since a moment.

    Attributes:
        since: CLOCK_BOOTTIME of that renewal, or a little earlier.
        takeover_seconds: How long after it nobody takes the runs.
    """

    since: float
    takeover_seconds: float

    @property
    def until(self) -> float:
        """CLOCK_BOOTTIME until which nobody takes the runs."""
        return self.since + self.takeover_seconds

    def valid_until(self, lease: LeaseSettings) -> float:
        """Return until when a keeper may be told that the lease is valid: its grace and kill time follow on that."""
        lasting = (self.takeover_seconds - MARGIN_SECONDS) / (1 + DRIFT)
        return self.since + lasting - lease.grace - lease.kill_time


NO_PROMISE = Promise(0.0, 0.0)


class Outlasting:
    """What a scheduler has said of itself with its last renewal, and what follows from that for its tries.

    Args:
        entry: What was said as it registered.
        home_is_claim: Nobody else can take the runs while the home is locked, as on SQLite: tries go on as long as the
            scheduler is there, also while the database cannot be written.
    """

    def __init__(self, lease: LeaseSettings, entry: Promise, *, home_is_claim: bool) -> None:
        self._lease = lease
        self._promise = entry
        self._home_is_claim = home_is_claim

    def renew(
        self, conn: Connection, scheduler_id: str, lease_epoch: int, *, now: datetime, boottime: float
    ) -> tuple[bool, Promise]:
        """Renew a lease, and say how long nobody is to take its runs.

        Args:
            boottime: CLOCK_BOOTTIME of the present moment, or earlier.

        Returns:
            Whether the lease is still this scheduler's, and what `renewed` takes once this is committed.
        """
        lease_until = now + timedelta(seconds=self._lease.duration)
        is_ours = renew_scheduler(conn, scheduler_id, lease_epoch, now=now, lease_until=lease_until)
        seconds = takeover_seconds(self._lease, is_alone=not has_peers(conn, scheduler_id))
        # Nobody takes the runs sooner than was said before, though another scheduler has come, or the last one has
        # gone: the keeper goes by that, and may hear late of less. So it also does not matter whether this is known to
        # be committed.
        promise = Promise(boottime, max(seconds, self._promise.until - boottime))
        if is_ours:
            set_takeover(conn, scheduler_id, promise.takeover_seconds)
        return is_ours, promise

    def renewed(self, promise: Promise) -> None:
        """Take note that a renewal is committed."""
        self._promise = promise

    def allowed(self, now: float) -> float:
        """Return until when the keeper may be told that the lease is valid, should it not be renewed any more.

        Args:
            now: CLOCK_BOOTTIME; so is what is returned.
        """
        return now + self._lease.duration if self._home_is_claim else self._promise.valid_until(self._lease)
