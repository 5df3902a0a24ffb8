"""The keeper's templates: one for each version of a DAG file that is in use, started at its first try.

A file that cannot be forked once it is loaded (it leaves threads or sockets) has no template: each of its tries is a
fork of the keeper, which loads the file itself.
"""

import os
import signal
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from sandbox.loading import freeze_heap, load_version
from sandbox.protocol import CodeVersion, FailureCause
from sandbox.reactor import Reactor, Timer
from sandbox.run import TryDescriptors, become_try
from sandbox.template import (
    REQUEST_BYTES,
    Exited,
    Forked,
    ForkRequest,
    FromTemplate,
    Loaded,
    TemplateStart,
    become_template,
    keep_only,
)
from sandbox.try_outcome import of_status
from sandbox.wire import Wire

MAX_TEMPLATES = 16
IDLE_SECONDS = 300.0
MAX_REQUESTS = 32
"""Requests that a template may have before it; so many always fit its socket."""


class Loss(NamedTuple):
    """Why a try has no process: its template is gone."""

    reason: str
    cause: FailureCause
    may_retry: bool


class TryEvents(Protocol):
    """What the pool tells of tries, by their numbers."""

    def forked(self, number: int, pid: int, parent: int) -> None:
        """The try is this process."""

    def exited(self, pid: int, status: int) -> None:
        """The try's process has exited."""

    def lost(self, number: int, parent: int, loss: Loss) -> None:
        """The template that was to fork the try is gone, and the try's descriptors with it."""

    def orphaned(self, parent: int) -> None:
        """The template that reported exits is gone; the keeper is now the parent of its tries."""


class TemplateHandle:
    """What the keeper knows of one template."""

    def __init__(self, code: CodeVersion, pid: int, channel: socket.socket, now: float) -> None:
        self.code = code
        self.pid = pid
        self.channel = channel
        self.wire: Wire | None = None
        self.used_at = now
        self.is_loaded = False
        self.is_retired = False
        self.import_timer: Timer | None = None
        self.waiting: deque[ForkRequest] = deque()
        self.requested: list[int] = []
        self.loss: Loss | None = None

    @property
    def is_busy(self) -> bool:
        """Whether tries wait for it."""
        return bool(self.waiting or self.requested)

    def retire(self) -> None:
        """Have it end as soon as it has nothing to do."""
        self.is_retired = True
        if not self.is_busy:
            # Only our side: exits that it has reported already are still to be read.
            with suppress(OSError):
                self.channel.shutdown(socket.SHUT_WR)


