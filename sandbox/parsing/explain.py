"""Turns a DAG file's exception into one error that names the file, the line, and the remedy.

Two kinds of errors have advice of their own: those that come from the confinement of parses, and imports of Airflow's
names that are not here.
"""

import difflib
import errno
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from asynsched.airflow import names
from asynsched.airflow.finder import AirflowFinder, is_installed, is_provider, provider_of
from asynsched.errors import DagError, DagImportError, SerializationError
from asynsched.protocol.parse_messages import ParseLimits, encodable
from asynsched.serialization.schema import ON_PATH, FileError
from sandbox.confine import refused_link
from sandbox.sources.archives import ArchiveError

_NOT_IN_THE_FILE = "this came up in asynsched's own code: the file has changed how that works, or it is a bug there"
_READS = "they read the DAG folder, Python, system libraries and the paths of parse.readable"
_WRITES = "they write to their temporary folder and the paths of parse.writable only"
_OF_NETWORK_LIBRARIES = ("name resolution", "could not translate host name", "could not create socket")
"""Messages of libraries that are written in C, such as database drivers."""
_LIMITS = {
    errno.EAGAIN: "the number of their processes and threads is limited (parse.max_processes)",
    errno.EMFILE: "the number of their open files is limited (parse.open_files)",
    errno.EFBIG: "they write only small files (parse.file_bytes)",
    errno.EPERM: "they may not do this; do it in a task",
}
_ADVICE = {"days_ago": "give start_date a date, such as datetime(2026, 1, 1)"}
_KINDS = {
    SyntaxError: "syntax", ArchiveError: "archive", ImportError: "import", DagImportError: "import",
    MemoryError: "memory", SystemExit: "exit", SerializationError: "serialization", DagError: "dag",
}  # fmt: skip
"""The kinds of errors. The first class that fits counts."""
MAX_MESSAGE = 1_000
MAX_TRACEBACK = 32 * 1024


def explain(exc: BaseException, path: str, dags_folder: str, limits: ParseLimits | None) -> FileError:
    """Return the error of the DAG file at `path`, relative to the DAG folder.

    The limits may have caused it; they are None if the file ran without confinement.
    """
    frames = _user_frames(exc.__traceback__, dags_folder)
    lines = [tb.tb_lineno for tb in frames if tb.tb_frame.f_code.co_filename == f"{dags_folder}/{path}"]
    line = lines[-1] if lines else None
    kind = _kind(exc, path, dags_folder, in_user_code=bool(frames))
    if isinstance(exc, SyntaxError):
        where, what = _syntax(exc, path, dags_folder)
        line = exc.lineno if where.startswith(path) else line
    elif kind == "unreadable":
        refused = ""
        if limits is not None and isinstance(exc, PermissionError):
            refused = refused_link(path, dags_folder, limits)
        where, what = path, f"cannot be read: {refused or getattr(exc, 'strerror', None) or said(exc)}"
    else:
        where = path if line is None else f"{path}:{line}"
        what = _what(exc) + _place_hint(exc, dags_folder)
        if isinstance(exc, DagError):
            what = what.replace(f"{dags_folder}/{path}", "this file").replace(f"{dags_folder}/", "")
    hint = _hint_for(exc, limits) if limits is not None and kind == "exception" else ""
    if kind == "exception" and not frames and not isinstance(exc, OSError):
        hint = hint or _NOT_IN_THE_FILE
    return FileError(kind, _one_line(f"{where}: {what}", hint), _traceback(exc, frames), line)


def _user_frames(tb: TracebackType | None, dags_folder: str) -> list[TracebackType]:
    """Return the frames from the DAG folder's first on."""
    frames: list[TracebackType] = []
    while tb is not None:
        if frames or tb.tb_frame.f_code.co_filename.startswith(f"{dags_folder}/"):
            frames.append(tb)
        tb = tb.tb_next
    return frames


