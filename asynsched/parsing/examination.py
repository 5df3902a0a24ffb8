"""What a file of the DAG folder is now: its content's hash, whether it may hold a DAG, why it cannot be read.

Blocking; done by threads. Reading is bounded, and never waits for a pipe or a device. No code of the file runs.
"""

import errno
import hashlib
import importlib.util
import io
import os
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from asynsched.serialization.schema import FileError

MAX_SOURCE_BYTES = 16 * 1024**2
"""Largest Python file that is read."""
_CHUNK_BYTES = 1024**2
MAX_ARCHIVE_LOOK_BYTES = 64 * 1024**2
"""How much of an archive is unpacked in search of a DAG; of a larger one it is assumed."""
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found. Neither gone nor with an error: it can be parsed.

    `content_hash` is of the bytes, `text_hash` of a Python file's text, as `SourceFile.content_hash` is.
    """

    is_gone: bool = False
    error: FileError | None = None
    content_hash: str = ""
    text_hash: str = ""
    modified_ns: int = 0
    size: int = 0
    mentions_dag: bool = False


class _UnusableError(Exception):
    """The file cannot be used; the message says why."""


def examine(root: Path, path: str) -> Examined | None:
    """Return what the file is now; None when that cannot be told, because the DAG folder itself is away.

    Args:
        root: The DAG folder, absolute.
        path: The file, relative to it.
    """
    try:
        return _examine(f"{root}/{path}", path)
    except _UnusableError as exc:
        return Examined(error=FileError("unreadable", str(exc)))
    except OSError as exc:
        if exc.errno in ABSENT:
            return Examined(is_gone=True) if root.is_dir() else None
        return Examined(error=FileError("unreadable", f"{shown(path)} cannot be read: {exc.strerror}"))


def shown(path: str) -> str:
    """Return a path as text: bytes of its name that are none are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def may_hold_dag(text: bytes) -> bool:
    """Whether a Python file mentions a DAG and what defines one, in any case.

    Source:
        Airflow "might_contain_dag", the default heuristic of its safe mode.
    """
    text = text.lower()
    return b"dag" in text and (b"asynsched" in text or b"airflow" in text)


def text_hash(data: bytes) -> str:
    """Return the SHA-256 of a Python file's text, decoded as its parse does."""
    try:
        text = importlib.util.decode_source(data)
    except (SyntaxError, UnicodeDecodeError):
        text = data.decode("utf-8", "replace")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _examine(file: str, path: str) -> Examined:
    if shown(path) != path:
        os.lstat(file)
        raise _UnusableError(f"the name of {shown(path)} is no UTF-8 text; rename the file")
    status = _status(file, path)
    if stat.S_ISDIR(status.st_mode):
        return Examined(is_gone=True)
    if not stat.S_ISREG(status.st_mode):
        raise _UnusableError(f"{path} is no regular file")
    data = b""
    if path.endswith(".zip"):
        with os.fdopen(_opened_without_waiting(file), "rb") as content:
            digest, mentions = hashlib.file_digest(content, "sha256").hexdigest(), _archive_may_hold_dag(content)
    else:
        data = _source(file, path)
        digest, mentions = hashlib.sha256(data).hexdigest(), may_hold_dag(data)
    return Examined(
        content_hash=digest,
        text_hash=text_hash(data) if path.endswith(".py") else "",
        modified_ns=status.st_mtime_ns,
        size=status.st_size,
        mentions_dag=mentions,
    )


def _source(file: str, path: str) -> bytes:
    """Return the bytes of a file. The system's own calls: what buffers and objects cost adds up over a folder."""
    descriptor = _opened_without_waiting(file)
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
        while part := os.read(descriptor, _CHUNK_BYTES):
            data += part
            if len(data) > MAX_SOURCE_BYTES:
                size = MAX_SOURCE_BYTES // 1024**2
                raise _UnusableError(f"{path} is larger than {size} MiB, too large for a DAG file")
        return data
    finally:
        os.close(descriptor)


def _status(file: str, path: str) -> os.stat_result:
    try:
        return os.stat(file)  # noqa: PTH116 - for each file of a start: text is enough
    except OSError as exc:
        if exc.errno in ABSENT and (link := Path(file)).is_symlink():
            raise _UnusableError(
                f"{path} is a symbolic link to {shown(str(link.readlink()))}, which does not exist"
            ) from exc
        raise


def _opened_without_waiting(file: str) -> int:
    """Open a file for reading; a pipe that has taken its place since is opened too, and found empty."""
    return os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _archive_may_hold_dag(content: io.BufferedReader) -> bool:
    """Whether some Python file in an archive may hold a DAG; also of an archive that only its parse can judge."""
    left = MAX_ARCHIVE_LOOK_BYTES
    try:
        with zipfile.ZipFile(content) as archive:
            for name in archive.namelist():
                if not name.endswith(".py"):
                    continue
                with archive.open(name) as member:
                    text = member.read(left)
                left -= len(text)
                if left <= 0 or may_hold_dag(text):
                    return True
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError):
        return True
    return False
