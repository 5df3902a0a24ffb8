"""Logs of ended tries in an object store or a shared folder: any file system of fsspec, below the URL `log.store`.

Logs keep the paths that they have below the home's log folder. A log is one object; it is written whole, so a reader
elsewhere sees an earlier log or the new one. Object stores do that by themselves. In other file systems a log is
written beside the earlier one, and then takes its place.

If several homes have parts of one log, their lines are joined in the order of their times: the keeper stamps each line.
A line without a stamp, as of a log at its limit, belongs to the line before it.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, reduce
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, Literal

from asynsched.clock import Clock, new_token
from asynsched.errors import LogStoreUnavailable, SettingsError
from asynsched.executors.log_paths import is_run_folder
from asynsched.executors.log_stores import ELSEWHERE
from asynsched.home import sync_folder
from asynsched.settings import LogSettings

ANSWER_SECONDS = 20.0
"""Longest that a store may take to answer a question, or to send a part of a log."""
TRANSFER_SECONDS = 120.0
"""Longest that it may take to receive a log, or to remove those of a run."""
AWAY_SECONDS = 60.0
SCRATCH_PREFIX = "log-"
LONGEST_REASON = 400
LEAST_SECRET = 4
"""Shorter values of options are not masked: they occur in any text."""
_WITH_FOLDERS = frozenset({"arrow_hdfs", "dbfs", "ftp", "hdfs", "sftp", "smb", "ssh", "webdav", "webhdfs"})
"""File systems whose folders have to be made. In an object store, making one may make a bucket."""
_LOCAL = frozenset({"file", "local"})
_KEEPING = frozenset({"dbfs", "smb", "webdav", "webhdfs"})
"""File systems that move no file to the place of another: it has to be removed first."""
DRAFT_SUFFIX = ".draft"
"""Of a log that is being written. A crash may leave one beside the log, until the logs of the run are removed."""
Relation = Literal["extends", "contained", "differs"]
_COMPARED = 1024**2
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] ")


@lru_cache(maxsize=4)
def archive_of(settings: LogSettings) -> "LogArchive | None":
    """Return the archive that the settings name; None if logs stay in the home. Blocks while packages are imported.

    Raises SettingsError: there is no such file system, its package is missing, or its options are wrong.
    """
    return LogArchive(settings.store, settings.object_of("store_options")) if settings.store else None


class LogArchive:
    """An archive of logs. Every method blocks, for a limited time where the file system is asynchronous itself.

    Methods raise LogStoreUnavailable, with the reason and without secrets.
    """

    def __init__(self, url: str, options: dict[str, Any], clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock or Clock()
        self._away_until = 0.0
        self._secrets = sorted(_texts_of(options), key=len, reverse=True)
        self._fs = self._open(url.partition("://")[0], options)
        self._root = str(self._fs._strip_protocol(url)).rstrip("/")  # noqa: SLF001 - fsspec has no other way
        protocols = _protocols_of(self._fs)
        self._is_local = not _LOCAL.isdisjoint(protocols)
        self._has_folders = not _WITH_FOLDERS.isdisjoint(protocols)
        self._is_keeping = not _KEEPING.isdisjoint(protocols)

    def size(self, path: str) -> int | None:
        """Return the bytes of a log; None if it is not there."""
        with self._reported("find a log"):
            self._fs.invalidate_cache()
            try:
                return int(self._call("info", self._at(path))["size"])
            except FileNotFoundError:
                return None

    def size_unless_away(self, path: str) -> int | None:
        """Return the bytes of a log; None if it is not there, or if the store does not answer.

        Then it is not asked for a minute: a reader who can do without it waits at most once for a store that hangs.
        """
        if self._clock.monotonic() < self._away_until:
            return None
        try:
            return self.size(path)
        except LogStoreUnavailable:
            self._away_until = self._clock.monotonic() + AWAY_SECONDS
            return None

    def read(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a log from `start` to before `end`, which is at most its size."""
        if end <= start:
            return b""
        with self._reported("read a log"):
            return bytes(self._call("cat_file", self._at(path), start=start, end=end))

    def put(self, path: str, file: Path, scratch: Path) -> int | None:
        """Store a log, and return the bytes of the stored one; None if the file has grown meanwhile. May be repeated.

        A log that is there already is kept. Unless the one begins with the other, their lines are joined by their
        times: several homes may have parts of the log of a try that was interrupted, or is deferred.

        Args:
            scratch: A folder for copies of a log that is there already.

        Raises:
            OSError: The file cannot be read.
        """
        n_before = file.stat().st_size
        if self.size(path) is None:
            expected = n_before
            self._put_file(file, path)
        else:
            expected = self._put_joined(path, file, scratch)
        size = self.size(path)
        if file.stat().st_size != n_before:
            return None
        if size != expected:
            raise LogStoreUnavailable(f"{self.url}: {path} has {size} bytes after {expected} were stored")
        return expected

    def run_folders(self, dag_folder: str) -> list[str]:
        """Return the names of the folders in the folder of a DAG."""
        with self._reported("list logs"):
            self._fs.invalidate_cache()
            try:
                found = self._call("ls", self._at(dag_folder), detail=False)
            except FileNotFoundError:
                return []
            return [name.rstrip("/").rpartition("/")[2] for name in found]

    def remove_folder(self, folder: str) -> None:
        """Remove every log in the folder of a run, which need not exist.

        Raises ValueError for any other folder: a wrong path must not remove the logs of others.
        """
        if not is_run_folder(folder):
            raise ValueError(f"not the folder of a run: {folder!r}")
        with self._reported("remove logs"):
            self._fs.invalidate_cache()
            try:
                self._call("rm", self._at(folder), recursive=True, seconds=TRANSFER_SECONDS)
            except FileNotFoundError:
                return

    def check(self) -> None:
        """Write, read and remove a small object."""
        name = f".asynsched-check-{new_token()}"
        with self._reported("write, read and remove an object"):
            self._make_folder(name)
            self._call("pipe_file", self._at(name), b"asynsched")
            self._call("cat_file", self._at(name))
            self._call("rm_file", self._at(name))

    def _put_joined(self, path: str, file: Path, scratch: Path) -> int:
        """Store a log with the lines of the stored one, and return the bytes that are expected then."""
        with _scratch_file(scratch) as copy, _scratch_file(scratch) as whole:
            with self._reported("read a log"):
                self._call("get_file", self._at(path), copy.name, seconds=TRANSFER_SECONDS)
            with file.open("rb") as local, Path(copy.name).open("rb") as stored:
                relation, n_stored = relation_of(local, stored), stored.seek(0, 2)
                if relation == "differs":
                    write_joined(whole, stored, local)
                    relation, file = relation_of(whole, stored), Path(whole.name)
            if relation == "contained":
                return n_stored
            self._put_file(file, path)
            return file.stat().st_size

    def _put_file(self, file: Path, path: str) -> None:
        with self._reported("write a log"):
            self._make_folder(path)
            if self._is_local or self._has_folders:
                self._replace(file, path)
            else:
                self._call("put_file", str(file), self._at(path), seconds=TRANSFER_SECONDS)

    def _replace(self, file: Path, path: str) -> None:
        """Write a log beside the stored one, and move it to its place: a crash must not cut off the stored one."""
        draft = f"{path}.{new_token()}{DRAFT_SUFFIX}"
        try:
            self._call("put_file", str(file), self._at(draft))
            if self._is_local:
                _sync(self._at(draft))
            if self._is_keeping and self.size(path) is not None:
                self._call("rm_file", self._at(path))
            self._call("mv", self._at(draft), self._at(path))
            if self._is_local:
                self._sync_folders(path)
        except Exception:
            with suppress(Exception):
                self._call("rm_file", self._at(draft))
            raise

    def _sync_folders(self, path: str) -> None:
        for folder in PurePosixPath(path).parents:
            with suppress(OSError):  # not every network file system can
                sync_folder(Path(self._root, folder))

    def _make_folder(self, path: str) -> None:
        if self._has_folders:
            self._call("makedirs", self._at(path).rpartition("/")[0], exist_ok=True)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _call(self, method: str, *args: Any, seconds: float = ANSWER_SECONDS, **kwargs: Any) -> Any:
        if not self._fs.async_impl:
            return getattr(self._fs, method)(*args, **kwargs)
        # In fsspec's own event loop, where a call can be given up.
        called = getattr(self._fs, f"_{method}")(*args, **kwargs)
        future = asyncio.run_coroutine_threadsafe(called, self._fs.loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {seconds:g} s") from None

    def _open(self, protocol: str, options: dict[str, Any]) -> Any:
        try:
            import fsspec  # a scheduler without a store of logs does without it
        except ImportError as exc:
            raise SettingsError(f"log.store: it needs fsspec ({exc}): pip install 'asynsched[storage]'") from None
        try:
            more = {"auto_mkdir": True} if protocol in ("file", "local") else {}
            return fsspec.filesystem(protocol, skip_instance_cache=True, **(more | options))
        except ImportError as exc:
            from fsspec.registry import known_implementations

            package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
            advice = f": pip install {package}" if package not in ("", "fsspec") else ""
            raise SettingsError(f"log.store: {protocol}:// needs a package that is missing ({exc}){advice}") from None
        except Exception as exc:  # noqa: BLE001 - file systems raise what they like
            raise SettingsError(f"log.store, log.store_options: {protocol}://: {self._masked(exc)}") from None

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn every error of a file system into one that says what could not be done."""
        try:
            self._require_root()
            yield
        except Exception as exc:  # noqa: BLE001 - file systems raise what they like
            # Not chained: the error may show the options.
            raise LogStoreUnavailable(f"log.store: {self.url}: cannot {what}: {self._masked(exc)}") from None

    def _require_root(self) -> None:
        # A mount that is missing must not become a folder of this machine.
        if self._is_local and not Path(self._root).is_dir():
            raise NotADirectoryError(f"there is no folder {self._root}; make it, or mount what it is in")

    def _masked(self, exc: Exception) -> str:
        text = str(exc) or type(exc).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return re.sub(r"\s+", " ", text)[:LONGEST_REASON]


def _scratch_file(folder: Path) -> AbstractContextManager[Any]:
    return NamedTemporaryFile(dir=folder, prefix=SCRATCH_PREFIX)


def _sync(file: str) -> None:
    """Write a file to the disk: it may be the only copy soon."""
    with Path(file).open("rb") as opened:
        os.fsync(opened.fileno())


def _protocols_of(file_system: Any) -> tuple[str, ...]:
    named = file_system.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _texts_of(value: Any) -> Iterator[str]:
    """Yield every text in the options of a file system that is long enough to be a secret."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _texts_of(one)
    elif isinstance(value, str) and len(value) >= LEAST_SECRET:
        yield value


def relation_of(local: BinaryIO, stored: BinaryIO) -> Relation:
    """Return how a log relates to the stored one.

    Returns:
        `extends`: it begins with the stored one. `contained`: the stored one begins or ends with it, so it was stored
        before. `differs`: it may have lines that the stored one lacks.
    """
    n_local, n_stored = local.seek(0, 2), stored.seek(0, 2)
    if _are_equal(local, stored, min(n_local, n_stored)):
        return "extends" if n_local > n_stored else "contained"
    if n_local < n_stored and _are_equal(local, stored, n_local, n_stored - n_local):
        return "contained"
    return "differs"


def write_joined(whole: BinaryIO, first: BinaryIO, second: BinaryIO) -> None:
    """Write the lines of two parts of a log to a file; see `joined`."""
    for part in (first, second):
        part.seek(0)
    whole.writelines(joined(first, second))
    whole.flush()


def joined(first: Iterable[bytes], second: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of two parts of a log in the order of their times, and once those that both have.

    Each part is in the order of its times; where its clock was set back, lines keep the time of the line before. The
    line that stands for other parts is left out. Every line ends with a line end.
    """
    by_time = merge(_by_time(first), _by_time(second), key=itemgetter(0))
    for _, found in groupby(by_time, key=itemgetter(0)):
        yield from reduce(_united, (lines for _, lines in found))


def _by_time(part: Iterable[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    for time, lines in groupby(_timed(part), key=itemgetter(0)):
        yield time, [line for _, line in lines]


def _timed(part: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    time = b""
    for line in part:
        if found := _STAMP.match(line):
            time = max(time, found[0])
        elif ELSEWHERE.startswith(line.strip()):
            continue
        yield time, line.removesuffix(b"\n") + b"\n"


def _united(some: list[bytes], others: list[bytes]) -> list[bytes]:
    """Return the lines of one part at a time, then those of the other that it lacks."""
    n_left = Counter(some)
    more = []
    for line in others:
        if n_left[line]:
            n_left[line] -= 1
        else:
            more.append(line)
    return some + more


def _are_equal(local: BinaryIO, stored: BinaryIO, n_bytes: int, start_stored: int = 0) -> bool:
    local.seek(0)
    stored.seek(start_stored)
    while n_bytes > 0:
        block = local.read(min(n_bytes, _COMPARED))
        if not block or block != stored.read(len(block)):
            return False
        n_bytes -= len(block)
    return True
