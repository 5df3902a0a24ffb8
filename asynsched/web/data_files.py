"""The data files of the DAG folder that tries on other machines get: those that `workers.files` names."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from pathspec import GitIgnoreSpec

from asynsched.errors import DataFilesUnavailable
from asynsched.protocol.worker_messages import MOST_FILE_BYTES, DataFile
from asynsched.settings import Settings

MOST_FILES = 10_000
NEVER = frozenset({".git", "__pycache__"})
"""Folders whose files no task needs."""


class DataFiles:
    """Lists and reads the data files of a DAG folder, as they are at that moment."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.dags_path
        self._home = settings.home_path
        self._most_bytes = settings.workers.files_bytes
        self._spec = GitIgnoreSpec.from_lines(settings.workers.files)
        self._found: dict[str, tuple[os.stat_result, DataFile]] = {}
        self._walking = anyio.Lock()
        self._n_begun = 0
        self._newest = 0
        """The number of the walk that has found the files, counted as walks begin."""

    async def list(self) -> tuple[DataFile, ...]:
        """Return the files, by their paths. Raises DataFilesUnavailable."""
        n_begun = self._n_begun
        async with self._walking:
            # A walk that has begun after this call serves it, too.
            if self._newest <= n_begun:
                self._n_begun = number = self._n_begun + 1
                self._found = await run_sync(self._walk)
                self._newest = number
        return tuple(file for _, file in self._found.values())

    async def read(self, path: str, start: int) -> bytes:
        """Return a part of a file from a byte on; empty at its end. Raises DataFilesUnavailable."""
        if path not in self._found:
            await self.list()
        if path not in self._found:
            raise DataFilesUnavailable(f"workers.files: the DAG folder has no data file {path!r}")
        return await run_sync(self._read, path, start)

    def _read(self, path: str, start: int) -> bytes:
        try:
            with (self._folder / path).open("rb") as file:
                file.seek(start)
                return file.read(MOST_FILE_BYTES)
        except OSError as exc:
            raise DataFilesUnavailable(f"workers.files: {path} cannot be read: {exc.strerror}") from exc

    def _walk(self) -> dict[str, tuple[os.stat_result, DataFile]]:
        found = {}
        n_bytes = 0
        for path in sorted(self._paths()):
            try:
                status = (self._folder / path).stat()
                found[path] = (status, self._file(path, status))
            except FileNotFoundError:
                continue  # it was removed meanwhile
            except OSError as exc:
                raise DataFilesUnavailable(f"workers.files: {path} cannot be read: {exc.strerror}") from exc
            n_bytes += status.st_size
            if len(found) > MOST_FILES:
                raise DataFilesUnavailable(f"workers.files names more than {MOST_FILES:,} files: name fewer")
            if n_bytes > self._most_bytes:
                most = f"{self._most_bytes:,} bytes"
                raise DataFilesUnavailable(
                    f"workers.files names more than {most}: name fewer, or raise workers.files_bytes"
                )
        return found

    def _paths(self) -> Iterator[str]:
        """Yield the relative paths of the files that the patterns name. A link may not lead out of the folder."""
        root, home = self._folder.resolve(), self._home.resolve()

        def may_be_sent(file: Path) -> bool:
            target = file.resolve()
            is_inside = target.is_relative_to(root) and not target.is_relative_to(home)
            return is_inside and NEVER.isdisjoint(target.relative_to(root).parts) and target.is_file()

        for folder, names, files in os.walk(root):
            names[:] = [name for name in names if name not in NEVER and Path(folder, name) != home]
            for file in (Path(folder, name) for name in files):
                path = file.relative_to(root).as_posix()
                if self._spec.match_file(path) and may_be_sent(file):
                    yield path

    def _file(self, path: str, status: os.stat_result) -> DataFile:
        known = self._found.get(path)
        if known is not None and _identity(known[0]) == _identity(status):
            return known[1]
        try:
            path.encode()
        except UnicodeEncodeError:
            raise DataFilesUnavailable(f"workers.files: the name {path!r} is not UTF-8") from None
        with (self._folder / path).open("rb") as file:
            content_hash = hashlib.file_digest(file, "sha256").hexdigest()
        return DataFile(path, content_hash, is_executable=bool(status.st_mode & 0o100))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
