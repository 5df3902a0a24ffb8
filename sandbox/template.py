"""A process that has loaded one version of a DAG file, and forks processes for tries at the keeper's request.

It is single-threaded and does nothing else. A forked process waits for its launch on a socket of its own. The keeper
gets the other end together with the process's number, so it knows the process of a try before any of its code runs.
However a template ends, its tries go on: the keeper, a subreaper, becomes their parent.
"""

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

from msgspec import Meta, Struct

from asynsched.authoring.supervisor import NOT_WHILE_PARSED, SupervisorError, set_supervisor
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion
from sandbox.loading import Ask, LoadedFile, freeze_heap, load_version
from sandbox.processes import (
    ForkCheck,
    die_with,
    flush_streams,
    keep_only,
    leave_time_to_keeper,
    of_ready_process,
    of_template,
    own_bytes,
    reap,
    set_readable,
    set_title,
)
from sandbox.run import TryDescriptors, become_try
from sandbox.supervision.lifeline import make_tie

FORK = b"f"
"""The keeper sends one byte for each process that it wants."""
MOST_AT_ONCE = 8
"""Processes that are forked before the keeper learns of them, if it wants as many.

Forking one by one, a template would copy the pages that it writes to between two forks each time: 100 tasks at once ran
at 0.8 of the rate. A message carries the descriptors of at most eight processes.
"""


class Born(Struct, frozen=True, tag="born"):
    """The first message on the channel of a template: its process."""

    pid: int


class LoadingPlugin(Struct, frozen=True, tag="plugin"):
    """The template begins to load a plugin, whose code may end it; an empty source: no plugin any more."""

    source: str


class Loaded(Struct, frozen=True, tag="loaded"):
    """The file is loaded."""

    is_broken: bool = False
    """Whether its import failed; its tries only report the failure."""
    unfit: str = ""
    """Why the process cannot be forked; empty if it can."""
    n_bytes: int = 0
    """Memory that the template shares with no other process."""


ProcessId = Annotated[int, Meta(gt=1, le=2**22)]
"""The number of a process, as far as Linux has them: user code of the file can write to the channel, too."""


class Forked(Struct, frozen=True, tag="forked"):
    """A process waits for a launch. The message carries its control socket and the reading end of its output."""

    pid: ProcessId


class Exited(Struct, frozen=True, tag="exited"):
    """A forked process has exited, with this wait status."""

    pid: ProcessId
    status: int


FromTemplate = Born | LoadingPlugin | Loaded | Forked | Exited


class Ends(NamedTuple):
    """The descriptors of a process that will become a try: the keeper's ends, and its own."""

    control: int
    output: int
    own: TryDescriptors

    @classmethod
    def make(cls, lifeline: int) -> "Ends":
        """Return new ones. Raises OSError, and leaves none open, if not all of them can be opened."""
        opened: list[int] = []
        try:
            control, own_control = socket.socketpair()
            opened += control.detach(), own_control.detach()
            opened += os.pipe()
            opened.append(make_tie(lifeline))
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        of_keeper, own, output, own_output, tie = opened
        return cls(of_keeper, output, TryDescriptors(own, own_output, tie))

    def close_own(self) -> None:
        """Close the process's ends in this process."""
        for descriptor in self.own:
            os.close(descriptor)

    def close_keepers(self) -> None:
        """Close the keeper's ends in this process."""
        os.close(self.control)
        os.close(self.output)


class TemplateStart(NamedTuple):
    """The input of a template. `output` takes the file's output during its import.

    One that `is_lone_try` becomes the one try of a file that cannot be forked once it is loaded.
    """

    code: CodeVersion
    sources_folder: Path
    channel: socket.socket
    output: int
    lifeline: int
    keeper: int
    is_lone_try: bool


_READS_NAMES = "it reads a variable or a connection, which each task must read again"


class _Nobody:
    """Answers no request of a file that a template imports, and notes that the file has asked for a stored value.

    Each task of such a file imports it again: a value may change, and no process that others are forked from may hold
    a secret.
    """

    def __init__(self) -> None:
        self.was_asked = False

    def request(self, operation: str, **_arguments: Any) -> Any:
        """Raise SupervisorError."""
        if operation == "mask_secret":
            return None
        self.was_asked = self.was_asked or operation in ("variable_get", "connection_get")
        raise SupervisorError(f"{operation}: {NOT_WHILE_PARSED}")


_USUAL_RECURSION = sys.getrecursionlimit()
"""This interpreter's limit; the keeper's is lower."""


