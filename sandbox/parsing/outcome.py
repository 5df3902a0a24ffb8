"""Decides what a parse's report says when its process died, hung or sent nothing of use. Pure."""

import re
import signal
from dataclasses import dataclass
from enum import Enum

from asynsched.protocol.parse_messages import Transcript
from asynsched.serialization.schema import FileError
from sandbox.confinement.limits import ParseLimits

_MIB = 1024**2


class Stopped(Enum):
    """Why the watching process ended a parse."""

    IMPORT_TIMEOUT = "import_timeout"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    RESULT_TOO_LARGE = "result_too_large"


@dataclass(frozen=True, slots=True)
class End:
    """How the process that ran a DAG file ended."""

    transcript: Transcript
    status: int | None
    """As `os.waitpid` gives it; None when it was still running."""
    stopped: Stopped | None = None
    left_over: bool = False
    """Whether a process of the parse could not be ended."""


def failures(end: End, path: str, dags_folder: str, limits: ParseLimits) -> tuple[FileError, ...]:
    """Return the errors that the end of the process itself amounts to; none when it sent its findings and ended."""
    transcript = end.transcript
    errors: list[FileError] = []
    if end.left_over:
        errors.append(FileError("crash", f"{path}: left a process behind that could not be ended"))
    if transcript.refused is not None:
        message = f"{path}: was not parsed, because it cannot be confined: {transcript.refused.reason}"
        errors.append(FileError("confinement", message))
    elif end.stopped is not None or transcript.found is None or end.status != 0:
        errors.append(_failure(end, path, dags_folder, limits))
    return tuple(errors)


def _failure(end: End, path: str, dags_folder: str, limits: ParseLimits) -> FileError:
    text = end.transcript.text.strip()
    line = line_in_stack(text, f"{dags_folder}/{path}")
    kind, what = _stopped(end.stopped, limits) if end.stopped else _died(end, limits)
    where = path if line is None else f"{path}:{line}"
    # What is no report of Python's is garbage that user code wrote on a descriptor that it guessed.
    return FileError(kind, f"{where}: {what}", _user_part(text, dags_folder) if line is not None else "", line)


def _stopped(why: Stopped, limits: ParseLimits) -> tuple[str, str]:
    """Return the kind of the error, and what happened."""
    match why:
        case Stopped.IMPORT_TIMEOUT:
            return "timeout", f"its import took longer than {limits.import_timeout:g} s (parse.import_timeout)"
        case Stopped.TIMEOUT:
            return "timeout", f"its parse took longer than {limits.timeout:g} s (parse.timeout)"
        case Stopped.MEMORY:
            size = limits.memory_bytes // _MIB
            return "memory", f"took more than {size} MiB of memory (parse.memory_bytes); do heavy work in tasks"
        case Stopped.RESULT_TOO_LARGE:
            size = limits.result_bytes // _MIB
            return "output", f"its DAGs and sources are more than {size} MiB of JSON (parse.result_bytes)"


def _died(end: End, limits: ParseLimits) -> tuple[str, str]:
    """Return the kind of the error, and what happened."""
    status = end.status
    if status is None:
        return "crash", "its parse process was lost"
    number = status & 0x7F
    if number == 0:
        code = status >> 8
        return "exit", f"ended its process with exit code {code} (os._exit); a DAG file must only define DAGs"
    if number == signal.SIGXCPU:
        return "timeout", f"used more than {limits.cpu_seconds} s of CPU time (parse.cpu_seconds)"
    if number == signal.SIGKILL:
        return "memory", "its process was killed, by the kernel for lack of memory or by somebody"
    if number == signal.SIGSEGV and end.transcript.imported:
        # The encoder does not survive a refused allocation.
        size = limits.memory_bytes // _MIB
        return "memory", f"its DAGs need more than {size} MiB of memory to be written down (parse.memory_bytes)"
    return "crash", f"crashed its process: {_name_of(number)}"


def _name_of(number: int) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    return f"{known.name} ({signal.strsignal(number)})"


def _user_part(stack: str, dags_folder: str) -> str:
    """Return a crash report without the frames above the DAG file, which are ours."""
    lines = stack.splitlines()
    last = max(index for index, line in enumerate(lines) if f'File "{_escaped(dags_folder)}/' in line)
    return "\n".join(lines[: last + 1])


def _escaped(filename: str) -> str:
    """Return a file's name as Python's crash reports write it."""
    return filename.encode("ascii", "backslashreplace").decode("ascii")


def line_in_stack(stack: str, filename: str) -> int | None:
    """Return the line of `filename` that a crash report of Python's names first, which is the innermost."""
    found = re.search(rf'File "{re.escape(_escaped(filename))}", line (\d+)', stack)
    return int(found[1]) if found else None
