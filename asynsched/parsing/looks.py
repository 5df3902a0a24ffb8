"""Looks at files of the DAG folder: the present state of a file, and the dispatcher's next step.

A look blocks, so a thread makes it. It reads a bounded number of bytes, never waits for a pipe or a device, and runs no
code of the file.
"""

import enum
import hashlib
import importlib.util
import io
import os
import platform
import stat
import zipfile
import zlib
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from asynsched._version import __version__
from asynsched.serialization.schema import SCHEMA_VERSION, FileError
from asynsched.settings import RUN_HERE, Settings
from asynsched.store.schema import DagFileRow

MAX_SOURCE_BYTES = 16 * 1024**2
"""Size of the largest Python file that is read."""
MAX_ARCHIVE_LOOK_BYTES = 64 * 1024**2
"""How much of an archive is unpacked in search of a DAG; a larger archive is assumed to have one."""
SETTLED_SECONDS = 1.0
"""A file that has just lost its DAGs' text may still be being written: the next look comes after this time."""
TRANSIENT_KINDS = frozenset({"import", "exception", "exit", "crash", "timeout", "memory", "unreadable"})
"""Errors that may disappear although the file stays the same, so that a start parses the file again."""
_CHUNK_BYTES = 1024**2


class LookRequest(Struct, frozen=True):
    """Why a file is looked at.

    `is_urgent`: the file changed, or a user asks for it. `is_forced`: parse it even if nothing about it is new.
    `asked_at`: when a user asked for the parse. `waited_from`: when the file had last been parsed before another
    scheduler began the parse that this one waits for. `is_for_module`: a module that the file has imported has another
    text, or had when this request was made.
    """

    path: str
    is_urgent: bool = False
    is_forced: bool = False
    asked_at: datetime | None = None
    waited_from: datetime | None = None
    is_for_module: bool = False

    def merged_with(self, later: "LookRequest") -> "LookRequest":
        return LookRequest(
            later.path,
            self.is_urgent or later.is_urgent,
            self.is_forced or later.is_forced,
            later.asked_at or self.asked_at,
            later.waited_from or self.waited_from,
            self.is_for_module or later.is_for_module,
        )


class Look(Struct, frozen=True):
    """The present state of a file. A file that is not gone and has no error can be parsed.

    `content_hash` is the hash of the bytes, `text_hash` that of a Python file's text, like `SourceFile.content_hash`.
    """

    is_gone: bool = False
    error: FileError | None = None
    content_hash: str = ""
    text_hash: str = ""
    modified_ns: int = 0
    size: int = 0
    mentions_dag: bool = False


class Step(enum.Enum):
    """The next step with a file."""

    NOTHING = enum.auto()
    PARSE = enum.auto()
    REMOVE = enum.auto()
    REPORT = enum.auto()
    LOOK_LATER = enum.auto()


def next_step(
    request: LookRequest,
    look: Look,
    known: DagFileRow | None,
    *,
    is_ignored: bool,
    runtime: str,
    safe_mode: bool,
    now_seconds: float,
    may_have_healed: bool = False,
) -> Step:
    """Return the step that follows a look at a file.

    Args:
        request: Why the file was looked at.
        look: The file's present state.
        known: The file's last parse; None if it was never parsed.
        is_ignored: Whether an ignore file names the file.
        runtime: The runtime of a parse now.
        safe_mode: Whether a file that was never parsed has to mention a DAG.
        now_seconds: The time, in seconds since 1970.
        may_have_healed: Whether the file has an error of `TRANSIENT_KINDS`.
    """
    if look.error is not None:
        return Step.NOTHING if is_ignored else Step.REPORT
    if look.is_gone or is_ignored:
        return Step.NOTHING if known is None else Step.REMOVE
    if safe_mode and not look.mentions_dag:
        if known is None:
            return Step.NOTHING
        # A file that had DAGs is parsed once more: only a parse can tell missing DAGs from a broken file.
        if abs(now_seconds - look.modified_ns / 1e9) < SETTLED_SECONDS:
            return Step.LOOK_LATER
    is_new = known is None or (known.content_hash, known.runtime) != (look.content_hash, runtime)
    if known is not None and may_have_healed:
        # The file was saved again or touched: something that it lacked, such as a package, may be there now.
        is_new = is_new or known.modified_ns != look.modified_ns
    return Step.PARSE if is_new or request.is_forced else Step.NOTHING