def become_template(start: TemplateStart) -> NoReturn:
    """Load the version, and serve the keeper until it hangs up. Never returns: the frames of its parent stay below."""
    try:
        die_with(start.keeper)
        set_title(of_ready_process(start.code) if start.is_lone_try else of_template(start.code))
        keep_only(start.channel.fileno(), start.output, start.lifeline)
        set_readable(readable=True)
        sys.setrecursionlimit(_USUAL_RECURSION)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if start.is_lone_try:
            _become_lone_try(start)
        Template(start).serve()
    finally:
        os._exit(1)


def _become_lone_try(start: TemplateStart) -> NoReturn:
    """Give the keeper its ends, as a template does for the processes that it forks, and wait for the launch."""
    ends = Ends.make(start.lifeline)
    socket.send_fds(start.channel, [encode_frame(Forked(os.getpid()))], [ends.control, ends.output])
    keep_only(*ends.own)
    leave_time_to_keeper()
    become_try(ends.own, lambda code, ask: load_version(code, start.sources_folder, ask))


class Template:
    """The loaded file, and the channels to the keeper and the tries."""

    def __init__(self, start: TemplateStart) -> None:
        self._start = start
        self._pid = os.getpid()
        self._channel = start.channel
        self._wakeup, self._waker = os.pipe()
        self._file = LoadedFile({})

    def serve(self) -> NoReturn:
        """Load, then fork and report until the keeper hangs up."""
        os.dup2(self._start.output, 1)
        os.dup2(self._start.output, 2)
        os.close(self._start.output)
        leave_time_to_keeper()
        check = ForkCheck()
        set_supervisor(nobody := _Nobody(), loads_file=True)
        self._file = load_version(self._start.code, self._start.sources_folder, begin=self._note_plugin)
        set_supervisor(None)
        unfit = _READS_NAMES if nobody.was_asked else "" if self._file.reason else check.obstacle()
        check.close()
        leave_time_to_keeper()  # the file may have changed the logging
        self._leave_output()
        freeze_heap()
        self._send(Loaded(bool(self._file.reason), unfit, own_bytes()))
        if unfit:
            os._exit(0)
        self._watch_children()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._channel.fileno() in ready:
                self._fork_asked()
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                for pid, status in reap():
                    self._send(Exited(pid, status))

    def _note_plugin(self, source: str) -> None:
        self._send(LoadingPlugin(source))

    def _fork_asked(self) -> None:
        """Fork as often as the keeper asks. Ends this process when the keeper has hung up."""
        asked = len(self._channel.recv(64))
        if not asked:
            os._exit(0)
        while asked > 0:
            asked -= self._fork(min(asked, MOST_AT_ONCE))

    def _fork(self, n: int) -> int:
        """Fork up to n processes, as many as the limits allow, report them to the keeper, and return their number.

        Their descriptors are made before the first fork and closed after the last one, see `MOST_AT_ONCE`.
        """
        made = [Ends.make(self._start.lifeline)]
        with suppress(OSError):  # at the limit of open files, the rest waits until others are closed
            while len(made) < n:
                made.append(Ends.make(self._start.lifeline))
        forked: list[Forked] = []
        try:
            for ends in made:
                pid = self._fork_one(ends, made)
                forked.append(Forked(pid))
        finally:  # also when the machine has no room for another one
            self._tell_of(forked, made)
        return len(forked)

    def _fork_one(self, ends: Ends, made: Sequence[Ends]) -> int:
        """Fork the process for these ends, one of those that were made, and return its number."""
        try:
            pid = os.fork()
            if pid == 0:
                for inherited in (self._channel.detach(), self._wakeup, self._waker, self._start.lifeline):
                    os.close(inherited)
                for another in made:
                    another.close_keepers()
                    if another is not ends:
                        another.close_own()
                set_title(of_ready_process(self._start.code))
                become_try(ends.own, self._loaded)
            return pid
        finally:
            if os.getpid() != self._pid:  # the new process has failed, and must not go on as this one
                os._exit(1)

    def _loaded(self, code: CodeVersion, ask: Ask) -> LoadedFile:
        """Return the file for a try, which can ask for a source that was damaged when this process loaded it."""
        return load_version(code, self._start.sources_folder, ask) if self._file.is_damaged else self._file

    def _tell_of(self, forked: Sequence[Forked], made: Sequence[Ends]) -> None:
        for ends in made:
            ends.close_own()
        if forked:
            keepers = [descriptor for ends in made[: len(forked)] for descriptor in (ends.control, ends.output)]
            self._send(*forked, descriptors=keepers)
        for ends in made:
            ends.close_keepers()

    def _send(self, *messages: FromTemplate, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._channel, [encode_frame(message) for message in messages], descriptors)
        except OSError:
            os._exit(0)

    def _leave_output(self) -> None:
        """Stop writing to the log of the try for which the file was imported."""
        flush_streams()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.close(nothing)

    def _watch_children(self) -> None:
        """Make `_wakeup` readable when a try exits."""
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up descriptor delivers its number
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
