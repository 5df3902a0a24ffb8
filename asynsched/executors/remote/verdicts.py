"""When a try on another machine is given up: pure functions of what was seen of it, on this scheduler's own clock.

A worker ends a try once its lease, the grace and the kill time are over. The lease is a length of time since its last
renewal, which is stored before the worker hears of it. So the try is gone when the number of its renewals has not
changed for all of that, and a little more, since this scheduler first saw the number.

    last renewal                                                                        lost
         │         lease_seconds         │  grace  │ kill time │ drift, margin │ next look │
         ├───────────────────────────────┼─────────┼───────────┼───────────────┼───────────┤
                                         │         └─ no process of the try is left
                                         └─ the worker's keeper begins to end it
"""

from dataclasses import dataclass

from asynsched.executors.remote.engine import Sight
from asynsched.lease.expiry import DRIFT, MARGIN_SECONDS
from asynsched.protocol.messages import FailureCause
from asynsched.store.tickets import CLAIMED, SUBMITTED


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a try that has not ended.

    Attributes:
        state: Of its ticket.
        unchanged_seconds: How long neither the state nor the number of renewals has changed.
        gone_after: Seconds after a renewal at which it has ended if there was no other one: the lease, grace and kill
            time that its worker was told.
        sight: How the engine sees its job.
        running_seconds: How long the engine has said that the job runs.
    """

    state: str
    unchanged_seconds: float
    gone_after: float
    sight: Sight
    running_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The try is over, for this reason."""

    reason: str
    cause: FailureCause


def verdict(seen: Seen, claim_timeout: float) -> GivenUp | None:
    """Return why a try is given up; None: it may go on.

    Args:
        claim_timeout: Longest that a job may run without a claim, seconds.
    """
    if seen.state == CLAIMED:
        if seen.unchanged_seconds > seen.gone_after * (1 + DRIFT) + MARGIN_SECONDS:
            return GivenUp(f"its worker has not renewed its lease for {seen.unchanged_seconds:.0f} s", "machine")
        return None
    if seen.state != SUBMITTED:
        return None
    if seen.sight.state == "gone":
        because = f": {seen.sight.reason}" if seen.sight.reason else ""
        return GivenUp(f"the engine has ended its job, and no worker has claimed the try{because}", "machine")
    if seen.sight.state == "running" and seen.running_seconds > claim_timeout:
        return GivenUp(f"its job runs for {seen.running_seconds:.0f} s, and no worker has claimed the try", "machine")
    return None
