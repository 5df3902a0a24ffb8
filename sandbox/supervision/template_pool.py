"""The keeper's templates: one for each version of a DAG file that is in use, started at its first try.

A file that cannot be forked once it is loaded (it leaves threads or sockets) has no template: each of its tries loads
the file itself.
"""

import logging
from functools import partial
from typing import Any, NamedTuple, Protocol

from asynsched.protocol.messages import CodeVersion, FailureCause
from sandbox.running.try_outcome import of_status
from sandbox.supervision.reactor import Reactor, Timer
from sandbox.supervision.template_handle import ReadyProcess, TemplateHandle
from sandbox.supervision.zygote_handle import ZygoteBusy, ZygoteHandle
from sandbox.template import Born, Exited, Loaded

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