def _kind(exc: BaseException, path: str, dags_folder: str, *, in_user_code: bool) -> str:
    for cls, kind in _KINDS.items():
        if isinstance(exc, cls):
            return kind
    if isinstance(exc, OSError) and not in_user_code:
        is_the_file = exc.filename is None or f"{dags_folder}/{path}".startswith(str(exc.filename))
        return "unreadable" if is_the_file else "exception"
    return "exception"


def _syntax(exc: SyntaxError, path: str, dags_folder: str) -> tuple[str, str]:
    """Return the place of a syntax error, as `file:line`, and its message."""
    filename = (exc.filename or path).removeprefix(f"{dags_folder}/")
    return (filename if exc.lineno is None else f"{filename}:{exc.lineno}"), f"{type(exc).__name__}: {exc.msg}"


def _what(exc: BaseException) -> str:
    """Return the message of an exception, with advice if there is some."""
    text = said(exc)
    match exc:
        case SystemExit():
            return f"called sys.exit({text}); a DAG file must only define DAGs"
        case MemoryError():
            return "ran out of the memory that a parse may use (parse.memory_bytes); do heavy work in tasks"
        case DagError():
            return text
        case ModuleNotFoundError() if exc.name and exc.name.partition(".")[0] == "airflow":
            return f"ModuleNotFoundError: {text}; {advise_on_module(exc.name)}"
        case ImportError() if exc.name and "cannot import name" in text:
            name = text.partition("'")[2].partition("'")[0]
            if exc.name == "asynsched":
                return f"ImportError: {missing_name(name)}"
            if exc.name.partition(".")[0] == "airflow":
                return f"ImportError: {text.partition(' (')[0]}; {advise_on_name(exc.name, name)}"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _place_hint(exc: BaseException, dags_folder: str) -> str:
    """Return advice about a module that exists: as a link to a place that no parse may read, or beside the folder."""
    if not isinstance(exc, ModuleNotFoundError) or not exc.name:
        return ""
    place = Path(dags_folder, exc.name.partition(".")[0])
    if place.is_symlink():
        return f"; {place.name} is a link to {place.readlink()}, which a parse may read only if parse.readable has it"
    beside = Path(dags_folder).parent / place.name
    if beside.is_dir() or beside.with_suffix(".py").is_file():
        return f"; {place.name} is beside the DAG folder: {ON_PATH}{beside.parent}"
    return ""


def _one_line(text: str, hint: str) -> str:
    """Return a message, cut to its limit, and the advice, which is never cut."""
    line = " ".join(encodable(text).split())
    room = MAX_MESSAGE - len(hint)
    return (line if len(line) <= room else f"{line[:room]}…") + (f"; {hint}" if hint else "")


def _traceback(exc: BaseException, frames: list[TracebackType]) -> str:
    """Return the traceback from the DAG file on: the frames above are ours, and of no use to its author."""
    if not frames and isinstance(exc, OSError | DagError):
        return ""
    first = frames[0] if frames else None
    text = encodable("".join(traceback.format_exception(type(exc), exc, first)))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"


def _hint_for(exc: BaseException, limits: ParseLimits) -> str:
    """Return advice about an exception if the confinement has caused it or one of its causes; else an empty text."""
    causes = list(_causes(exc))
    for find in (_environment, *(() if limits.network else (_network,)), _database, _file, _limit):
        for cause in causes:
            if found := find(cause):
                return f"DAG files are parsed in confinement: {found}"
    return ""


