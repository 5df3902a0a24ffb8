"""Whether tries may outlast their scheduler's lease, because the database is away, and nobody takes their runs.

Whoever cannot reach the database cannot tell whether others can. So a scheduler says beforehand, with each renewal, how
much more time it is to be given than lease, grace and kill time: `lease.outage` if it is alone, `lease.shared_outage`
as soon as it sees another scheduler, which waits so much longer for the runs of one that has died. Within that time its
tries go on without the database.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection

from asynsched.housekeeping.peer_watch import takeover_seconds
from asynsched.settings import LeaseSettings
from asynsched.store.schedulers import has_peers, renew_scheduler, set_takeover


class Outlasting:
    """What a scheduler has said of itself with its last renewal, and what follows from that."""

    def __init__(self, lease: LeaseSettings) -> None:
        self._lease = lease
        self._usual = takeover_seconds(lease)
        self._safe_until = 0.0
        """CLOCK_BOOTTIME until which nobody takes the runs."""

    def renew(
        self, conn: Connection, scheduler_id: str, lease_epoch: int, *, now: datetime, boottime: float
    ) -> tuple[bool, float]:
        """Renew a lease, and say how long nobody is to take its runs.

        Args:
            boottime: CLOCK_BOOTTIME of the present moment, or earlier.

        Returns:
            Whether the lease is still this scheduler's, and what `renewed` takes once this is committed.
        """
        lease_until = now + timedelta(seconds=self._lease.duration)
        is_ours = renew_scheduler(conn, scheduler_id, lease_epoch, now=now, lease_until=lease_until)
        seconds = self._usual + self._lease.outage
        if has_peers(conn, scheduler_id):
            seconds = self._usual + self._lease.longest_shared_outage
        # Not only once this is known to be committed: the answer to the commit may be lost. What is said may be less
        # than before, when another scheduler has come or when the last one has gone.
        self._safe_until = min(self._safe_until, boottime + seconds)
        if is_ours:
            set_takeover(conn, scheduler_id, seconds)
        return is_ours, boottime + seconds

    def renewed(self, safe_until: float) -> None:
        """Take note that a renewal is committed."""
        self._safe_until = safe_until

    def allowed(self, now: float) -> float | None:
        """Return until when the keeper may be told that the lease is valid, though it cannot be renewed.

        Args:
            now: CLOCK_BOOTTIME; so is what is returned. None: no longer than it was told before.
        """
        # Grace, kill time and a margin follow on the lease, and then others take the runs.
        until = min(now, self._safe_until - self._usual) + self._lease.duration
        return until if until > now else None
