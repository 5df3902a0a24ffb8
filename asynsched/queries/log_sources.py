"""Where a log is read: in the home, or else in the archive that `log.store` names. Everything here blocks.

Several homes may have parts of the log of a try that was interrupted, or is deferred. The archive joins them. So once
this home has stored its part, the archive is asked whether it has more, unless this is the only home of the database.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from asynsched.executors.log_archive import LogArchive, archive_of
from asynsched.home import LOGS
from asynsched.housekeeping.home_logs import HomeLogs
from asynsched.settings import Settings
from asynsched.store.engines.urls import is_postgresql


class LogSource(ABC):
    """A log that exists, read by ranges.

    Attributes:
        size: Its bytes when it was opened.
        may_be_part: Whether the archive may have more of it.
    """

    size: int
    may_be_part: bool = False

    @abstractmethod
    def read(self, start: int, n_bytes: int) -> bytes:
        """Return the bytes from `start` on, fewer at the end. Raises LogStoreUnavailable."""

    def blocks(self, start: int, n_bytes: int) -> Iterator[bytes]:
        """Yield the log from a byte to its end, in blocks of this size."""
        while block := self.read(start, n_bytes):
            start += len(block)
            yield block


class _LocalLog(LogSource):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        status = os.fstat(file.fileno())
        self.size, self.written_ns = status.st_size, status.st_mtime_ns

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
    home: Path, settings: Settings, path: str, *, may_be_archived: bool = True, joins_parts: bool = True
) -> Iterator[LogSource | None]:
    """Open a log in the block; None: there is none.

    Args:
        path: Below the log folder.
        may_be_archived: False for the log of a try that runs: while it is not here yet, the archive is not asked.
        joins_parts: Whether parts of other homes are wanted. A reader that goes on at a byte of this home's part wants
            none.

    Raises:
        LogStoreUnavailable: The log is not here, and the archive does not answer.
        SettingsError: The setting `log.store` is wrong.
    """
    try:
        file = (home / LOGS / path).open("rb")
    except FileNotFoundError:
        archive = archive_of(settings.log) if may_be_archived else None
        size = None if archive is None else archive.size(path)
        yield None if archive is None or size is None else _ArchivedLog(archive, path, size)
        return
    with file:
        local = _LocalLog(file)
        local.may_be_part = joins_parts and _may_be_part(home, settings, path, local)
        yield (_with_more(settings, path, local) if may_be_archived and local.may_be_part else None) or local


def _may_be_part(home: Path, settings: Settings, path: str, local: _LocalLog) -> bool:
    if not (settings.log.store and is_postgresql(settings.database_url)):
        return False
    # Until it is stored, only this home has all of its part.
    try:
        stored = HomeLogs(home / LOGS).stored(path)
    except OSError:
        return False
    return stored is not None and (stored.size, stored.written_ns) == (local.size, local.written_ns)


def _with_more(settings: Settings, path: str, local: _LocalLog) -> LogSource | None:
    """Return the log in the archive, if it has more than this home."""
    archive = archive_of(settings.log)
    assert archive is not None
    size = archive.size_unless_away(path)  # a part is better than nothing
    return _ArchivedLog(archive, path, size) if size is not None and size > local.size else None