def runtime_of(settings: Settings, digest: str = "") -> str:
    """Return a name for everything outside of the DAG folder that parses depend on.

    It is the parsing software, its reading of naive dates, its defaults, whether an executor reads the tasks'
    `executor_config`, and the digest of the installation's own code.
    """
    defaults = (f"{name} {value}" for name, value in settings.authors_defaults.items())
    return ", ".join((
        f"asynsched {__version__}", f"schema {SCHEMA_VERSION}", f"Python {platform.python_version()}",
        settings.default_timezone, f"airflow {settings.airflow}", *defaults,
        *(() if settings.executor in RUN_HERE else ("executor_config",)),
        *([f"installation {digest[:16]}"] if digest else ()),
    ))  # fmt: skip


class _UnusableError(Exception):
    """The file cannot be used; the message says why."""


def look_at(root: Path, path: str) -> Look | None:
    """Return a file's present state; None while the DAG folder itself, `root`, is missing."""
    try:
        return _look_at(f"{root}/{path}", path)
    except _UnusableError as exc:
        return Look(error=FileError("unreadable", str(exc)))
    except (FileNotFoundError, NotADirectoryError):
        return Look(is_gone=True) if root.is_dir() else None
    except OSError as exc:
        return Look(error=FileError("unreadable", f"{shown(path)} cannot be read: {exc.strerror}"))
    except Exception as exc:  # noqa: BLE001 - of a decoder: no content of a file may end the scheduler
        return Look(error=FileError("unreadable", f"{shown(path)} cannot be read: {type(exc).__name__}: {exc}"))


def shown(path: str) -> str:
    """Return a path as text: bytes of its name that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def text_hash(data: bytes) -> str:
    """Return the SHA-256 of a Python file's text, decoded as its parse does."""
    try:
        text = importlib.util.decode_source(data)
    except (SyntaxError, LookupError, ValueError):  # also of a codec that decodes no text, such as rot13
        text = None
    if text is None or "\0" in text:  # a parse does not decode it either
        text = data.decode("utf-8", "replace")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _look_at(file: str, path: str) -> Look:
    if shown(path) != path:
        os.lstat(file)
        raise _UnusableError(f"the name of {shown(path)} is not UTF-8; rename the file")
    status = _status(file, path)
    if stat.S_ISDIR(status.st_mode):
        return Look(is_gone=True)
    if not stat.S_ISREG(status.st_mode):
        raise _UnusableError(f"{path} is not a regular file")
    data = b""
    if path.endswith(".zip"):
        with os.fdopen(_opened_without_waiting(file), "rb") as content:
            digest, mentions = hashlib.file_digest(content, "sha256").hexdigest(), _archive_may_hold_dag(content)
    else:
        data = _source(file, path)
        digest, mentions = hashlib.sha256(data).hexdigest(), _may_hold_dag(data)
    return Look(
        content_hash=digest,
        text_hash=text_hash(data) if path.endswith(".py") else "",
        modified_ns=status.st_mtime_ns,
        size=status.st_size,
        mentions_dag=mentions,
    )


def _status(file: str, path: str) -> os.stat_result:
    try:
        return os.stat(file)  # noqa: PTH116 - for each file of a start: text is enough
    except (FileNotFoundError, NotADirectoryError) as exc:
        if (link := Path(file)).is_symlink():
            raise _UnusableError(
                f"{path} is a symbolic link to {shown(str(link.readlink()))}, which does not exist"
            ) from exc
        raise


def _opened_without_waiting(file: str) -> int:
    """Open a file for reading. A pipe that has replaced it meanwhile opens too, and reads as empty."""
    return os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _source(file: str, path: str) -> bytes:
    """Return the bytes of a file. Uses bare system calls: the cost of buffers and objects adds up over a folder."""
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


def _may_hold_dag(text: bytes) -> bool:
    """Whether a Python file mentions "dag" or "asset", and "asynsched" or "airflow", in upper or lower case.

    Source:
        Airflow "might_contain_dag", the default heuristic of its safe mode.
    """
    text = text.lower()
    return (b"dag" in text or b"asset" in text) and (b"asynsched" in text or b"airflow" in text)


BOUNDED_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Those that `zipfile` reads in parts of a bounded size. Of another one, 4 KiB may become gigabytes at once."""


def _archive_may_hold_dag(content: io.BufferedReader) -> bool:
    """Whether a Python file in an archive may hold a DAG; true if only a parse can find out."""
    left = MAX_ARCHIVE_LOOK_BYTES
    try:
        with zipfile.ZipFile(content) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".py"):
                    continue
                if info.compress_type not in BOUNDED_METHODS:
                    return True
                with archive.open(info) as member:
                    text = member.read(left)
                left -= len(text)
                if left <= 0 or _may_hold_dag(text):
                    return True
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError):
        return True
    return False
