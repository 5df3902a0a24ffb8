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
from typing import NoReturn

import msgspec

from asynsched.airflow.installation import while_loading
from asynsched.protocol.parse_messages import (
    MOST_QUESTIONS,
    QUESTION,
    Answered,
    Transcript,
    answer_line,
    is_kept,
    variables_of_all_parses,
)
from asynsched.serialization.asked_names import AskedName
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseReport
from sandbox import processes
from sandbox.confinement import kernel
from sandbox.parsing.importing import STACK_SIGNAL, ParseRequest, run_dag_file

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOOK_SECONDS = 0.1
_STACK_SECONDS = 0.5
_QUIET_SECONDS = 0.05
_CHUNK = 1 << 16
_PIPE_CHUNKS = 32
"""The number of chunks that is more than a pipe holds."""
_MIB = 1024**2
_NOBODY_TO_ASK = "no scheduler answers this parse; set the variable of the environment that stands for it"
_ASKS_TOO_MUCH = f"a file may ask for {MOST_QUESTIONS} variables and connections while it is parsed; read more in tasks"
Failure = tuple[str, str]
"""The kind and the message of an error."""


def become_guardian() -> None:
    """Adopt descendants that lose their parent, close this process's memory to others, and end with the parent."""
    processes.open_streams()
    processes.adopt_orphans()
    processes.set_readable(readable=False)
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
        for number in _ENDING:
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
    """The parse server, which reads the group's number from a pipe. Costs no process."""

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


Lifeline = HelperLifeline | PipeLifeline
"""Ends a process group, from outside of this process, when this process is gone. Another may get its number later."""


def parse_file(request: ParseRequest, lifeline: Lifeline, asker: int | None = None) -> ParseReport:
    """Parse a file in a process of its own, and report; every failure is an error in the report.

    When this returns, or is interrupted by an exception, no process of the parse is left; `lifeline` ends them should
    this process be killed. `asker` is a descriptor of the asker, which gets the questions of the file and answers them.
    Raises NotWantedError when it hangs up.
    """
    started_at = time.monotonic()
    watched = _Watched(request, lifeline, asker)
    try:
        watched.watch()
    finally:
        watched.end()
    return watched.report(time.monotonic() - started_at)


