"""Turns what a DAG file raised into one error that names the file, the line, and what to do."""

import importlib.util
import os
import traceback
from pathlib import Path
from types import TracebackType

from asynsched.errors import DagError, DagImportError, SerializationError
from asynsched.protocol.parse_messages import encodable
from asynsched.serialization.schema import FileError
from sandbox.confine import available
from sandbox.confinement.limits import ParseLimits
from sandbox.confinement.readable import is_within, link_outside, of_the_machine
from sandbox.parsing.airflow_names import missing_name, no_airflow
from sandbox.parsing.hints import hint_for, said
from sandbox.sources.archives import ArchiveError

_NOT_IN_THE_FILE = "this came up in asynsched's own code: the file has changed how that works, or it is a bug there"
MAX_MESSAGE = 1_000
MAX_TRACEBACK = 32 * 1024


def explain(exc: BaseException, path: str, dags_folder: str, limits: ParseLimits | None) -> FileError:
    """Return the error of the DAG file at `path`, relative to the DAG folder.

    `limits` are those of the parse, None if the file ran without its rules: they may be what it has met.
    """
    frames = _user_frames(exc.__traceback__, dags_folder)
    line = _line_in(f"{dags_folder}/{path}", frames)
    kind = _kind(exc, path, dags_folder, in_user_code=bool(frames))
    if isinstance(exc, SyntaxError):
        where, what = _syntax(exc, path, dags_folder)
        line = exc.lineno if where.startswith(path) else line
    elif kind == "unreadable":
        where, what = path, f"cannot be read: {_why_unreadable(exc, path, dags_folder, limits)}"
    else:
        where = path if line is None else f"{path}:{line}"
        what = _what(exc, frames) + _link_hint(exc, dags_folder)
        if isinstance(exc, DagError):
            what = what.replace(f"{dags_folder}/", "")
    hint = hint_for(exc) if limits is not None and kind == "exception" else ""
    if kind == "exception" and not frames and not isinstance(exc, OSError):
        hint = hint or _NOT_IN_THE_FILE
    return FileError(kind, _one_line(f"{where}: {what}", hint), _traceback(exc, frames), line)


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


def _what(exc: BaseException, frames: list[TracebackType]) -> str:
    """Return what happened, and what to do about it."""
    text = said(exc)
    match exc:
        case SystemExit():
            return f"called sys.exit({text}); a DAG file must only define DAGs"
        case MemoryError():
            return "ran out of the memory that a parse may use (parse.memory_bytes); do heavy work in tasks"
        case DagError():
            return text
        case ModuleNotFoundError() if (
            exc.name and exc.name.partition(".")[0] == "airflow" and not _is_installed("airflow")
        ):
            return f"{type(exc).__name__}: {text}; {no_airflow(frames)}"
        case ImportError() if exc.name == "asynsched" and "cannot import name" in text:
            return _missing_name(text)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _why_unreadable(exc: BaseException, path: str, dags_folder: str, limits: ParseLimits | None) -> str:
    """Return why the file itself cannot be read; of a link that leads to where a parse may not read, what to do."""
    refused = refused_link(path, dags_folder, limits) if isinstance(exc, PermissionError) and limits is not None else ""
    return refused or getattr(exc, "strerror", None) or said(exc)


def refused_link(path: str, dags_folder: str, limits: ParseLimits) -> str:
    """Return why no parse may read the DAG file at `path`, and what to do; empty unless a link leads out of the folder.

    Empty as well where nothing is kept from reading it: by the setting parse.confinement, or for want of Landlock.
    """
    link = link_outside(dags_folder, path)
    if link is None or limits.confinement == "off" or not available().landlock_abi:
        return ""
    name, target = link
    if any(is_within(target, os.path.realpath(home)) for home in limits.hidden):
        return f"{name} is a link to {target}, in the scheduler's home, which no parse may read"
    granted = (*of_the_machine(), *map(os.path.realpath, limits.readable))
    if any(is_within(target, place) for place in granted):
        return ""
    return (
        f"{name} is a link to {target}, out of the DAG folder, which a parse may read only if parse.readable"
        f" has it; add {target}, or a folder that it is in, to parse.readable"
    )


def _missing_name(text: str) -> str:
    """Return what to say of a name that asynsched does not have, in place of where it is installed."""
    name = text.partition("'")[2].partition("'")[0]
    return f"ImportError: {missing_name(name)}"


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


def _one_line(text: str, hint: str) -> str:
    """Return a text and what to do about it, which is never cut."""
    line = " ".join(encodable(text).split())
    room = MAX_MESSAGE - len(hint)
    return (line if len(line) <= room else f"{line[:room]}…") + (f"; {hint}" if hint else "")


def _traceback(exc: BaseException, frames: list[TracebackType]) -> str:
    """Return the traceback from the DAG file on: what is above it is ours, and tells its author nothing."""
    if not frames and isinstance(exc, OSError | DagError):
        return ""
    first = frames[0] if frames else None
    text = encodable("".join(traceback.format_exception(type(exc), exc, first)))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"
