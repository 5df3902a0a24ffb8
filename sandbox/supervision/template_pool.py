"""The keeper's templates: one for each version of a DAG file that is in use, started at its first try.

A template has one process ready beyond those that tries wait for, so that the next try starts without a fork: the hop
between two tasks takes nine tenths of the time, and a quarter more tasks run in a second.

A file that cannot be forked once it is loaded (it leaves threads or sockets) has no template: each of its tries loads
the file itself.
"""

import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from asynsched.airflow.installation import while_loading
from asynsched.protocol.frames import FrameReader, ProtocolError
from asynsched.protocol.messages import CodeVersion, FailureCause
from sandbox import processes
from sandbox.processes import reason_of
from sandbox.supervision.reactor import Pipe, Reactor, Timer, Urgency
from sandbox.supervision.zygote_handle import ZygoteBusy, ZygoteHandle, Zygotes
from sandbox.template import FORK, MOST_AT_ONCE, Born, Exited, Forked, FromTemplate, Loaded, LoadingPlugin
from sandbox.zygote import LONE_TRY, TEMPLATE

if TYPE_CHECKING:
    from sandbox.supervision.tries import SupervisedTries, SupervisedTry

log = logging.getLogger("sandbox.keeper")

MAX_TEMPLATES = 16
MAX_BYTES = 1024**3
"""How much private memory all templates together may take; beyond it, the least recently used ones are ended."""
IDLE_SECONDS = 300.0
START_SECONDS = 60.0
"""How long a template may take to get a process: another zygote may have to start for it."""
FULL_START_SECONDS = 20.0
"""The same for a template that the full zygote is asked for: its imports may hang, but the plain one can stand in."""
STAND_IN_SECONDS = 60.0
"""How long the plain zygote stands in for a full zygote that has given no process. Tasks import what they need then."""
BUSY_SECONDS = 0.1
"""How long to wait before asking a zygote again that could take no more requests (`ZygoteBusy`)."""
REPLACE_SECONDS = 1.0
LONGEST_REPLACE_SECONDS = 60.0
"""Until another zygote is started for one that has died, if none was needed before: they may all die as they start, so
each waits twice as long as the one before, until one has given a process or lived for longer than the longest wait."""
N_READY = 1
"""How many processes a template keeps ready, beyond those for which tries wait."""
READ_BYTES = 64 * 1024
N_DESCRIPTORS = 2
"""Of each process that is ready."""
CLOSE_ON_EXEC = socket.MSG_CMSG_CLOEXEC if sys.platform == "linux" else 0


class Loss(NamedTuple):
    """Why a try has no process: its template is gone."""

    reason: str
    cause: FailureCause
    may_retry: bool


class ReadyProcess(NamedTuple):
    """A process that waits for its launch, with the keeper's ends of its control socket and its output."""

    pid: int
    control: int
    output: int

    def dismiss(self) -> None:
        """Hang up, on which the process exits by itself."""
        os.close(self.control)
        os.close(self.output)


