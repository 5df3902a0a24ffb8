"""Where a log is read: in the home, or else in the archive that `log.store` names. Everything here blocks."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from asynsched.executors.log_archive import LogArchive, archive_of
from asynsched.home import LOGS
from asynsched.settings import LogSettings


class LogSource(ABC):
    """A log that exists, read by ranges. `size`: its bytes when it was opened."""

    size: int

    @abstractmethod
    def read(self, start: int, n_bytes: int) -> bytes:
        """Return the bytes from `start` on, fewer at the end. Raises LogStoreUnavailable."""

    def blocks(self, start: int, n_bytes: int) -> Iterator[bytes]:
        """Yield the log from a byte to its end, in blocks of so many bytes."""
        while block := self.read(start, n_bytes):
            start += len(block)
            yield block


class _LocalLog(LogSource):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, start: int, n_bytes: int) -> bytes:
        self._file.seek(start)
        return self._file.read(n_bytes)


class _ArchivedLog(LogSource):
    def __init__(self, archive: LogArchive, path: str, size: int) -> None:
        self._archive, self._path = archive, path
        self.size = size

    def read(self, start: int, n_bytes: int) -> bytes:
        return self._archive.read(self._path, start, min(start + n_bytes, self.size))


@contextmanager
def opened_log(
    home: Path, settings: LogSettings, path: str, *, may_be_archived: bool = True
) -> Iterator[LogSource | None]:
    """Open a log in the block; None: there is none.

    Args:
        path: Below the log folder.
        may_be_archived: False for the log of a try that runs: while it is not here yet, the archive is not asked.

    Raises:
        LogStoreUnavailable: The log is not here, and the archive does not answer.
        SettingsError: The setting `log.store` is wrong.
    """
    try:
        file = (home / LOGS / path).open("rb")
    except FileNotFoundError:
        archive = archive_of(settings) if may_be_archived else None
        size = None if archive is None else archive.size(path)
        yield None if archive is None or size is None else _ArchivedLog(archive, path, size)
        return
    with file:
        yield _LocalLog(file)
