"""Frames between processes of different versions: what one of them does not know is passed over."""

import msgspec
import pytest
from msgspec import Struct

from asynsched.protocol.frames import FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import FromKeeper, Hello, Inventory, Kill, Lease, ToKeeper


def raw(**fields) -> bytes:
    body = msgspec.json.encode(fields)
    return len(body).to_bytes(4, "big") + body


class Inspect(Struct, tag="inspect"):
    """A frame of a later version."""

    depth: int


def test_what_a_later_version_says_is_understood_as_far_as_it_is_known():
    reader = FrameReader(ToKeeper)
    later = raw(type="hello", version=2, pid=7, lease_epoch=3, region="north") + encode_frame(Inspect(1))
    later += raw(type="lease", valid_until=5.0, grace=1.0, zone={"of": ["later"]})
    assert reader.feed(later) == [Hello(2, 7, lease_epoch=3), Lease(5.0, 1.0)]


def test_what_an_earlier_version_leaves_out_has_a_value_that_changes_nothing():
    earlier = raw(type="kill", token="t", reason="r")
    assert FrameReader(ToKeeper).feed(earlier) == [Kill("t", "r", grace=5.0, cause="task")]


def test_frames_arrive_whole_however_they_are_cut():
    frames = encode_frame(Inventory((), ("a",))) + encode_frame(Hello(1, 2))
    reader = FrameReader(FromKeeper)
    told = [message for place in range(len(frames)) for message in reader.feed(frames[place : place + 1])]
    assert told == [Inventory((), ("a",)), Hello(1, 2)]


@pytest.mark.parametrize("frame", [raw(type="lease", valid_until="soon", grace=1.0), b"\0\0\0\2{]", b"\xff" * 8])
def test_what_is_no_frame_at_all_is_refused(frame):
    with pytest.raises(ProtocolError):
        FrameReader(ToKeeper).feed(frame)
