"""Watches one parse from outside: its time, memory, output and end, and that no process of it is left.

The watching process has loaded everything that a parse needs, and forks the process that runs the DAG file, which
therefore starts warm. It watches one parse (`python -m sandbox.parse`), or one after the other (a guardian of the parse
server).
"""

import contextlib
import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Protocol

import msgspec

from asynsched.protocol.parse_messages import ParseLimits, Transcript, is_kept, variables_of_all_parses
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseReport
from sandbox import processes
from sandbox.confinement import kernel
from sandbox.parsing.importing import STACK_SIGNAL, ParseRequest, open_streams, run_dag_file

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOOK_SECONDS = 0.1
_STACK_SECONDS = 0.5
_QUIET_SECONDS = 0.05
_CHUNK = 1 << 16
_PIPE_CHUNKS = 32
"""The number of chunks that is more than a pipe holds."""


def become_guardian() -> None:
    """Adopt descendants that lose their parent, close this process's memory to others, and end with the parent."""
    open_streams()
    processes.adopt_orphans()
    processes.set_readable(readable=False)
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)


def exit_by_signals() -> None:
    """Leave through every `finally` when a signal ends this process, so that nothing of a parse is left."""
    for number in _ENDING:
        signal.signal(number, _exit_by_signal)


def _exit_by_signal(number: int, _frame: object) -> NoReturn:
    _hear_no_more()
    sys.exit(128 + number)


