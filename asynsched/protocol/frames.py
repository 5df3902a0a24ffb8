"""Frames: four bytes of length, big endian, then JSON of a struct, told apart from others by its `type`."""

from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

MAX_FRAME_BYTES = 16 * 1024 * 1024
HEADER_BYTES = 4
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Raised by decoding for bytes that are no message, hostile ones among them."""
UNENCODABLE = (msgspec.MsgspecError, RecursionError, UnicodeEncodeError, OverflowError)


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


_encoder = msgspec.json.Encoder()


def encode_frame(message: Struct) -> bytes:
    """Return the bytes of one frame. Raises ProtocolError when it is too long, or has a value unknown to JSON."""
    try:
        body = _encoder.encode(message)
    except UNENCODABLE as exc:
        raise ProtocolError(f"a message that cannot be written: {exc}") from exc
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes; the limit is {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


@cache
def _decoder_of(expected: Any) -> tuple[msgspec.json.Decoder[Any], frozenset[str]]:
    """Return the decoder of a union of structs, and their tags. Making one takes longer than decoding a message."""
    return msgspec.json.Decoder(expected), frozenset(struct.__struct_config__.tag for struct in expected.__args__)


class FrameReader:
    """Takes bytes as they arrive, gives whole messages of the given union of structs.

    Args:
        expected: The union of structs that this side understands, e.g. `ToKeeper`.
    """

    def __init__(self, expected: Any) -> None:
        self._decoder, self._tags = _decoder_of(expected)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages completed by `data`. Raises ProtocolError if it is not a frame."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes; the limit is {MAX_FRAME_BYTES}")
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            message = self._decode(bytes(self._buffer[HEADER_BYTES:end]))
            del self._buffer[:end]
            if message is not None:
                messages.append(message)
        return messages

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as exc:
            if _tag_of(body) not in self._tags:
                return None
            raise ProtocolError(f"a malformed frame: {exc}") from exc
        except UNDECODABLE as exc:
            raise ProtocolError(f"a frame that is no JSON: {exc}") from exc


class _Tagged(Struct):
    type: str = ""


def _tag_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Tagged).type
    except UNDECODABLE:
        return ""