class _Watched:
    """A forked process that runs a DAG file, and the ends of its pipes."""

    def __init__(self, request: ParseRequest, lifeline: Lifeline, asker: int | None) -> None:
        self._request = request
        self._limits = request.limits
        self._lifeline = lifeline
        self._asker = asker
        self._transcript = Transcript()
        self._output = bytearray()
        self._stopped: Failure | None = None
        """Why it was stopped."""
        self._status: int | None = None
        """As `os.waitpid` gives it; None while it runs."""
        self._is_asking = False
        """Whether the asker has a question of the process. Nothing else is read from its channel meanwhile."""
        self._n_asked = 0
        self._is_answered = False
        """Whether the whole answer has come."""
        self._unwritten = b""
        """The part of an answer that the process has not read yet."""
        self._poll = select.poll()
        self._have_all_ended = False
        self._started_at = time.monotonic()
        self._import_began_at: float | None = None
        self._look_at = self._started_at + _LOOK_SECONDS
        self._exit: int | None = None
        self._channel, channel_end = os.pipe()
        self._output_pipe, output_end = os.pipe()
        answers_end, self._answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            run_dag_file(request, channel_end, answers_end, output_end)
        lifeline.hold(self._pid)
        for end in (channel_end, output_end, answers_end):
            os.close(end)
        for descriptor in (self._channel, self._output_pipe, self._answers):
            os.set_blocking(descriptor, False)

    def watch(self) -> None:
        """Wait until the process ends, or must be stopped."""
        poll = self._poll
        poll.register(self._channel, select.POLLIN)
        poll.register(self._output_pipe, select.POLLIN)
        if self._asker is not None:
            poll.register(self._asker, select.POLLIN)
        if hasattr(os, "pidfd_open"):  # where there is none, the loop polls for the end
            self._exit = os.pidfd_open(self._pid)
            poll.register(self._exit, select.POLLIN)
        while not self._has_ended():
            self._stopped = self._overstepped()
            if self._stopped is not None:
                if self._stopped[0] == "timeout":
                    self._ask_for_stack()
                return
            seconds_left = max(0.0, self._deadline()[0] - time.monotonic())
            for descriptor, _ in poll.poll(1000 * min(_LOOK_SECONDS, seconds_left)):
                self._serve(descriptor)
        self._drain()
        self._stopped = self._excess()

    def _serve(self, descriptor: int) -> None:
        """Read or write a descriptor that is ready. Raises NotWantedError when the asker has hung up."""
        if descriptor == self._asker:
            self._hear_asker()
        elif descriptor == self._answers:
            self._write_answer()
        elif not self._read(descriptor):
            self._poll.unregister(descriptor)
        elif descriptor == self._channel:
            self._ask()

    def _ask(self) -> None:
        """Pass a question of the process on, if it has asked one; the next ones wait for the answer."""
        if self._is_asking or not self._transcript.questions:
            return
        question = self._transcript.questions.popleft()
        self._is_asking = True
        self._poll.unregister(self._channel)
        self._n_asked += 1
        problem = _NOBODY_TO_ASK if self._asker is None else _ASKS_TOO_MUCH if self._n_asked > MOST_QUESTIONS else ""
        if self._asker is None or problem:
            error = f"the {question.kind} {question.name!r}: {problem}"
            self._take_answer(answer_line(Answered(question.number, error=error)))
            return
        try:
            os.write(self._asker, QUESTION + msgspec.json.encode(question) + b"\n")
        except OSError:
            raise NotWantedError from None

    def _hear_asker(self) -> None:
        """Take a part of an answer. Raises NotWantedError when the asker has hung up."""
        assert self._asker is not None
        data = os.read(self._asker, _CHUNK)
        if not data:
            _hear_no_more()  # that the asker has ended may come as a signal, too
            raise NotWantedError
        self._take_answer(data)

    def _take_answer(self, data: bytes) -> None:
        """Write a part of an answer to the process; the last one ends its line."""
        if not self._unwritten:
            self._poll.register(self._answers, select.POLLOUT)
        self._unwritten += data
        self._is_answered = data.endswith(b"\n")

    def _write_answer(self) -> None:
        try:
            self._unwritten = self._unwritten[os.write(self._answers, self._unwritten) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unwritten = b""  # the process has closed it, or ends
        if self._unwritten:
            return
        self._poll.unregister(self._answers)
        if self._is_answered:
            self._is_asking = self._is_answered = False
            self._poll.register(self._channel, select.POLLIN)
            self._ask()

    def _has_ended(self) -> bool:
        if hasattr(os, "waitid"):
            # Left unreaped: its id, and with it its process group, stays its own until `end`.
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        self._status = status if pid else None
        return bool(pid)

    def _overstepped(self) -> Failure | None:
        """Return which limit the parse is over, if any."""
        now = time.monotonic()
        if excess := self._excess():
            return excess
        deadline, what = self._deadline()
        if now >= deadline:
            return "timeout", what
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            if processes.memory_of(processes.descendants()) > self._limits.memory_bytes:
                size = self._limits.memory_bytes // _MIB
                return "memory", f"took more than {size} MiB of memory (parse.memory_bytes); do heavy work in tasks"
        return None

    def _excess(self) -> Failure | None:
        if self._transcript.size <= self._limits.result_bytes:
            return None
        size = self._limits.result_bytes // _MIB
        return "output", f"its DAGs and sources are more than {size} MiB of JSON (parse.result_bytes)"

    def _deadline(self) -> tuple[float, str]:
        """Return when the process must have gone on, and the message if it has not."""
        seconds = self._limits.timeout
        whole = self._started_at + seconds, f"its parse took longer than {seconds:g} s (parse.timeout)"
        if self._transcript.confined is None or self._transcript.imported:
            return whole
        if self._import_began_at is None:
            self._import_began_at = time.monotonic()
        seconds = self._limits.import_timeout
        of_import = self._import_began_at + seconds, f"its import took longer than {seconds:g} s (parse.import_timeout)"
        return min(whole, of_import)

    def _read(self, descriptor: int) -> bool:
        """Read a pipe. Return False when nothing more will come from it."""
        if descriptor not in (self._channel, self._output_pipe):
            return False
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if descriptor == self._channel:
            self._transcript.feed(data)
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

    def _ask_for_stack(self) -> None:
        """Ask a hanging process for its stack before it is killed."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        with contextlib.suppress(OSError):
            os.kill(self._pid, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            # The stack comes in pieces, and is complete when nothing follows for a moment.
            quiet = _QUIET_SECONDS if self._transcript.text else left
            if not poll.poll(1000 * quiet) or not self._read(self._channel):
                break

    def end(self) -> None:
        """Kill the remaining processes of the parse."""
        status, self._have_all_ended = processes.end_tree(self._pid)
        self._status = self._status if status is None else status
        self._lifeline.release()
        for descriptor in (self._channel, self._output_pipe, self._answers, self._exit):
            if descriptor is not None:
                os.close(descriptor)

    def report(self, duration: float) -> ParseReport:
        """Return the findings of the process, or the errors that follow from its end."""
        errors = tuple(self._errors())
        found = None if errors else self._transcript.found
        confined = self._transcript.confined
        return ParseReport(
            schema_version=SCHEMA_VERSION,
            path=self._request.path,
            dags=found.dags if found else (),
            errors=found.errors if found else errors,
            warnings=found.warnings if found else (),
            sources=tuple(self._transcript.sources.values()),
            output=self._output.decode("utf-8", "replace"),
            confinement=confined.enforced if confined else (),
            duration=round(duration, 6),
            airflow=found.airflow if found else "",
            asked=tuple(AskedName("option", option) for option in found.options) if found else (),
            hears=self._transcript.hears,
        )

    def _errors(self) -> Iterator[FileError]:
        """Yield the errors that follow from the end of the process; none when it sent its findings and ended."""
        path = self._request.path
        if not self._have_all_ended:
            yield FileError("crash", f"{path}: left a process behind that could not be ended")
        if refused := self._transcript.refused:
            message = f"{path}: was not parsed, because it cannot be confined: {refused.reason}"
            yield FileError("confinement", message)
        elif self._stopped is not None or self._transcript.found is None or self._status != 0:
            kind, what = self._stopped or self._death()
            what += while_loading(self._transcript.plugin)
            folder, text = str(self._request.dags_folder), self._transcript.text.strip()
            line = _line_in_stack(text, f"{folder}/{path}")
            # Other text than a report of Python's is garbage: user code wrote to a descriptor that it guessed.
            stack = "" if line is None else _user_part(text, folder)
            yield FileError(kind, f"{path if line is None else f'{path}:{line}'}: {what}", stack, line)

    def _death(self) -> Failure:
        """Return why a process that was not stopped sent no findings."""
        if self._status is None:
            return "crash", "its parse process was lost"
        number = self._status & 0x7F
        if number == 0:
            code = self._status >> 8
            advice = "" if self._transcript.plugin else "; a DAG file must only define DAGs"
            return "exit", f"ended its process with exit code {code} (os._exit){advice}"
        if number == signal.SIGXCPU:
            return "timeout", f"used more than {self._limits.cpu_seconds} s of CPU time (parse.cpu_seconds)"
        if number == signal.SIGKILL:
            return "memory", "its process was killed, by the kernel for lack of memory or by another process"
        if number == signal.SIGSEGV and self._transcript.imported:
            # The encoder does not survive a refused allocation.
            size = self._limits.memory_bytes // _MIB
            return "memory", f"its DAGs need more than {size} MiB of memory to be written down (parse.memory_bytes)"
        return "crash", f"crashed its process: {processes.signal_name(number)} ({signal.strsignal(number)})"


def encode(report: ParseReport) -> bytes:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report) + b"\n"


def _user_part(stack: str, dags_folder: str) -> str:
    """Return a crash report without the frames above the DAG file, which are ours."""
    lines = stack.splitlines()
    last = max(index for index, line in enumerate(lines) if f'File "{_escaped(dags_folder)}/' in line)
    return "\n".join(lines[: last + 1])


def _escaped(filename: str) -> str:
    """Return a file's name as Python's crash reports write it."""
    return filename.encode("ascii", "backslashreplace").decode("ascii")


def _line_in_stack(stack: str, filename: str) -> int | None:
    """Return the line of `filename` that a crash report of Python's names first: the innermost one."""
    found = re.search(rf'File "{re.escape(_escaped(filename))}", line (\d+)', stack)
    return int(found[1]) if found else None
