"""The keeper's templates: one for each version of a DAG file that is in use, started at its first try.

A file that cannot be forked once it is loaded (it leaves threads or sockets) has no template: each of its tries loads
the file itself.
"""

import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from asynsched.protocol.frames import FrameReader, ProtocolError
from asynsched.protocol.messages import CodeVersion, FailureCause
from sandbox.running.try_outcome import of_status
from sandbox.supervision.reactor import Reactor, Timer, Urgency
from sandbox.supervision.zygote_handle import ZygoteBusy, ZygoteHandle
from sandbox.template import FORK, MOST_AT_ONCE, Born, Exited, Forked, FromTemplate, Loaded
from sandbox.zygote import LONE_TRY, TEMPLATE

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


log = logging.getLogger("sandbox.keeper")

MAX_TEMPLATES = 16
MAX_BYTES = 1024**3
"""Memory that all templates together may take of their own; those that were used least recently go."""
IDLE_SECONDS = 300.0
START_SECONDS = 60.0
"""Longest that a template may take to have a process: another zygote may have to start for it."""
BUSY_SECONDS = 0.1
"""Until a zygote is asked again that has more to do than it can be told."""
REPLACE_SECONDS = 1.0
LONGEST_REPLACE_SECONDS = 60.0
"""Until another zygote is started for one that has died, if none was needed before: they may all die as they start, so
that each waits twice as long as the one before, until one has given a process."""


class Loss(NamedTuple):
    """Why a try has no process: its template is gone."""

    reason: str
    cause: FailureCause
    may_retry: bool


class TryEvents(Protocol):
    """What the pool tells of tries."""

    def forked(self, number: int, process: ReadyProcess, parent: int | None) -> None:
        """This process is the try's. It waits for the launch."""

    def output(self, number: int, data: bytes) -> None:
        """The file has written this while it was imported for the try."""

    def exited(self, pid: int, status: int, parent: int) -> None:
        """A child of this process has exited; a try's, if its process is that."""

    def has(self, pid: int) -> bool:
        """Whether this is known as the process of a try."""

    def lost(self, number: int, loss: Loss) -> None:
        """The template that was to fork the try is gone. None of the try's own code has run."""

    def orphaned(self, parent: int) -> None:
        """The template that reported exits is gone; the keeper is now the parent of its tries."""


