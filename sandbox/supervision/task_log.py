"""The log of one try: what its processes write, masked and cut to its limit."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sandbox.supervision.masking import Secrets

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
LONGEST_LINE_HELD = 64 * 1024
CUT = b"\n*** The log has reached its limit (log.task_bytes); the rest is dropped.\n"


class TaskLog:
    """Writes a log file, made at the first byte.

    Args:
        path: The file; its folders are made.
        max_bytes: How much is kept; a line says that the rest is not.
    """

    def __init__(self, path: Path, max_bytes: int, secrets: Secrets) -> None:
        self._path = path
        self._room = max_bytes
        self._secrets = secrets
        self._held = b""
        self._descriptor: int | None = None
        self._is_cut = False

    def write(self, data: bytes) -> None:
        """Add output of the try.

        Once it knows a secret, output is held back until its line is complete, so that a secret that arrives in two
        pieces is masked.
        """
        if not self._secrets:
            self._append(data)
            return
        data = self._held + data
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) > LONGEST_LINE_HELD:
            # What is complete is masked first: the cut must not go through it.
            data = self._secrets.mask(data)
            end = len(data) - self._secrets.longest
        self._held = data[end:]
        self._append(self._secrets.mask(data[:end]))

    def say(self, level: str, text: str) -> None:
        """Add a line of the keeper's own, in the format of the others. It is written even where no room is left."""
        self.flush()
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        self._write(self._secrets.mask(f"[{stamp}Z] {{keeper}} {level} - {text}\n".encode()))

    def flush(self) -> None:
        """Write what was held back."""
        held, self._held = self._held, b""
        self._append(self._secrets.mask(held))

    def close(self) -> None:
        """Write what was held back, and close the file."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        if len(data) > self._room and not self._is_cut:
            self._is_cut = True
            self._write(data[: self._room] + CUT)
        elif data and not self._is_cut:
            self._room -= len(data)
            self._write(data)

    def _write(self, data: bytes) -> None:
        # A full disk must not end the tries: what cannot be written is lost.
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = self._open()
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, PRIVATE_FILE)
        except FileNotFoundError:
            make_private(self._path.parent)
            return os.open(self._path, flags, PRIVATE_FILE)


def make_private(folder: Path) -> None:
    """Make a folder and those above it, for this user only."""
    for missing in reversed([folder, *folder.parents]):
        if not missing.is_dir():
            missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
