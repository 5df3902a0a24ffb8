"""A process that has one version of a DAG file loaded, and forks a try whenever the keeper asks for one.

It is single-threaded and does nothing else. Whatever ends it leaves its tries running: the keeper, a subreaper,
becomes their parent.
"""

import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from msgspec import Struct

from sandbox.children import die_with, reap
from sandbox.loading import LoadedFile, freeze_heap, load_version, open_sockets, unfit_to_fork
from sandbox.protocol import CodeVersion, encode_frame
from sandbox.run import TryDescriptors, become_try

REQUEST_BYTES = 8
"""Every request of the keeper is a number that names the try, with two descriptors: control socket and output."""


class Loaded(Struct, frozen=True, tag="loaded"):
    """The file is loaded. `is_broken`: its tries will only say why it could not be. `unfit`: it cannot be forked."""

    is_broken: bool = False
    unfit: str = ""


class Forked(Struct, frozen=True, tag="forked"):
    """The try of this number is in this process."""

    number: int
    pid: int


class Exited(Struct, frozen=True, tag="exited"):
    """This try's process has exited, with this wait status."""

    pid: int
    status: int


FromTemplate = Loaded | Forked | Exited


class ForkRequest(NamedTuple):
    """A try to be forked: its number, and the descriptors that are its own."""

    number: int
    control: int
    output: int


class TemplateStart(NamedTuple):
    """What a template is forked with."""

    code: CodeVersion
    sources_folder: Path
    channel: socket.socket
    lifeline: int
    keeper: int


def keep_only(*descriptors: int) -> None:
    """Close every descriptor but these and the standard ones."""
    first = 3
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def become_template(start: TemplateStart) -> NoReturn:
    """Load the version, and serve the keeper until it hangs up. Never returns: the keeper's frames stay below."""
    try:
        die_with(start.keeper)
        keep_only(start.channel.fileno(), start.lifeline)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        Template(start).serve()
    finally:
        os._exit(1)


class Template:
    """The template's state: the loaded file, and how it hears of the keeper and of its tries."""

    def __init__(self, start: TemplateStart) -> None:
        self._start = start
        self._channel = start.channel
        self._channel.setblocking(True)
        self._wakeup, self._waker = socket.socketpair()
        self._file = LoadedFile({})

    def serve(self) -> NoReturn:
        """Load, then fork and report until the keeper hangs up."""
        first = self._receive()
        # What the file writes while it is imported belongs to the try that had it imported.
        os.dup2(first.output, 1)
        os.dup2(first.output, 2)
        sockets = open_sockets()
        self._file = load_version(self._start.code, self._start.sources_folder)
        unfit = "" if self._file.reason else unfit_to_fork(sockets)
        self._settle()
        self._send(Loaded(bool(self._file.reason), unfit))
        if unfit:
            os._exit(0)
        freeze_heap()
        self._watch_children()
        self._fork(first)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wakeup.fileno() in ready:
                self._wakeup.recv(4096)
                for pid, status in reap():
                    self._send(Exited(pid, status))
            if self._channel.fileno() in ready:
                self._fork(self._receive())

    def _fork(self, request: ForkRequest) -> None:
        pid = os.fork()
        if pid == 0:
            for inherited in (self._channel, self._wakeup, self._waker):
                inherited.close()
            descriptors = TryDescriptors(request.control, request.output, self._start.lifeline)
            become_try(descriptors, lambda _code: self._file)
        os.close(request.control)
        os.close(request.output)
        self._send(Forked(request.number, pid))

    def _receive(self) -> ForkRequest:
        """Return the next request. Ends this process when the keeper has hung up."""
        data, descriptors, _, _ = socket.recv_fds(self._channel, REQUEST_BYTES, 2)
        if len(data) < REQUEST_BYTES:
            os._exit(0)
        control, output = descriptors
        return ForkRequest(int.from_bytes(data, "big"), control, output)

    def _send(self, message: Struct) -> None:
        try:
            self._channel.sendall(encode_frame(message))
        except OSError:
            os._exit(0)

    def _settle(self) -> None:
        """Leave the first try's output, and undo what the file may have done to this process's standard ones."""
        sys.stdout.flush()
        sys.stderr.flush()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.close(nothing)

    def _watch_children(self) -> None:
        """Have exits of tries make `_wakeup` readable."""
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, _noticed)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)


def _noticed(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal whose number the wake-up descriptor delivers."""
