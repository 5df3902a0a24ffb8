"""Where the logs of tries on other machines are kept: in parts, each with the byte at which it begins."""

import os
from abc import ABC, abstractmethod
from pathlib import Path

from asynsched.protocol.home_files import open_log

ELSEWHERE = b"*** What came before is in another home or in the store of logs. This line takes its place."
MOST_FILLER = 1024**2


class LogStore(ABC):
    """Keeps logs by their paths, relative and with forward slashes. Every method blocks: call it in a thread."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of a log; 0 if there is none."""

    @abstractmethod
    def append(self, path: str, origin: int, start: int, data: bytes) -> int:
        """Add a part of a try's log, and return how many bytes of it are there.

        A part that is there already is not added again, and one that leaves a gap is not added: the answer says where
        the next part has to begin. Raises OSError.

        Args:
            origin: The byte of the file at which the try's log begins. If the file is shorter, because what came before
                is in another home or in the archive, a line says so and fills it up to there.
            start: The byte of the try's log at which the part begins.
        """


class FolderLogs(LogStore):
    """Keeps each log as a file below a folder, where the logs of tries on this machine are, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self, path: str) -> int:
        try:
            return (self._folder / path).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, path: str, origin: int, start: int, data: bytes) -> int:
        descriptor = open_log(self._folder / path, appends=False)
        try:
            size = os.fstat(descriptor).st_size
            while size < origin:
                size = _write(descriptor, _filler(origin - size), size)
            n_there = size - origin
            if start > n_there:
                return n_there
            return _write(descriptor, data[n_there - start :], size) - origin
        finally:
            os.close(descriptor)


def _filler(n_bytes: int) -> bytes:
    """Return a line of this length in bytes, or of the most that are written at once."""
    n_bytes = min(n_bytes, MOST_FILLER)
    return ELSEWHERE[: n_bytes - 1].ljust(n_bytes - 1) + b"\n"


def _write(descriptor: int, data: bytes, place: int) -> int:
    """Write at a byte of a file, and return where that ends."""
    rest = memoryview(data)
    while rest:
        n_written = os.pwrite(descriptor, rest, place)
        rest, place = rest[n_written:], place + n_written
    return place
