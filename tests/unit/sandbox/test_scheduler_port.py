"""Which frames the keeper takes from the processes that connect to it, and what it logs of them."""

import pytest

from asynsched.executors.keeper_connection import connect
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import PROTOCOL_VERSION, Hello, Kill
from sandbox.supervision.keeper import SchedulerPort
from sandbox.supervision.reactor import Reactor

BAD = b"\0\0\0\2{]"
HELLO = Hello(PROTOCOL_VERSION, 4711, "s", lease_epoch=1)
KILL = Kill("t", "it was marked")


@pytest.mark.parametrize(
    ("greeting", "heard", "n_logged"),
    [
        (HELLO, [HELLO, KILL], 1),
        (Hello(PROTOCOL_VERSION, 4711, "s", lease_epoch=1, role="lease"), [], 0),
        (None, [], 0),
    ],
    ids=["scheduler", "lease", "stranger"],
)
def test_a_bad_frame_ends_a_connection_and_only_a_schedulers_is_logged(tmp_path, caplog, greeting, heard, n_logged):
    reactor, taken = Reactor(), []
    port = SchedulerPort(reactor, tmp_path, taken.append, lambda: ())
    with connect(tmp_path) as caller:
        said = [] if greeting is None else [greeting, KILL]
        caller.sendall(b"".join(map(encode_frame, said)) + BAD)
        reactor.turn(lambda: None)  # the connection
        reactor.turn(lambda: None)  # its frames
        while caller.recv(4096):  # the keeper's Hello, if any, until it hangs up
            pass
    assert taken == heard
    assert not port.is_connected
    assert ["process 4711" in message and "not JSON" in message for message in caplog.messages] == [True] * n_logged
    port.close_listener()
