"""Frames between processes of different versions: unknown parts are skipped."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from asynsched.protocol.frames import DEEPEST, FrameReader, ProtocolError, encode_frame
from asynsched.protocol.messages import FromKeeper, Hello, Inventory, Kill, LeaseTerm, Reply, ToKeeper


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
    assert list(reader.feed(later)) == [Hello(2, 7, lease_epoch=3), LeaseTerm(5.0, 1.0)]


def test_what_an_earlier_version_leaves_out_has_a_value_that_changes_nothing():
    earlier = raw(type="kill", token="t", reason="r")
    assert list(FrameReader(ToKeeper).feed(earlier)) == [Kill("t", "r", grace=5.0, cause="task")]


def test_frames_arrive_whole_however_they_are_cut():
    frames = encode_frame(Inventory((), ("a",))) + encode_frame(Hello(1, 2))
    reader = FrameReader(FromKeeper)
    told = [message for place in range(len(frames)) for message in reader.feed(frames[place : place + 1])]
    assert told == [Inventory((), ("a",)), Hello(1, 2)]


@pytest.mark.parametrize("frame", [raw(type="lease", valid_until="soon", grace=1.0), b"\0\0\0\2{]", b"\xff" * 8])
def test_what_is_no_frame_at_all_is_refused(frame):
    with pytest.raises(ProtocolError):
        list(FrameReader(ToKeeper).feed(frame))


BRACKETS_IN_STRINGS = st.text('[]{}"\\\\/n\u00e9', max_size=6)


def nested(levels: int, text: str, *, in_dicts: bool) -> Any:
    """Return a value that is `levels` deep, with a text and a flat sibling at every level but the last."""
    value: Any = [text]
    for _ in range(levels - 1):
        value = {text: [], f"{text}.": value} if in_dicts else [{}, text, value]
    return value


@given(levels=st.integers(DEEPEST - 4, DEEPEST + 4), text=BRACKETS_IN_STRINGS, in_dicts=st.booleans())
def test_a_frame_is_written_if_and_only_if_it_is_not_nested_too_deeply(levels, text, in_dicts):
    reply = Reply("t", 1, nested(levels, text, in_dicts=in_dicts))
    if levels < DEEPEST:  # the frame itself is one level
        assert list(FrameReader(ToKeeper).feed(encode_frame(reply))) == [reply]
    else:
        with pytest.raises(ProtocolError, match=f"nested {levels + 1} deep; the limit is {DEEPEST}"):
            encode_frame(reply)


@given(text=BRACKETS_IN_STRINGS)
def test_a_frame_with_many_brackets_beside_one_another_is_written(text):
    reply = Reply("t", 1, [[{text: []}, "[" * DEEPEST]] * DEEPEST)
    assert list(FrameReader(ToKeeper).feed(encode_frame(reply))) == [reply]


def test_messages_before_a_bad_frame_arrive():
    reader, arrived = FrameReader(ToKeeper), []
    with pytest.raises(ProtocolError):
        arrived.extend(reader.feed(encode_frame(Kill("t", "r")) + b"\0\0\0\2{]" + encode_frame(Kill("u", "r"))))
    assert arrived == [Kill("t", "r")]
    with pytest.raises(ProtocolError):
        arrived.extend(reader.feed(b""))
