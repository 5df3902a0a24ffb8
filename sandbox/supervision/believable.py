"""What is believed of a try's own word. User code shares its process, and may have written anything that is a frame.

Ordinary tries say nothing that is changed here but dates and lengths beyond what dates can be reckoned with.
"""

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.messages import Deferral, Ended

LONGEST_WAIT = timedelta(days=36_525)
LARGEST_LENGTH = 2**31 - 1
"""Of a result that others are mapped over: what a column holds."""
NO_JSON = "its process returned a value that is no valid JSON"


def plausible(stamp: datetime, now: datetime) -> datetime:
    """Return an instant that a try has stamped, brought into the past, and into the years that databases have."""
    return min(max(stamp, now - LONGEST_WAIT), now)


def believable(said: Ended) -> Ended:
    """Return what a try said of its end, with instants and lengths that a scheduler can reckon with.

    Its stamps are its own word: none of them may lie in the future, nor its next look beyond the years that dates have.
    """
    now = datetime.now(UTC)
    started_at = None if said.started_at is None else plausible(said.started_at, now)
    if said.return_value and not _is_json(bytes(said.return_value)):
        return Ended(said.token, "failed", plausible(said.ended_at, now), started_at=started_at, reason=NO_JSON)
    return replace(
        said,
        ended_at=plausible(said.ended_at, now),
        started_at=started_at,
        reschedule_at=None if said.reschedule_at is None else min(said.reschedule_at, now + LONGEST_WAIT),
        retry_delay=_length(said.retry_delay),
        result_length=None if said.result_length is None else min(max(said.result_length, -1), LARGEST_LENGTH),
        deferral=None if said.deferral is None else _deferral(said.deferral),
    )


def _deferral(said: Deferral) -> Deferral:
    return replace(said, timeout=_length(said.timeout))


def _length(seconds: float | None) -> float | None:
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_WAIT.total_seconds())


def _is_json(data: bytes) -> bool:
    """Return whether bytes are JSON as it is read later; the frame was checked for its outline only."""
    try:
        msgspec.json.decode(data)
    except UNDECODABLE:
        return False
    return True
