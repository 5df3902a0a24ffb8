"""The standing of a scheduler, with the knowledge of each process that asks."""

import os
import socket
from datetime import timedelta

import pytest

from asynsched.bell import SOCKET_NAME
from asynsched.explaining.owners import standing
from tests.support.runs import NOON
from tests.unit.explaining.test_owners import row


def standing_at(home, parallelism=1):
    own = {"hostname": socket.gethostname(), "pid": os.getpid(), "home": str(home), "parallelism": parallelism}
    later = NOON + timedelta(seconds=1)
    return standing(row(1, heartbeat_at=later, lease_until=later, **own), NOON)


def test_a_scheduler_whose_home_is_open_to_us_and_has_no_bell_is_stopping(tmp_path):
    assert standing_at(tmp_path) == "stopping"
    assert standing_at(tmp_path, parallelism=0) == "serving", "it is starting, and renews its lease meanwhile"
    (tmp_path / SOCKET_NAME).touch()
    assert standing_at(tmp_path) == "serving"


@pytest.fixture
def closed_home(tmp_path):
    """A home that belongs to another user than the one who asks."""
    user = os.geteuid()
    tmp_path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    yield tmp_path
    os.seteuid(user)
    tmp_path.chmod(0o700)


def test_a_scheduler_with_a_closed_or_distant_home_counts_as_serving(closed_home):
    assert standing_at(closed_home) == "serving"
    assert standing_at("/no/such/home") == "serving"