class TemplatePool:
    """Gives processes to tries, and tells `events` of them. Loading a file may take `import_timeout` seconds."""

    def __init__(self, reactor: Reactor, zygotes: Zygotes, import_timeout: float, events: "SupervisedTries") -> None:
        self._reactor = reactor
        self._zygotes = zygotes
        self._import_timeout = import_timeout
        self._events = events
        self._by_code: dict[CodeVersion, TemplateHandle] = {}
        self._all: dict[TemplateHandle, None] = {}
        self._postponed: dict[SupervisedTry, Timer] = {}
        """Tries for which a zygote could not be asked yet."""
        self._unfit: set[CodeVersion] = set()
        self._replace_seconds: dict[ZygoteHandle, float] = {}
        """How long each zygote's next replacement waits, if one has died since it last gave a process."""
        self._started_at = dict.fromkeys(zygotes, reactor.now())
        """When each zygote was last started, as far as this pool has started it."""
        self._plain_until = reactor.now()
        """Until when the plain zygote stands in for the full one."""
        self._reactor.after(IDLE_SECONDS / 5, self._retire_idle)

    @property
    def pids(self) -> frozenset[int]:
        """The processes of zygotes and templates, and those that wait for a launch."""
        pids = [*(zygote.pid for zygote in self._zygotes), *(template.pid for template in self._all)]
        ready = (process.pid for template in self._all for process in template.ready)
        return frozenset((*(pid for pid in pids if pid is not None), *ready))

    def assign(self, supervised: "SupervisedTry", code: CodeVersion) -> None:
        """Find a process for a try: calls `forked` or `lost` with the outcome, perhaps at once."""
        self._postponed.pop(supervised, None)
        code = replace(code, version_hash="")  # the DAGs of one file share a template
        try:
            template = self._template_for(code)
        except ZygoteBusy:
            self._postponed[supervised] = self._reactor.after(BUSY_SECONDS, partial(self.assign, supervised, code))
            return
        except OSError as exc:
            # The limit of descriptors or of processes is reached.
            self._events.lost(supervised, Loss(f"the try could not be started: {exc}", "machine", may_retry=False))
            return
        template.used_at = self._reactor.now()
        template.waiting.append(supervised)
        if not template.is_lone_try:
            self.match(template)

    def withdraw(self, supervised: "SupervisedTry") -> None:
        """Stop looking for a process for this try."""
        if (timer := self._postponed.pop(supervised, None)) is not None:
            timer.cancel()
        for template in self._all:
            if supervised in template.waiting:
                template.waiting.remove(supervised)

    def read_news(self) -> None:
        """Read the reports of all templates so far."""
        for template in list(self._all):
            template.read()

    def ended(self, pid: int, status: int) -> bool:
        """Note that a child of the keeper has exited. Returns False if it was the process of a try."""
        for zygote in self._zygotes:
            if zygote.ended(pid):
                if self._reactor.now() > self._started_at[zygote] + LONGEST_REPLACE_SECONDS:
                    self._replace_seconds.pop(zygote, None)  # it did not die as it started
                self._replace_later(zygote)
                return True
        template = next((template for template in self._all if template.pid == pid), None)
        if template is None:
            return False
        reason, cause = reason_of(status)
        template.read()
        what = f"importing {_path(template.code)}{template.loading}"
        self._lose(template, Loss(f"{what}: {reason}", cause, may_retry=True))
        self._events.orphaned(pid)
        return True

    def match(self, template: "TemplateHandle") -> None:
        """Give ready processes to tries, ask for as many as are missing, and end unneeded templates."""
        while template.waiting and template.ready:
            self._events.forked(template.waiting.popleft(), template.ready.popleft(), template.parent)
        if template.is_lone_try:
            self._leave(template)
            return
        template.ask()
        if template.is_retired:
            template.retire()

    def heard(self, template: "TemplateHandle", message: Born | Loaded | Exited) -> None:
        """Handle a template's message."""
        if isinstance(message, Exited):
            if not template.lose_ready(message.pid):
                assert template.pid is not None
                self._events.exited(message.pid, message.status, template.pid)
        elif isinstance(message, Born):
            self._replace_seconds.pop(template.zygote, None)
            template.set_timer(self._import_timeout, partial(self._time_out, template))
        else:
            self._loaded(template, message)

    def wrote(self, template: "TemplateHandle", data: bytes) -> None:
        """Pass the output of a file's import to the try that waits for the import."""
        if template.waiting:
            template.waiting[0].log.write(data)

    def is_taken(self, template: "TemplateHandle", pid: int) -> bool:
        """Whether a process belongs to another template or try, even if this template claims it as its child."""
        if pid == os.getpid():
            return True
        if not self._is_known(pid):
            return False
        for other in [other for other in self._all if other is not template]:
            other.read()  # it may have reaped the one that had this number before
        return self._is_known(pid)

    def missed(self, template: "TemplateHandle") -> None:
        """Give up a template that has no process: its zygote has died, hangs, or could not fork."""
        if template.zygote is self._zygotes.full:
            self._stand_in(f"it gave no process to load {_path(template.code)}")
        self._lose(template, Loss("no process could be started to load its file", "machine", may_retry=True))

    def _is_known(self, pid: int) -> bool:
        return pid in self.pids or self._events.has(pid)

    def _replace(self, zygote: ZygoteHandle) -> None:
        try:
            zygote.replace()
        except OSError as exc:
            log.warning("No other zygote can be started: %s", exc)
            self._replace_later(zygote)
        else:
            self._started_at[zygote] = self._reactor.now()

    def _replace_later(self, zygote: ZygoteHandle) -> None:
        seconds = self._replace_seconds.get(zygote, REPLACE_SECONDS)
        self._reactor.after(seconds, partial(self._replace, zygote))
        self._replace_seconds[zygote] = min(2 * seconds, LONGEST_REPLACE_SECONDS)

    def _template_for(self, code: CodeVersion) -> "TemplateHandle":
        """Return the template of a version, or a new one; for a version that cannot be forked, one that becomes a try.

        Raises OSError if none could be started.
        """
        template = self._by_code.get(code)
        if template is not None:
            return template
        is_lone_try = code in self._unfit
        if not is_lone_try:
            self._make_room(for_one_more=True)
        template = self._asked_for(code, is_lone_try=is_lone_try)
        self._all[template] = None
        if not is_lone_try:
            self._by_code[code] = template
        seconds = FULL_START_SECONDS if template.zygote is self._zygotes.full else START_SECONDS
        template.set_timer(seconds, partial(self._give_up, template))
        return template

    def _asked_for(self, code: CodeVersion, *, is_lone_try: bool) -> "TemplateHandle":
        """Ask a zygote for a template: the plain one if the full one cannot be asked. Raises OSError."""
        zygote = self._zygotes.of(code)
        if zygote is self._zygotes.full and self._reactor.now() >= self._plain_until:
            try:
                return TemplateHandle(self, self._reactor, zygote, code, is_lone_try=is_lone_try)
            except ZygoteBusy:
                raise
            except OSError as exc:
                self._stand_in(str(exc))
        return TemplateHandle(self, self._reactor, self._zygotes.plain, code, is_lone_try=is_lone_try)

    def _stand_in(self, reason: str) -> None:
        """Ask the plain zygote instead of the full one for a while."""
        now = self._reactor.now()
        if now >= self._plain_until:
            self._plain_until = now + STAND_IN_SECONDS
            log.error(
                "The plain zygote stands in for the full zygote for %g s, and tasks import what they need: %s",
                STAND_IN_SECONDS,
                reason,
            )

    def _loaded(self, template: "TemplateHandle", message: Loaded) -> None:
        template.read_output()
        template.stop_timer()
        if message.unfit:
            self._unfit.add(template.code)
        if message.is_broken or message.unfit:
            # The next try loads the file again: it may succeed then.
            self._set_aside(template)
            template.is_retired = True
        template.n_bytes = message.n_bytes
        self._make_room()
        while message.unfit and template.waiting:
            self.assign(template.waiting.popleft(), template.code)

    def _give_up(self, template: "TemplateHandle") -> None:
        """The zygote has not answered in time."""
        template.read()
        if template.pid is None and template in self._all:
            template.zygote.kill()
            template.hang_up()

    def _time_out(self, template: "TemplateHandle") -> None:
        template.read()
        if template.timer is None:
            return  # it is loaded since a moment ago
        template.is_late = True
        self._set_aside(template)
        template.kill()

    def _lose(self, template: "TemplateHandle", loss: Loss) -> None:
        if template.is_late:
            seconds = f"{self._import_timeout:g} s"
            reason = f"{_path(template.code)} took longer than {seconds} to import{template.loading}"
            loss = Loss(reason, "task", may_retry=False)
        self._leave(template)
        for supervised in template.waiting:
            self._events.lost(supervised, loss)

    def _leave(self, template: "TemplateHandle") -> None:
        template.forget()
        del self._all[template]
        self._set_aside(template)

    def _make_room(self, *, for_one_more: bool = False) -> None:
        """End templates that no try waits for, the one that was used least recently first, while there are too many."""
        idle = sorted((t for t in self._by_code.values() if not t.waiting), key=lambda t: t.used_at)
        n_bytes = sum(template.n_bytes for template in self._by_code.values())
        for template in idle:
            if len(self._by_code) <= MAX_TEMPLATES - for_one_more and n_bytes <= MAX_BYTES:
                return
            n_bytes -= template.n_bytes
            self._retire(template)

    def _retire_idle(self) -> None:
        self._reactor.after(IDLE_SECONDS / 5, self._retire_idle)
        limit = self._reactor.now() - IDLE_SECONDS
        for template in list(self._by_code.values()):
            if template.used_at < limit and not template.waiting:
                self._retire(template)

    def _retire(self, template: "TemplateHandle") -> None:
        self._set_aside(template)
        template.retire()

    def _set_aside(self, template: "TemplateHandle") -> None:
        """Give the template no new tries."""
        if self._by_code.get(template.code) is template:
            del self._by_code[template.code]


