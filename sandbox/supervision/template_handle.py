"""What the keeper knows of one template: its process, its channel, and the processes that it has ready."""

import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from asynsched.protocol.frames import FrameReader, ProtocolError
from asynsched.protocol.messages import CodeVersion
from sandbox.supervision.reactor import Reactor, Timer, Urgency
from sandbox.supervision.zygote_handle import ZygoteHandle
from sandbox.template import FORK, MOST_AT_ONCE, Born, Forked, FromTemplate
from sandbox.zygote import LONE_TRY, TEMPLATE

log = logging.getLogger("sandbox.keeper")

READ_BYTES = 64 * 1024
N_DESCRIPTORS = 2
"""Of each process that is ready."""
MAX_DESCRIPTORS = N_DESCRIPTORS * MOST_AT_ONCE
"""That come at once."""
CLOSE_ON_EXEC = socket.MSG_CMSG_CLOEXEC if sys.platform == "linux" else 0
N_READY = 1
"""Processes that a template has ready beyond those that are wanted: the next try starts without a fork."""


class ReadyProcess(NamedTuple):
    """A process that waits for its launch, with the keeper's ends of its control socket and its output."""

    pid: int
    control: int
    output: int

    def dismiss(self) -> None:
        """Hang up: it exits by itself."""
        os.close(self.control)
        os.close(self.output)


class TemplateHandle:
    """One template. `forget` it when its process is reaped, not earlier: its last words are still to be read.

    Args:
        zygote: Is asked for the process.
        is_lone_try: Whether it becomes a try itself, the first that waits: its process is the one that gets ready.
        on_stillborn: Called when no process has come of what was asked for.
        is_taken: Says whether a process is known as that of somebody else.
        on_message: Takes Born, Loaded and Exited.
        on_ready: Called when a process is ready.
        on_output: Takes what the file writes while it is imported.
    """

    def __init__(
        self,
        reactor: Reactor,
        code: CodeVersion,
        *,
        zygote: ZygoteHandle,
        is_lone_try: bool = False,
        on_stillborn: Callable[["TemplateHandle"], None],
        is_taken: Callable[["TemplateHandle", int], bool],
        on_message: Callable[["TemplateHandle", Any], None],
        on_ready: Callable[["TemplateHandle"], None],
        on_output: Callable[["TemplateHandle", bytes], None],
    ) -> None:
        self.code = code
        self.is_lone_try = is_lone_try
        self.pid: int | None = None
        """Its process, None until that has told of itself."""
        self.used_at = reactor.now()
        self.waiting: deque[int] = deque()
        """Numbers of the tries that have no process yet."""
        self.ready: deque[ReadyProcess] = deque()
        self.is_retired = False
        self.is_late = False
        """Whether it is killed because the import took too long."""
        self.n_bytes = 0
        """Memory that it takes of its own, known once it is loaded."""
        self.timer: Timer | None = None
        """Runs while there is something that it has to do in time."""
        self._reactor = reactor
        self._on_stillborn = partial(on_stillborn, self)
        self._is_taken = partial(is_taken, self)
        self._on_message = partial(on_message, self)
        self._on_ready = partial(on_ready, self)
        self._on_output = partial(on_output, self)
        self._n_asked = 0
        self._reader = FrameReader(FromTemplate)
        self._descriptors: deque[int] = deque()
        self._channel, theirs = socket.socketpair()
        output, their_output = os.pipe()
        try:
            zygote.ask(LONE_TRY if is_lone_try else TEMPLATE, code, theirs.fileno(), their_output)
        except OSError:
            self._channel.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(their_output)
        os.set_blocking(output, False)
        self._channel.setblocking(False)
        self._output: int | None = output
        reactor.watch(self._channel.fileno(), lambda _: self.read(), Urgency.FRAMES)
        reactor.watch(output, lambda _: self.read_output(), Urgency.OUTPUT)

    @property
    def parent(self) -> int | None:
        """The parent of the processes that are ready."""
        return os.getpid() if self.is_lone_try else self.pid

    def ask(self) -> None:
        """Have as many processes forked as tries wait for, and those that are to be ready beyond."""
        if self.is_lone_try:
            return
        wanted = len(self.waiting) + (0 if self.is_retired else N_READY)
        missing = wanted - len(self.ready) - self._n_asked
        if missing > 0:
            # What its socket has no room for is asked for once it has forked; that it is dying, found out when reaped.
            with suppress(OSError):
                self._n_asked += self._channel.send(FORK * missing)

    def retire(self) -> None:
        """Have it end once no try waits for it."""
        self.is_retired = True
        if not self.waiting:
            self._dismiss_ready()
            # Our side only: exits that it has reported already are still to be read.
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it, if it has a process. That is not reaped yet, so the number is its own."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def set_timer(self, seconds: float, late: Callable[[], None]) -> None:
        """Have `late` called after so many seconds, and forget what was to be called before."""
        self.stop_timer()
        self.timer = self._reactor.after(seconds, late)

    def stop_timer(self) -> None:
        """Have nothing called: it has done in time what it had to do."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def hang_up(self) -> None:
        """Listen to it no more, and kill it: whatever it does, it is of no use."""
        self._close_channel()
        if self.pid is None:
            self._on_stillborn()
        elif not self.is_lone_try:
            self.kill()

    def read(self) -> None:
        """Read what it has reported so far."""
        while self._channel.fileno() >= 0:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, READ_BYTES, MAX_DESCRIPTORS, CLOSE_ON_EXEC)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            self._descriptors.extend(descriptors)
            if data:
                self._hear(data)
            else:
                self.hang_up()

    def read_output(self) -> None:
        """Pass on what the file has written while it was imported."""
        while self._output is not None:
            try:
                data = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return
            if data:
                self._on_output(data)
            else:
                self._close_output(self._output)

    def lose_ready(self, pid: int) -> bool:
        """Take note that a process has exited. Returns whether it was one that was ready."""
        for process in self.ready:
            if process.pid == pid:
                process.dismiss()
                self.ready.remove(process)
                return True
        return False

    def forget(self) -> None:
        """Read its last words, and give back every descriptor."""
        self.read()
        self.read_output()
        self.stop_timer()
        self._close_channel()
        self._dismiss_ready()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        if self._output is not None:
            self._close_output(self._output)

    def _hear(self, data: bytes) -> None:
        """Take what it says. The file that it loads may write to the channel, too: that harms no other template."""
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except Exception:
            log.exception("The process that loads a DAG file is ended for what it has said")
            self.hang_up()

    def _take(self, message: Any) -> None:
        if (self.pid is None) != isinstance(message, Born):
            raise ProtocolError("a template is born once, and says nothing before")
        if isinstance(message, Born):
            self.pid = message.pid
            self._on_message(message)
        elif isinstance(message, Forked):
            if len(self._descriptors) < N_DESCRIPTORS:
                raise ProtocolError("a process without its descriptors")
            if not self.is_lone_try and self._is_taken(message.pid):
                raise ProtocolError("a process that is another's")
            self._n_asked -= 1
            # Descriptors arrive in the order of the frames that they came with.
            self.ready.append(ReadyProcess(message.pid, self._descriptors.popleft(), self._descriptors.popleft()))
            self._on_ready()
        else:
            self._on_message(message)

    def _dismiss_ready(self) -> None:
        while self.ready:
            self.ready.popleft().dismiss()

    def _close_output(self, descriptor: int) -> None:
        self._reactor.forget(descriptor)
        os.close(descriptor)
        self._output = None

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()