def _hear_no_more() -> None:
    """Ignore further signals, so that none interrupts the cleanup."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


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


class Lifeline(Protocol):
    """Ends a process group, from outside of this process, when this process is gone."""

    def hold(self, group: int) -> None:
        """End this group when this process is gone."""

    def release(self) -> None:
        """Forget the group, which has ended: another may get its number."""


def enter_environment(allowed: tuple[str, ...]) -> None:
    """Give this process, whose forks are parses, their environment.

    Dropped variables are overwritten in the memory in which the kernel has passed them: a fork could read them there.
    """
    dropped = {name for name in os.environb if not is_kept(os.fsdecode(name), allowed)}
    places = kernel.environment_addresses() if sys.platform == "linux" else []
    places = [(address, text) for address, text in places if text.partition(b"=")[0] in dropped]
    for name in dropped:
        del os.environb[name]
    for address, text in places:
        kernel.overwrite(address, len(text))
    for variable, value in variables_of_all_parses().items():
        os.environ.setdefault(variable, value)


class NotWantedError(Exception):
    """The asker of a parse has hung up."""


def parse_file(request: ParseRequest, lifeline: Lifeline, asker: int | None = None) -> ParseReport:
    """Parse a file in a process of its own, and report; every failure is an error in the report.

    When this returns, or is interrupted by an exception, no process of the parse is left.

    Args:
        request: The file.
        lifeline: Ends the parse should this process be killed.
        asker: Descriptor of the asker, which says nothing during the parse, but may hang up.

    Raises:
        NotWantedError: Something came from `asker`.
    """
    started_at = time.monotonic()
    watched = _Watched(request, lifeline, asker)
    try:
        stopped = watched.watch()
    finally:
        status, all_ended = watched.end()
    end = End(watched.transcript, status, stopped, left_over=not all_ended)
    return _report(request, end, watched.output, time.monotonic() - started_at)


def _report(request: ParseRequest, end: End, output: str, duration: float) -> ParseReport:
    errors = failures(end, request.path, str(request.dags_folder), request.limits)
    found = None if errors else end.transcript.found
    confined = end.transcript.confined
    return ParseReport(
        schema_version=SCHEMA_VERSION,
        path=request.path,
        dags=found.dags if found else (),
        errors=found.errors if found else errors,
        warnings=found.warnings if found else (),
        sources=tuple(end.transcript.sources.values()),
        output=output,
        confinement=confined.enforced if confined else (),
        duration=round(duration, 6),
    )


class _Watched:
    """A forked process that runs a DAG file, and the ends of its pipes."""

    def __init__(self, request: ParseRequest, lifeline: Lifeline, asker: int | None) -> None:
        self.transcript = Transcript()
        self._limits = request.limits
        self._lifeline = lifeline
        self._asker = asker
        self._output = bytearray()
        self._status: int | None = None
        self._started_at = time.monotonic()
        self._import_began_at: float | None = None
        self._look_at = self._started_at + _LOOK_SECONDS
        self._channel, channel_end = os.pipe()
        self._output_pipe, output_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            run_dag_file(request, channel_end, output_end)
        lifeline.hold(self._pid)
        os.close(channel_end)
        os.close(output_end)
        os.set_blocking(self._channel, False)
        os.set_blocking(self._output_pipe, False)

    @property
    def output(self) -> str:
        """The beginning of user code's standard output and error."""
        return self._output.decode("utf-8", "replace")

    def watch(self) -> Stopped | None:
        """Wait for the process to end; return why it must be stopped if it does not."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._output_pipe, select.POLLIN)
        if self._asker is not None:
            poll.register(self._asker, select.POLLIN)
        with self._exit_event(poll):
            while not self._has_ended():
                stopped = self._overstepped()
                if stopped is not None:
                    self._ask_for_stack(stopped)
                    return stopped
                for descriptor, _ in poll.poll(1000 * min(_LOOK_SECONDS, self._seconds_left())):
                    if descriptor == self._asker:
                        _hear_no_more()  # that the asker has ended may come as a signal, too
                        raise NotWantedError
                    if not self._read(descriptor):
                        poll.unregister(descriptor)
        self._drain()
        return Stopped.RESULT_TOO_LARGE if self._is_too_large() else None

    @contextlib.contextmanager
    def _exit_event(self, poll: select.poll) -> Iterator[None]:
        """Make the end of the process wake `poll` if the system supports that; otherwise the loop polls for the end."""
        if not hasattr(os, "pidfd_open"):
            yield
            return
        descriptor = os.pidfd_open(self._pid)
        poll.register(descriptor, select.POLLIN)
        try:
            yield
        finally:
            os.close(descriptor)

    def _has_ended(self) -> bool:
        if hasattr(os, "waitid"):
            # Left unreaped: its id, and with it its process group, stays its own until `end`.
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        self._status = status if pid else None
        return bool(pid)

    def _overstepped(self) -> Stopped | None:
        """Return which limit the parse is over, if any."""
        now = time.monotonic()
        if self._is_too_large():
            return Stopped.RESULT_TOO_LARGE
        if now >= self._started_at + self._limits.timeout:
            return Stopped.TIMEOUT
        if self._is_importing() and now >= self._import_deadline():
            return Stopped.IMPORT_TIMEOUT
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_SECONDS
        return Stopped.MEMORY if processes.memory_of(processes.descendants()) > self._limits.memory_bytes else None

    def _is_too_large(self) -> bool:
        return self.transcript.size > self._limits.result_bytes

    def _is_importing(self) -> bool:
        if self._import_began_at is None and self.transcript.confined is not None:
            self._import_began_at = time.monotonic()
        return self._import_began_at is not None and not self.transcript.imported

    def _import_deadline(self) -> float:
        return (self._import_began_at or self._started_at) + self._limits.import_timeout

    def _seconds_left(self) -> float:
        deadline = self._started_at + self._limits.timeout
        if self._is_importing():
            deadline = min(deadline, self._import_deadline())
        return max(0.0, deadline - time.monotonic())

    def _read(self, descriptor: int) -> bool:
        """Read a pipe. Return False when nothing more will come from it."""
        if descriptor not in (self._channel, self._output_pipe):
            return False
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if descriptor == self._channel:
            self.transcript.feed(data)
        else:
            self._output += data[: max(0, self._limits.output_bytes - len(self._output))]
        return bool(data)

    def _drain(self) -> None:
        """Read the output of a dead process that is left in its pipes, but no later output of its living children."""
        for descriptor in (self._channel, self._output_pipe):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            for _ in range(_PIPE_CHUNKS):
                if not poll.poll(0) or not self._read(descriptor):
                    break

    def _ask_for_stack(self, stopped: Stopped) -> None:
        """Ask a hanging process for its stack before it is killed."""
        if stopped not in (Stopped.TIMEOUT, Stopped.IMPORT_TIMEOUT):
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        with contextlib.suppress(OSError):
            os.kill(self._pid, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            # The stack comes in pieces, and is complete when nothing follows for a moment.
            quiet = _QUIET_SECONDS if self.transcript.text else left
            if not poll.poll(1000 * quiet) or not self._read(self._channel):
                break

    def end(self) -> tuple[int | None, bool]:
        """Kill the remaining processes of the parse; return its status, and whether all of them have ended."""
        status, all_ended = processes.end_tree(self._pid)
        self._lifeline.release()
        for descriptor in (self._channel, self._output_pipe):
            os.close(descriptor)
        return (self._status if status is None else status), all_ended


def encode(report: ParseReport) -> bytes:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report) + b"\n"


GROUP = struct.Struct("=i")
"""How the number of a process group is written to a pipe; 0 for none."""


class HelperLifeline:
    """A process of its own for each group, which waits for the end of a pipe that only this process has open.

    It is a child like any other: `end_tree` ends it.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def hold(self, group: int) -> None:
        """Fork the process that waits."""
        theirs, ours = os.pipe()
        if os.fork():
            os.close(theirs)
            self._descriptor = ours
            return
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(theirs, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        os.read(0, 1)
        processes.kill_group(group)
        os._exit(0)

    def release(self) -> None:
        """End the process, if `end_tree` has not done it."""
        os.close(self._descriptor)


class PipeLifeline:
    """The parse server, which reads the group's number from a pipe. Costs no process.

    Args:
        descriptor: The writing end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def hold(self, group: int) -> None:
        """Tell the server of the group, if it is there; its end has told this process to end."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, GROUP.pack(group))

    def release(self) -> None:
        """Tell the server that the group is gone."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, GROUP.pack(0))


_MIB = 1024**2


def failures(end: End, path: str, dags_folder: str, limits: ParseLimits) -> tuple[FileError, ...]:
    """Return the errors that follow from the end of the process; none when it sent its findings and ended."""
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
    # Other text than a report of Python's is garbage: user code wrote to a descriptor that it guessed.
    return FileError(kind, f"{where}: {what}", _user_part(text, dags_folder) if line is not None else "", line)


def _stopped(why: Stopped, limits: ParseLimits) -> tuple[str, str]:
    """Return the kind and the message of the error."""
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
    """Return the kind and the message of the error."""
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
        return "memory", "its process was killed, by the kernel for lack of memory or by another process"
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
    """Return the line of `filename` that a crash report of Python's names first: the innermost one."""
    found = re.search(rf'File "{re.escape(_escaped(filename))}", line (\d+)', stack)
    return int(found[1]) if found else None