class TemplateHandle:
    """One template: its process, its channel, and its processes that wait for a launch.

    `forget` it when its process is reaped, not earlier: its last words are still to be read. One that `is_lone_try`
    becomes a try itself, the first that waits: its process is the one that gets ready.
    """

    def __init__(
        self, pool: TemplatePool, reactor: Reactor, zygote: ZygoteHandle, code: CodeVersion, *, is_lone_try: bool
    ) -> None:
        self.zygote = zygote
        self.code = code
        self.is_lone_try = is_lone_try
        self.pid: int | None = None
        """Its process, None until that has said Born."""
        self.used_at = reactor.now()
        self.waiting: deque[SupervisedTry] = deque()
        self.ready: deque[ReadyProcess] = deque()
        self.is_retired = False
        self.is_late = False
        """Whether it is killed because the import took too long."""
        self.loading = ""
        """While its plugins are loaded: which one, for messages."""
        self.n_bytes = 0
        """Memory that it takes of its own, known once it is loaded."""
        self.timer: Timer | None = None
        """Runs while there is something that it has to do in time."""
        self._pool = pool
        self._reactor = reactor
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
        self._channel.setblocking(False)
        self._output = Pipe(reactor, output, partial(pool.wrote, self))
        reactor.watch(self._channel.fileno(), lambda _: self.read(), Urgency.FRAMES)

    @property
    def parent(self) -> int | None:
        """The parent of the processes that are ready."""
        return os.getpid() if self.is_lone_try else self.pid

    def ask(self) -> None:
        """Ask for as many processes as tries wait for, and for the ones to keep ready beyond these."""
        wanted = len(self.waiting) + (0 if self.is_retired else N_READY)
        missing = wanted - len(self.ready) - self._n_asked
        if missing > 0:
            # When its socket is full, the rest is asked for once it has forked; a dying one is noticed when reaped.
            with suppress(OSError):
                self._n_asked += self._channel.send(FORK * missing)

    def retire(self) -> None:
        """End the template once no try waits for it."""
        self.is_retired = True
        if not self.waiting:
            self._dismiss_ready()
            # Our side only: exits that it has reported already are still to be read.
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the template's process, if it has one: it is not reaped yet, so the number is its own."""
        if self.pid is not None:
            processes.kill(self.pid)

    def set_timer(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` after that many seconds, and cancel the earlier timer."""
        self.stop_timer()
        self.timer = self._reactor.after(seconds, late)

    def stop_timer(self) -> None:
        """Cancel the timer: the template was in time."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def hang_up(self) -> None:
        """Stop listening to the template, and kill it."""
        self._close_channel()
        if self.pid is None:
            self._pool.missed(self)
        elif not self.is_lone_try:
            self.kill()

    def read(self) -> None:
        """Read the template's reports so far."""
        while self._channel.fileno() >= 0:
            most = N_DESCRIPTORS * MOST_AT_ONCE
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, READ_BYTES, most, CLOSE_ON_EXEC)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            self._descriptors.extend(descriptors)
            if not data:
                self.hang_up()
                return
            # The file that it loads may write to the channel, too: that harms no other template.
            try:
                for message in self._reader.feed(data):
                    self._take(message)
            except Exception:
                log.exception("The process that loads a DAG file is ended because of an invalid message")
                self.hang_up()

    def read_output(self) -> None:
        """Pass on the output of the file's import."""
        while self._output.read():
            pass

    def lose_ready(self, pid: int) -> bool:
        """Note that a process has exited. Returns whether it was a ready one."""
        for process in self.ready:
            if process.pid == pid:
                process.dismiss()
                self.ready.remove(process)
                return True
        return False

    def forget(self) -> None:
        """Read the template's last messages, and close every descriptor."""
        self.read()
        self.read_output()
        self.stop_timer()
        self._close_channel()
        self._dismiss_ready()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._output.close()

    def _take(self, message: Any) -> None:
        if (self.pid is None) != isinstance(message, Born):
            raise ProtocolError("a template is born once, and says nothing before")
        if isinstance(message, Born):
            self.pid = message.pid
        if isinstance(message, LoadingPlugin):
            self.loading = while_loading(message.source)
            return
        if not isinstance(message, Forked):
            self._pool.heard(self, message)
            return
        if len(self._descriptors) < N_DESCRIPTORS:
            raise ProtocolError("a process without its descriptors")
        if not self.is_lone_try and self._pool.is_taken(self, message.pid):
            raise ProtocolError("a process that is another's")
        self._n_asked -= 1
        # Descriptors arrive in the order of the frames that they came with.
        self.ready.append(ReadyProcess(message.pid, self._descriptors.popleft(), self._descriptors.popleft()))
        self._pool.match(self)

    def _dismiss_ready(self) -> None:
        while self.ready:
            self.ready.popleft().dismiss()

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()


def _path(code: CodeVersion) -> str:
    return code.sources[0].path if code.sources else "the DAG file"