class TemplatePool:
    """Has tries forked.

    Args:
        lifeline: Reading end of the pipe that ties tries to the keeper.
        import_timeout: Longest that a file may take to be loaded, seconds.
    """

    def __init__(
        self, reactor: Reactor, sources_folder: Path, lifeline: int, import_timeout: float, events: TryEvents
    ) -> None:
        self._reactor = reactor
        self._sources_folder = sources_folder
        self._lifeline = lifeline
        self._import_timeout = import_timeout
        self._events = events
        self._by_code: dict[CodeVersion, TemplateHandle] = {}
        self._by_pid: dict[int, TemplateHandle] = {}
        self._unfit: set[CodeVersion] = set()
        self._reactor.after(IDLE_SECONDS, self._retire_idle)

    @property
    def pids(self) -> frozenset[int]:
        """The templates' processes."""
        return frozenset(self._by_pid)

    def fork(self, code: CodeVersion, request: ForkRequest) -> None:
        """Have a try forked. Its descriptors are closed here."""
        code = _file_version(code)
        if code in self._unfit:
            self._fork_alone(code, request)
            return
        template = self._by_code.get(code)
        if template is None:
            self._make_room()
            template = self._start(code)
        template.used_at = self._reactor.now()
        template.waiting.append(request)
        self._pump(template)

    def kill_template_of(self, number: int) -> None:
        """Kill the template that has not forked this try yet; its tries come back as lost."""
        for template in self._by_pid.values():
            if number in template.requested or any(request.number == number for request in template.waiting):
                _kill(template.pid)

    def read_news(self) -> None:
        """Read what the templates have reported so far."""
        for template in list(self._by_pid.values()):
            assert template.wire is not None
            template.wire.read_all()

    def ended(self, pid: int, status: int) -> bool:
        """Take note that a child of the keeper has exited. Returns False when it was no template."""
        template = self._by_pid.pop(pid, None)
        if template is None:
            return False
        assert template.wire is not None
        template.wire.read_all()
        template.wire.close()
        self._forget(template)
        loss = template.loss or _loss(template, status)
        for number in [*template.requested, *self._dropped(template)]:
            self._events.lost(number, pid, loss)
        self._events.orphaned(pid)
        return True

    def _start(self, code: CodeVersion) -> TemplateHandle:
        ours, theirs = socket.socketpair()
        freeze_heap()
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_template(TemplateStart(code, self._sources_folder, theirs, self._lifeline, keeper))
        theirs.close()
        template = TemplateHandle(code, pid, ours, self._reactor.now())
        template.wire = Wire(self._reactor, ours, FromTemplate, partial(self._heard, template), partial(_kill, pid))
        template.import_timer = self._reactor.after(self._import_timeout, partial(self._time_out, template))
        self._by_code[code] = self._by_pid[pid] = template
        return template

    def _fork_alone(self, code: CodeVersion, request: ForkRequest) -> None:
        freeze_heap()
        pid = os.fork()
        if pid == 0:
            keep_only(request.control, request.output, self._lifeline)
            descriptors = TryDescriptors(request.control, request.output, self._lifeline)
            become_try(descriptors, partial(load_version, sources_folder=self._sources_folder))
        _close(request)
        self._events.forked(request.number, pid, os.getpid())

    def _pump(self, template: TemplateHandle) -> None:
        """Send what the template may have before it: until it is loaded, the one try that has it loaded."""
        most = MAX_REQUESTS if template.is_loaded else 1
        while template.waiting and len(template.requested) < most:
            request = template.waiting.popleft()
            template.requested.append(request.number)
            data = request.number.to_bytes(REQUEST_BYTES, "big")
            try:
                socket.send_fds(template.channel, [data], [request.control, request.output])
            except OSError:
                # It is dying: `ended` will give the try back as lost.
                template.is_retired = True
            _close(request)
        if template.is_retired:
            template.retire()

    def _heard(self, template: TemplateHandle, message: Loaded | Forked | Exited) -> None:
        if isinstance(message, Loaded):
            self._loaded(template, message)
        elif isinstance(message, Forked):
            template.requested.remove(message.number)
            self._events.forked(message.number, message.pid, template.pid)
            self._pump(template)
        else:
            self._events.exited(message.pid, message.status)

    def _loaded(self, template: TemplateHandle, message: Loaded) -> None:
        template.is_loaded = True
        if template.import_timer is not None:
            template.import_timer.cancel()
        if message.is_broken or message.unfit:
            # The next try loads anew: what has failed once may be there then.
            self._forget(template)
            template.is_retired = True
        if message.unfit:
            self._unfit.add(template.code)
            template.loss = Loss(f"the file cannot be forked: {message.unfit}", "machine", may_retry=True)
            requests, template.waiting = template.waiting, deque()
            for request in requests:
                self._fork_alone(template.code, request)
        else:
            self._pump(template)

    def _time_out(self, template: TemplateHandle) -> None:
        reason = f"{_path(template.code)} took longer than {self._import_timeout:g} s to import"
        template.loss = Loss(reason, "task", may_retry=False)
        self._forget(template)
        _kill(template.pid)

    def _make_room(self) -> None:
        idle = sorted((t for t in self._by_code.values() if not t.is_busy), key=lambda t: t.used_at)
        for template in idle[: max(0, len(self._by_code) - MAX_TEMPLATES + 1)]:
            self._retire(template)

    def _retire_idle(self) -> None:
        self._reactor.after(IDLE_SECONDS / 5, self._retire_idle)
        limit = self._reactor.now() - IDLE_SECONDS
        for template in list(self._by_code.values()):
            if template.used_at < limit and not template.is_busy:
                self._retire(template)

    def _retire(self, template: TemplateHandle) -> None:
        self._forget(template)
        template.retire()

    def _forget(self, template: TemplateHandle) -> None:
        if template.import_timer is not None:
            template.import_timer.cancel()
        if self._by_code.get(template.code) is template:
            del self._by_code[template.code]

    def _dropped(self, template: TemplateHandle) -> Iterator[int]:
        for request in template.waiting:
            _close(request)
            yield request.number


def _file_version(code: CodeVersion) -> CodeVersion:
    """Return what tells templates apart: the sources alone, so that the DAGs of one file share a template."""
    return CodeVersion("", code.dags_folder, code.sources)


def _loss(template: TemplateHandle, status: int) -> Loss:
    reason, cause = of_status(status)
    return Loss(f"importing {_path(template.code)}: {reason}", cause, may_retry=True)


def _path(code: CodeVersion) -> str:
    return code.sources[0].path if code.sources else "the DAG file"


def _close(request: ForkRequest) -> None:
    os.close(request.control)
    os.close(request.output)


def _kill(template: int) -> None:
    """Kill a template. It is a child that is not reaped yet, so the number is its own."""
    with suppress(ProcessLookupError):
        os.kill(template, signal.SIGKILL)
