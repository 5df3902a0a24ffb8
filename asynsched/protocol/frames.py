"""Frames: four bytes of length, big endian, then JSON of a struct, told apart from others by its `type`."""

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_VALUE_BYTES = 15 * 1024 * 1024
"""Of JSON: an XCom, a run's conf, or a message of a try. The keeper adds fields to the frames that it passes on."""
HEADER_BYTES = 4
DEEPEST = 600
"""How deep the lists and objects of a frame may be nested, the frame itself included. Every receiver can decode that:
Python limits the recursion of the keeper's decoder to 700 levels (`sandbox.keeper`), and that of others to 1,000."""
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Raised by decoding for bytes that are not a message, hostile or not."""
UNENCODABLE = (msgspec.MsgspecError, RecursionError, UnicodeEncodeError, OverflowError)


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


class TooLarge(ProtocolError):
    """A message is too large to be sent, or was announced as such. The text, for people, names its size and the limit.

    Args:
        size: Bytes.
        limit: Bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{mebibytes(size)} of JSON; the limit is {mebibytes(limit)}")


def mebibytes(size: int) -> str:
    """Return a size in bytes for people, e.g. `17.2 MiB`."""
    return f"{size / 1024**2:.1f} MiB"


_encoder = msgspec.json.Encoder()


def encode_frame(message: Struct, deepest: int = DEEPEST, largest: int = MAX_FRAME_BYTES) -> bytes:
    """Return the bytes of one frame.

    Raises TooLarge, and ProtocolError if it is nested more than `deepest` levels, or has a value unknown to JSON.
    """
    try:
        body = _encoder.encode(message)
    except UNENCODABLE as exc:
        raise ProtocolError(f"a message that cannot be written: {exc}") from exc
    if len(body) > largest:
        raise TooLarge(len(body), largest)
    # Most messages have fewer brackets than levels are allowed.
    if body.count(b"[") + body.count(b"{") > deepest and (depth := _depth(body)) > deepest:
        raise ProtocolError(f"a message with lists and objects nested {depth} deep; the limit is {deepest}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def _depth(body: bytes) -> int:
    """Return how deep JSON is nested. It may have millions of brackets: no loop in Python."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(body.split(b'"')[::2])
    steps = outside_strings.translate(_STEPS, _NO_BRACKET)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


@cache
def _decoder_of(expected: Any) -> tuple[msgspec.json.Decoder[Any], frozenset[str]]:
    """Return the decoder of a union of structs, and their tags. Making one takes longer than decoding a message."""
    return msgspec.json.Decoder(expected), frozenset(struct.__struct_config__.tag for struct in expected.__args__)


class FrameReader:
    """Takes bytes as they arrive, gives whole messages of the given union of structs, e.g. `ToKeeper`."""

    def __init__(self, expected: Any) -> None:
        self._decoder, self._tags = _decoder_of(expected)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages completed by `data`, those before a bad frame too. Raises ProtocolError at that frame."""
        self._buffer += data
        return self._completed()

    def _completed(self) -> Iterator[Any]:
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise TooLarge(length, MAX_FRAME_BYTES)
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            message = self._decode(bytes(self._buffer[HEADER_BYTES:end]))
            del self._buffer[:end]
            if message is not None:
                yield message

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as exc:
            if _tag_of(body) not in self._tags:
                return None
            raise ProtocolError(f"a malformed frame: {exc}") from exc
        except UNDECODABLE as exc:
            raise ProtocolError(f"a frame that is not JSON: {exc}") from exc


class _Tagged(Struct):
    type: str = ""


def _tag_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Tagged).type
    except UNDECODABLE:
        return ""