class TemplatePool:
    """Gives processes to tries.

    Args:
        zygote: Forks what loads files.
        import_timeout: Longest that a file may take to be loaded, seconds.
    """

    def __init__(self, reactor: Reactor, zygote: ZygoteHandle, import_timeout: float, events: TryEvents) -> None:
        self._reactor = reactor
        self._zygote = zygote
        self._import_timeout = import_timeout
        self._events = events
        self._by_code: dict[CodeVersion, TemplateHandle] = {}
        self._all: dict[TemplateHandle, None] = {}
        self._postponed: dict[int, CodeVersion] = {}
        """Tries that the zygote could not be told of yet."""
        self._unfit: set[CodeVersion] = set()
        self._replace_seconds = REPLACE_SECONDS
        self._replacement: Timer | None = None
        self._reactor.after(IDLE_SECONDS / 5, self._retire_idle)

    @property
    def pids(self) -> frozenset[int]:
        """The processes of the zygote and of templates, and those that wait for a launch."""
        pids = [self._zygote.pid, *(template.pid for template in self._all)]
        ready = (process.pid for template in self._all for process in template.ready)
        return frozenset((*(pid for pid in pids if pid is not None), *ready))

    def assign(self, number: int, code: CodeVersion) -> None:
        """Find a process for a try: `forked` or `lost` is told, perhaps at once."""
        code = _file_version(code)
        try:
            template = self._template_for(code)
        except ZygoteBusy:
            self._postponed[number] = code
            self._reactor.after(BUSY_SECONDS, partial(self._assign_postponed, number))
            return
        except OSError as exc:
            # No descriptor or no process to be had.
            self._events.lost(number, Loss(f"the try could not be started: {exc}", "machine", may_retry=False))
            return
        template.used_at = self._reactor.now()
        template.waiting.append(number)
        if not template.is_lone_try:
            self._match(template)

    def withdraw(self, number: int) -> None:
        """Find no process for this try any more."""
        self._postponed.pop(number, None)
        for template in self._all:
            if number in template.waiting:
                template.waiting.remove(number)

    def read_news(self) -> None:
        """Read what the templates have reported so far."""
        for template in list(self._all):
            template.read()

    def ended(self, pid: int, status: int) -> bool:
        """Take note that a child of the keeper has exited. Returns False when it was the process of a try."""
        if self._zygote.ended(pid):
            self._replace_later()
            return True
        template = next((template for template in self._all if template.pid == pid), None)
        if template is None:
            return False
        reason, cause = of_status(status)
        self._lose(template, Loss(f"importing {_path(template.code)}: {reason}", cause, may_retry=True))
        self._events.orphaned(pid)
        return True

    def _replace_zygote(self) -> None:
        try:
            self._zygote.replace()
        except OSError as exc:
            log.warning("No other zygote can be started: %s", exc)
            self._replace_later()

    def _replace_later(self) -> None:
        if self._replacement is not None:
            self._replacement.cancel()
        self._replacement = self._reactor.after(self._replace_seconds, self._replace_zygote)
        self._replace_seconds = min(2 * self._replace_seconds, LONGEST_REPLACE_SECONDS)

    def _template_for(self, code: CodeVersion) -> TemplateHandle:
        """Return the template of a version, or a new one; for a version that cannot be forked, what becomes a try.

        Raises:
            OSError: None could be started.
        """
        template = self._by_code.get(code)
        if template is not None:
            return template
        is_lone_try = code in self._unfit
        if not is_lone_try:
            self._make_room(for_one_more=True)
        template = TemplateHandle(
            self._reactor,
            code,
            zygote=self._zygote,
            is_lone_try=is_lone_try,
            on_stillborn=self._miss,
            is_taken=self._is_taken,
            on_message=self._heard,
            on_ready=self._match,
            on_output=self._wrote,
        )
        self._all[template] = None
        if not is_lone_try:
            self._by_code[code] = template
        template.set_timer(START_SECONDS, partial(self._give_up, template))
        return template

    def _assign_postponed(self, number: int) -> None:
        code = self._postponed.pop(number, None)
        if code is not None:
            self.assign(number, code)

    def _is_taken(self, template: TemplateHandle, pid: int) -> bool:
        """Whether a process is another's, and no child of this template, whatever the file in it says."""
        if not self._is_known(pid):
            return False
        for other in [other for other in self._all if other is not template]:
            other.read()  # it may have reaped the one that had this number before
        return self._is_known(pid)

    def _is_known(self, pid: int) -> bool:
        return pid in self.pids or self._events.has(pid)

    def _match(self, template: TemplateHandle) -> None:
        """Give processes to tries, have more forked for those that are left, end what is not needed any more."""
        while template.waiting and template.ready:
            self._events.forked(template.waiting.popleft(), template.ready.popleft(), template.parent)
        if template.is_lone_try:
            self._leave(template)
            return
        template.ask()
        if template.is_retired:
            template.retire()

    def _heard(self, template: TemplateHandle, message: Any) -> None:
        if isinstance(message, Exited):
            if not template.lose_ready(message.pid):
                assert template.pid is not None
                self._events.exited(message.pid, message.status, template.pid)
        elif isinstance(message, Born):
            self._replace_seconds = REPLACE_SECONDS
            template.set_timer(self._import_timeout, partial(self._time_out, template))
        elif isinstance(message, Loaded):
            template.read_output()
            template.stop_timer()
            if message.unfit:
                self._unfit.add(template.code)
            if message.is_broken or message.unfit:
                # The next try loads anew: what has failed once may be there then.
                self._set_aside(template)
                template.is_retired = True
            template.n_bytes = message.n_bytes
            self._make_room()
            while message.unfit and template.waiting:
                self.assign(template.waiting.popleft(), template.code)

    def _wrote(self, template: TemplateHandle, data: bytes) -> None:
        if template.waiting:
            self._events.output(template.waiting[0], data)

    def _give_up(self, template: TemplateHandle) -> None:
        """The zygote has not answered in time."""
        template.read()
        if template.pid is None and template in self._all:
            self._zygote.kill()
            template.hang_up()

    def _time_out(self, template: TemplateHandle) -> None:
        template.read()
        if template.timer is None:
            return  # it is loaded since a moment ago
        template.is_late = True
        self._set_aside(template)
        template.kill()

    def _miss(self, template: TemplateHandle) -> None:
        """The zygote has died, or could not fork, before there was a process."""
        self._lose(template, Loss("no process could be had to load its file", "machine", may_retry=True))

    def _lose(self, template: TemplateHandle, loss: Loss) -> None:
        if template.is_late:
            reason = f"{_path(template.code)} took longer than {self._import_timeout:g} s to import"
            loss = Loss(reason, "task", may_retry=False)
        self._leave(template)
        for number in template.waiting:
            self._events.lost(number, loss)

    def _leave(self, template: TemplateHandle) -> None:
        template.forget()
        del self._all[template]
        self._set_aside(template)

    def _make_room(self, *, for_one_more: bool = False) -> None:
        """End templates that no try waits for, the one that was used least recently first, while there are too many."""
        idle = sorted((t for t in self._by_code.values() if not t.waiting), key=lambda t: t.used_at)
        limit = MAX_TEMPLATES - for_one_more
        n_bytes = sum(template.n_bytes for template in self._by_code.values())
        for template in idle:
            if len(self._by_code) <= limit and n_bytes <= MAX_BYTES:
                return
            n_bytes -= template.n_bytes
            self._retire(template)

    def _retire_idle(self) -> None:
        self._reactor.after(IDLE_SECONDS / 5, self._retire_idle)
        limit = self._reactor.now() - IDLE_SECONDS
        for template in list(self._by_code.values()):
            if template.used_at < limit and not template.waiting:
                self._retire(template)

    def _retire(self, template: TemplateHandle) -> None:
        self._set_aside(template)
        template.retire()

    def _set_aside(self, template: TemplateHandle) -> None:
        """Give it no new tries."""
        if self._by_code.get(template.code) is template:
            del self._by_code[template.code]


def _file_version(code: CodeVersion) -> CodeVersion:
    """Return what tells templates apart: the sources alone, so that the DAGs of one file share a template."""
    return CodeVersion("", code.dags_folder, code.sources)


def _path(code: CodeVersion) -> str:
    return code.sources[0].path if code.sources else "the DAG file"
