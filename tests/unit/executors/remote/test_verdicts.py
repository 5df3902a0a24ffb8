"""When a try on another machine is given up."""

import pytest

from asynsched.executors.remote.engine import Sight
from asynsched.executors.remote.verdicts import GivenUp, Seen, verdict

QUEUED, RUNNING = Sight("queued"), Sight("running")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        # A lease of 120 s, 10 s of grace, 5 s to end; 1 % for drift, and a second.
        (Seen("claimed", 137.3, 135, QUEUED), None),
        (Seen("claimed", 137.4, 135, QUEUED), "its worker has not renewed its lease for 137 s"),
        (Seen("claimed", 10, 135, Sight("gone")), None),
        (Seen("submitted", 1e6, 0, QUEUED), None),
        (Seen("submitted", 1e6, 0, Sight("unknown")), None),
        (Seen("submitted", 1e6, 0, RUNNING, running_seconds=300), None),
        (Seen("submitted", 1e6, 0, RUNNING, 301), "its job runs for 301 s, and no worker has claimed the try"),
        (Seen("submitted", 0, 0, Sight("gone", "no node")),
            "the engine has ended its job, and no worker has claimed the try: no node"),
        (Seen("ended", 1e6, 0, Sight("gone")), None),
        (Seen("new", 1e6, 0, Sight("unknown")), None),
    ],
)  # fmt: skip
def test_a_try_is_given_up_only_when_nothing_of_it_can_be_left(seen: Seen, expected: str | None):
    found = verdict(seen, 300)
    assert found == (None if expected is None else GivenUp(expected, "machine"))
