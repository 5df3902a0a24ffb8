"""The messages of the process that runs a DAG file to the one that watches it: lines of JSON on their own pipe.

    confined ─▶ (sourced)* ─▶ imported ─▶ (sourced)* ─▶ found

The writer shares its process with user code, so a reader believes nothing: every line is decoded against these structs,
and any other line is kept as text, such as Python's own crash report.
"""

import hashlib
import os
from pathlib import PurePosixPath

import msgspec
from msgspec import Struct

from asynsched.protocol.frames import UNDECODABLE
from asynsched.serialization.schema import FileError, ParsedDag, SourceFile

MAX_LINES_OF_TEXT = 1_000
"""More than Python's longest crash report; garbage beyond it is dropped."""


class Confined(Struct, frozen=True, tag="confined"):
    """User code is about to run, under this confinement."""

    enforced: tuple[str, ...]


class Refused(Struct, frozen=True, tag="refused"):
    """The process could not be confined as required, and ran nothing."""

    reason: str


class Sourced(Struct, frozen=True, tag="sourced"):
    """A local source is about to be compiled."""

    source: SourceFile


class Imported(Struct, frozen=True, tag="imported"):
    """The DAG file's import is over."""


class Found(Struct, frozen=True, tag="found"):
    """The DAGs, errors and warnings of the file."""

    dags: tuple[ParsedDag, ...] = ()
    errors: tuple[FileError, ...] = ()
    warnings: tuple[FileError, ...] = ()


Message = Confined | Refused | Sourced | Imported | Found


class Channel:
    """The writing end, for the process that made it: a child that user code forks writes nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._owner = os.getpid()

    def send(self, message: Message) -> None:
        """Write one message. Raises OSError when user code has closed the pipe."""
        if os.getpid() != self._owner:
            return
        rest = memoryview(msgspec.json.encode(message) + b"\n")
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]


class Transcript:
    """Everything that was read: the latest message of each kind, the sources, and the other lines."""

    def __init__(self) -> None:
        self.confined: Confined | None = None
        self.refused: Refused | None = None
        self.imported = False
        self.found: Found | None = None
        self.sources: dict[tuple[str, str], SourceFile] = {}
        self.size = 0
        self._buffer = bytearray()
        self._text: list[str] = []
        self._decoder = msgspec.json.Decoder(Message)

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._buffer) + lines[0]
            self._buffer.clear()
        for line in lines:
            self._take(line)
        self._buffer += rest

    @property
    def text(self) -> str:
        """The lines that are not messages: a crash report of Python's, or garbage."""
        return "\n".join([*self._text, self._buffer.decode("utf-8", "replace")])

    def _take(self, line: bytes) -> None:
        try:
            message = self._decoder.decode(line)
        except UNDECODABLE:
            if len(self._text) < MAX_LINES_OF_TEXT:
                self._text.append(line[:1000].decode("utf-8", "replace"))
            return
        match message:
            case Confined():
                self.confined = message
            case Refused():
                self.refused = message
            case Imported():
                self.imported = True
            case Found():
                self.found = message
            case Sourced(source=source) if _is_honest(source):
                self.sources[source.path, source.module] = source


def encodable(text: str) -> str:
    """Return a text of user code's with halves of surrogate pairs, which no JSON has, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_honest(source: SourceFile) -> bool:
    """Whether a source has the hash that it claims, and its path stays in the DAG folder."""
    path = PurePosixPath(source.path)
    digest = hashlib.sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest()
    return not path.is_absolute() and ".." not in path.parts and digest == source.content_hash
