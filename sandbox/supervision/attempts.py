"""What the keeper writes down of each try, in the `attempts` folder of the home, one file a token.

The file is made exclusively before user code can start, and gets a second line when the try has ended, before anybody
is told. It goes when the scheduler has stored the end. So a token starts once, whoever dies in between; and a file
without a second line, found by the next keeper, is a try that was lost with its keeper.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from sandbox.frames import UNDECODABLE
from sandbox.protocol import Ended, Launch

T = TypeVar("T")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Attempt(Struct, frozen=True):
    """The first line: what a later keeper needs to know of a try that it did not start."""

    token: str
    log_path: str


class AttemptRecords:
    """The records of one home. Raises OSError when the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, launch: Launch) -> bool:
        """Write down that a try is to start. Returns False when its token has been here before."""
        if _TOKEN.fullmatch(launch.token) is None:
            raise ValueError(f"not a token: {launch.token!r}")
        try:
            self._append(launch.token, Attempt(launch.token, launch.log_path), os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        return True

    def end(self, ended: Ended) -> None:
        """Write down how a try ended."""
        self._append(ended.token, ended, os.O_CREAT)

    def forget(self, tokens: Iterable[str]) -> None:
        """Remove the records of these tries."""
        for token in tokens:
            try:
                os.unlink(token, dir_fd=self._folder)
            except FileNotFoundError:
                continue

    def load(self) -> Iterator[tuple[Attempt, Ended | None]]:
        """Yield each record, and how its try ended if that was written."""
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - the folder is a descriptor
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder), "rb") as file:
                lines = file.read().split(b"\n")
            # Text after the last newline was cut off while it was written.
            yield _decoded(name, lines[0], Attempt) or Attempt(name, ""), _decoded(name, b"".join(lines[1:-1]), Ended)

    def _append(self, token: str, line: Struct, flags: int) -> None:
        descriptor = os.open(token, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600, dir_fd=self._folder)
        try:
            data = memoryview(msgspec.json.encode(line) + b"\n")
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)


def _decoded(name: str, line: bytes, kind: type[T]) -> T | None:
    try:
        record = msgspec.json.decode(line, type=kind)
    except UNDECODABLE:
        return None
    return record if getattr(record, "token", None) == name else None
