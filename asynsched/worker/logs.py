"""Sends the logs of a worker's tries, in parts. Each answer says where the next part begins, so none is lost."""

import os
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from asynsched.protocol.worker_messages import MOST_LOG_BYTES, Ticket
from asynsched.worker.schedulers import Schedulers


class LogSender:
    """Sends the log of one try, a file below `folder` that the keeper appends to.

    Args:
        path: Its path there.
        start: The byte of the file at which the try's own log begins.
    """

    def __init__(self, schedulers: Schedulers, ticket: Ticket, folder: Path, path: str, start: int) -> None:
        self._schedulers = schedulers
        self._ticket = ticket
        self.path = path
        self.start = start
        self._file = folder / path
        self._n_stored = 0
        self._lock = anyio.Lock()

    async def send(self) -> None:
        """Send all that is not stored yet, as far as a scheduler takes it. Raises Refused, and Unreachable."""
        while await self.send_part():
            pass

    async def send_part(self) -> bool:
        """Send the next part that is not stored yet. Returns whether there may be more that a scheduler takes.

        Raises Refused, and Unreachable.
        """
        async with self._lock:
            n_before = self._n_stored
            data = await run_sync(_read, self._file, self.start + n_before)
            if not data:
                return False
            self._n_stored = await self._schedulers.send_log(self._ticket, n_before, data)
            return self._n_stored != n_before

    def remove(self, *, is_wanted: bool) -> Path | None:
        """Remove the file, but return it if schedulers want it and have not taken all of it. Blocks.

        Its folder stays: the keeper may be about to write another log there.
        """
        with suppress(OSError):
            if is_wanted and size_of(self._file) > self.start + self._n_stored:
                return self._file
            self._file.unlink()
        return None


def remove_empty_folders(folder: Path) -> None:
    """Remove the folders below a folder that hold no log. No try may run meanwhile. Blocks."""
    for inner, _, _ in os.walk(folder, topdown=False):
        if inner != str(folder):
            with suppress(OSError):
                Path(inner).rmdir()


def size_of(file: Path) -> int:
    """Return the bytes of a log; 0 if there is none. Blocks."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _read(file: Path, start: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read(MOST_LOG_BYTES)
    except FileNotFoundError:
        return b""
