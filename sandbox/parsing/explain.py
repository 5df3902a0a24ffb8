"""Turns what a DAG file raised into one error that names the file, the line, and what to do."""

import errno
import importlib.util
import traceback
from pathlib import Path
from types import TracebackType

from asynsched.errors import DagError, DagImportError, SerializationError
from asynsched.serialization.schema import FileError
from sandbox.sources.archives import ArchiveError

MAX_MESSAGE = 1_000
MAX_TRACEBACK = 32 * 1024

_HINTS = {
    errno.EACCES: "a parse reads only the DAG folder, Python, the system's libraries and `parse.readable`, and writes"
    " only its scratch folder; do this in a task",
    errno.EPERM: "a parse may not do this; do it in a task",
    errno.EAGAIN: "a parse may have only so many processes and threads (parse.max_processes)",
    errno.EMFILE: "a parse may have only so many files open (parse.open_files)",
    errno.EFBIG: "a parse may write only small files (parse.file_bytes)",
}


def explain(exc: BaseException, path: str, dags_folder: str) -> FileError:
    """Return the error of the DAG file at `path`, relative to the DAG folder."""
    frames = _user_frames(exc.__traceback__, dags_folder)
    line = _line_in(f"{dags_folder}/{path}", frames)
    kind = _kind(exc, path, dags_folder, in_user_code=bool(frames))
    if isinstance(exc, SyntaxError):
        where, what = _syntax(exc, path, dags_folder)
        line = exc.lineno if where.startswith(path) else line
    else:
        where = path if line is None else f"{path}:{line}"
        what = _what(exc, kind) + _link_hint(exc, dags_folder)
    return FileError(kind, _one_line(f"{where}: {what}"), _traceback(exc, frames), line)


def _user_frames(tb: TracebackType | None, dags_folder: str) -> list[TracebackType]:
    """Return the frames from the first one of the DAG folder on."""
    frames: list[TracebackType] = []
    while tb is not None:
        if frames or tb.tb_frame.f_code.co_filename.startswith(f"{dags_folder}/"):
            frames.append(tb)
        tb = tb.tb_next
    return frames


def _line_in(filename: str, frames: list[TracebackType]) -> int | None:
    lines = [tb.tb_lineno for tb in frames if tb.tb_frame.f_code.co_filename == filename]
    return lines[-1] if lines else None


def _kind(exc: BaseException, path: str, dags_folder: str, *, in_user_code: bool) -> str:
    match exc:
        case SyntaxError():
            return "syntax"
        case ArchiveError():
            return "archive"
        case ImportError() | DagImportError():
            return "import"
        case MemoryError():
            return "memory"
        case SystemExit():
            return "exit"
        case SerializationError():
            return "serialization"
        case DagError():
            return "dag"
        case OSError() if not in_user_code and _is_the_file(exc, path, dags_folder):
            return "unreadable"
    return "exception"


def _is_the_file(exc: OSError, path: str, dags_folder: str) -> bool:
    filename = f"{dags_folder}/{path}"
    return exc.filename is None or filename.startswith(str(exc.filename))


def _syntax(exc: SyntaxError, path: str, dags_folder: str) -> tuple[str, str]:
    """Return where a syntax error is, as `file:line`, and what it is."""
    filename = (exc.filename or path).removeprefix(f"{dags_folder}/")
    return (filename if exc.lineno is None else f"{filename}:{exc.lineno}"), f"{type(exc).__name__}: {exc.msg}"


def _what(exc: BaseException, kind: str) -> str:
    """Return what happened, and what to do about it."""
    said = _said(exc)
    match exc:
        case SystemExit():
            return f"called sys.exit({said}); a DAG file must only define DAGs"
        case MemoryError():
            return "ran out of the memory that a parse may use (parse.memory_bytes); do heavy work in tasks"
        case DagError():
            return said
        case OSError() if kind == "unreadable":
            return f"cannot be read: {exc.strerror or said}"
        case OSError() if exc.errno in _HINTS:
            return f"{type(exc).__name__}: {said} ({_HINTS[exc.errno]})"
        case ModuleNotFoundError() if (
            exc.name and exc.name.partition(".")[0] == "airflow" and not _is_installed("airflow")
        ):
            return f"{type(exc).__name__}: {said}; import the same names from asynsched"
    return f"{type(exc).__name__}: {said}" if said else type(exc).__name__


def _link_hint(exc: BaseException, dags_folder: str) -> str:
    """Return what to do about a module that is there, but as a link to where a parse may not read."""
    if not isinstance(exc, ModuleNotFoundError) or not exc.name:
        return ""
    place = Path(dags_folder, exc.name.partition(".")[0])
    if not place.is_symlink():
        return ""
    return f"; {place.name} is a link to {place.readlink()}, which a parse may read only if parse.readable has it"


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _said(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - __str__ is user code, and may raise anything
        return "<its text cannot be shown>"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"


def _traceback(exc: BaseException, frames: list[TracebackType]) -> str:
    """Return the traceback from the DAG file on: what is above it is ours, and tells its author nothing."""
    if not frames and isinstance(exc, OSError | DagError):
        return ""
    first = frames[0] if frames else None
    text = "".join(traceback.format_exception(type(exc), exc, first))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"
