"""What an author is told to do about an error that comes from the confinement of parses: one table."""

import errno
import os
import socket
from collections.abc import Callable, Iterator

_Finder = Callable[[BaseException], str]


def hint_for(exc: BaseException) -> str:
    """Return what to do about an exception if the confinement has caused it, or what led to it; else nothing."""
    causes = list(_causes(exc))
    for find in _HINTS:
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
    """Yield an exception and those that it was raised for; libraries wrap what the system says."""
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
    return "they have no network; move this into a task" if is_network else ""


_OF_NETWORK_LIBRARIES = ("name resolution", "could not translate host name", "could not create socket")
"""What libraries say that are written in C, such as database drivers."""


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


_READS = "they read the DAG folder, Python, system libraries and what parse.readable lists"
_WRITES = "they write to their temporary folder only"


def _was_read(filename: str | bytes) -> bool:
    """Return whether a refused file is one that may not be read; else it was to be written."""
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


_LIMITS = {
    errno.EAGAIN: "they have only so many processes and threads (parse.max_processes)",
    errno.EMFILE: "they have only so many files open (parse.open_files)",
    errno.EFBIG: "they write only small files (parse.file_bytes)",
    errno.EPERM: "they may not do this; do it in a task",
}

_HINTS: tuple[_Finder, ...] = (_environment, _network, _database, _file, _limit)
"""Each says what to do if it knows an exception; the first that does is believed."""


def _frames(exc: BaseException) -> Iterator[tuple[object, str]]:
    """Yield the code, and the name of the module, of each frame that an exception passed."""
    tb = exc.__traceback__
    while tb is not None:
        yield tb.tb_frame.f_code, str(tb.tb_frame.f_globals.get("__name__", ""))
        tb = tb.tb_next