def said(exc: BaseException) -> str:
    """Return the text of an exception."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - __str__ is user code, and may raise anything
        return "<its text cannot be shown>"


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes; libraries wrap the system's errors."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__ or exc.__context__


def _environment(exc: BaseException) -> str:
    code = type(os.environ).__getitem__.__code__
    if not isinstance(exc, KeyError) or not any(name == code for name, _ in _frames(exc)):
        return ""
    name = str(exc.args[0])
    if name.startswith("ASYNSCHED_"):
        return "the scheduler's own ASYNSCHED_* variables are shown to no user code"
    advice = f"add {name} to it, or read it in a task"
    if name.startswith("PG"):
        advice += "; where the scheduler's own database is PostgreSQL, neither is possible: use a connection in a task"
    return f"they see the environment variables that parse.environment lists; {advice}"


def _network(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.errno == errno.EPERM:
        is_network = any(module == "socket" or module.startswith("asyncio.") for _, module in _frames(exc))
    else:
        is_network = isinstance(exc, socket.gaierror) or any(words in said(exc) for words in _OF_NETWORK_LIBRARIES)
    return "they have no network unless parse.network is true; move this into a task" if is_network else ""


def _database(exc: BaseException) -> str:
    if type(exc).__name__ != "OperationalError":
        return ""
    if "readonly database" in said(exc):
        return f"{_WRITES}, and no database; write in a task"
    if "unable to open database file" in said(exc):
        return f"{_READS}; open the database in a task"
    return ""


def _file(exc: BaseException) -> str:
    if not isinstance(exc, PermissionError) or exc.errno != errno.EACCES:
        return ""
    if isinstance(exc.filename, (str, bytes)) and _was_read(exc.filename):
        return f"{_READS}; add the place to parse.readable, or do this in a task"
    return f"{_WRITES}; write in a task"


def _was_read(filename: str | bytes) -> bool:
    """Return whether reading the file was refused, not writing."""
    try:
        os.close(os.open(filename, os.O_RDONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _limit(exc: BaseException) -> str:
    if isinstance(exc, RuntimeError) and said(exc) == "can't start new thread":
        return _LIMITS[errno.EAGAIN]
    return _LIMITS.get(exc.errno or 0, "") if isinstance(exc, OSError) else ""


def _frames(exc: BaseException) -> Iterator[tuple[object, str]]:
    """Yield the code, and the name of the module, of each frame that an exception passed."""
    for frame, _ in traceback.walk_tb(exc.__traceback__):
        yield frame.f_code, str(frame.f_globals.get("__name__", ""))


def advise_on_module(module: str) -> str:
    """Return advice about a module of Airflow that is not there."""
    if not any(isinstance(finder, AirflowFinder) for finder in sys.meta_path):
        return 'set airflow = "ours", or import the same names from asynsched'
    if is_provider(module):
        if is_installed(module):
            renamed = names.RENAMED_IN_PROVIDERS.get(module)
            lack = f"the installed version of the provider {provider_of(module)} does not have this module"
            return f"{lack}; {renamed}" if renamed else lack
        return f"install its provider: asynsched providers install {provider_of(module)}"
    near = difflib.get_close_matches(module, [*names.SERVED, *names.MOVED, *names.WHOLE, *names.MOVED_WHOLE], 2)
    return f"asynsched does not have this module of Airflow{_did_you_mean(near)}"


def advise_on_name(module: str, name: str) -> str:
    """Return advice about a name that a module of Airflow does not have here."""
    if reason := names.REFUSED.get(f"{module}.{name}"):
        return reason
    renamed = names.RENAMED_IN_PROVIDERS.get(f"{module}.{name}")
    near = difflib.get_close_matches(name, dir(sys.modules[module]), 2) if module in sys.modules else []
    lack = "asynsched does not have this name of Airflow"
    if is_provider(module):
        lack = f"the installed version of the provider {provider_of(module)} does not have this name"
        if renamed:
            return f"{lack}; {renamed}"
    return lack + _did_you_mean(near)


def missing_name(name: str) -> str:
    """Return the message that asynsched does not have a name, with the name's equivalent here or near names."""
    known = dir(sys.modules["asynsched"])
    renamed = name.replace("Dataset", "Asset").replace("Airflow", "Asynsched")
    near = [renamed] if renamed in known else difflib.get_close_matches(name, known)
    hint = f"; {_ADVICE[name]}" if name in _ADVICE else _did_you_mean(near)
    return f"asynsched has no name {name!r}{hint}"


def _did_you_mean(near: list[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""
