"""Where the logs of tries on other machines are kept: in parts, each with the byte at which it begins."""

import fcntl
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from asynsched.protocol.home_files import PRIVATE_FILE


class LogStore(ABC):
    """Keeps logs by their paths, relative and with forward slashes. Every method blocks: call it in a thread."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of a log; 0 if there is none."""

    @abstractmethod
    def append(self, path: str, start: int, data: bytes) -> int:
        """Add a part that begins at the byte `start` of a log, and return the bytes of the log.

        A part that is there already is not added again, and one that leaves a gap is not added: the answer says where
        the next part has to begin. Raises OSError.
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

    def append(self, path: str, start: int, data: bytes) -> int:
        descriptor = self._open(self._folder / path)
        try:
            size = os.fstat(descriptor).st_size
            if start > size:
                return size
            rest, place = memoryview(data)[size - start :], size
            while rest:
                n_written = os.pwrite(descriptor, rest, place)
                rest, place = rest[n_written:], place + n_written
            return place
        finally:
            os.close(descriptor)

    @staticmethod
    def _open(file: Path) -> int:
        """Open a log, locked against its removal."""
        while True:
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
            except FileNotFoundError:
                continue  # its empty folder was removed meanwhile
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # it was removed before it was locked
