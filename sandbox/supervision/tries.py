"""All tries of a keeper: gets processes for them, passes on their messages, ends them, and knows how each ended."""

import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asynsched.protocol.frames import MAX_FRAME_BYTES, UNDECODABLE, ProtocolError, encode_frame
from asynsched.protocol.messages import Ended, FailureCause, Kill, Launch, RaisedException, Reply, Request, Started
from asynsched.protocol.secrets import MASK_SECRET, Secrets
from sandbox import processes
from sandbox.processes import is_child, kill_strangers, reason_of
from sandbox.supervision.attempts import AttemptRecords
from sandbox.supervision.reactor import Pipe, Reactor, Timer, Wire
from sandbox.supervision.task_log import TaskLog, environment_secrets
from sandbox.supervision.template_pool import Loss, ReadyProcess, TemplatePool
from sandbox.supervision.zygote_handle import Zygotes

log = logging.getLogger("sandbox.keeper")

FromTry = Started | Request | Ended
MAX_REASON_LENGTH = 1000
MOST_RENDERED = 128 * 1024
"""Characters of the JSON of rendered fields; a try keeps to less."""
MAX_PIPE_BYTES = 1024 * 1024
MAX_REQUESTS = 64
"""How many requests a try may have open; its own code makes one at a time."""
MAX_UNREAD_BYTES = 4 * MAX_FRAME_BYTES
"""The most bytes of answers that a try may leave unread; an interrupted one leaves one answer."""
LONGEST_WAIT = timedelta(days=36_525)
LARGEST_LENGTH = 2**31 - 1
"""Of a result that others are mapped over: the largest number that its column can hold."""
NO_JSON = "its process returned a value that is not valid JSON"
LINGER_SECONDS = 1.0
"""How long a try's process may take to exit after it has reported its end."""
LOST = "the keeper of the task's process died, and the process with it"


class Ending(NamedTuple):
    """Why a try is being ended. The try's own later reports do not change this end, unless it may be caught.

    `may_be_caught`: The try's time is over. As in Airflow, its code may catch this and still succeed, skip itself, or
    go on later.
    """

    reason: str
    cause: FailureCause
    may_be_caught: bool = False


@dataclass(eq=False, slots=True)
class SupervisedTry:
    """One try: its launch, its process, its descriptors, and how far it has come.

    launched ──forked──▶ has a process ──Started──▶ user code runs ──Ended, or exit──▶ ended ──exit──▶ released
    """

    launch: Launch
    log: TaskLog
    secrets: Secrets
    wire: Wire | None = None
    output: Pipe | None = None
    pid: int | None = None
    parent: int | None = None
    started: Started | None = None
    ending: Ending | None = None
    ended: Ended | None = None
    pending: dict[int, Request] = field(default_factory=dict)
    was_lost: bool = False
    _timers: list[Timer] = field(default_factory=list)

    @property
    def token(self) -> str:
        """The try's token."""
        return self.launch.token

    def objection_to(self, request: Request) -> str:
        """Return why a request is not passed on, and its try is to end; empty if it is passed on."""
        if request.request_id in self.pending:
            return f"the task's process sent request {request.request_id} again before it was answered"
        if len(self.pending) >= MAX_REQUESTS:
            return f"the task's process sent more than {MAX_REQUESTS} requests without waiting for an answer"
        if self.wire is not None and self.wire.n_unsent > MAX_UNREAD_BYTES:
            return f"the task's process sent requests and left more than {MAX_UNREAD_BYTES} bytes of answers unread"
        return ""

    def keep_timer(self, timer: Timer) -> None:
        """Cancel this timer when the try goes on, or ends."""
        self._timers.append(timer)

    def cancel_timers(self) -> None:
        """Cancel the timers of this try."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def terminate(self) -> None:
        """Send SIGTERM to the try's processes."""
        assert self.pid is not None
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, signal.SIGTERM)
            except ProcessLookupError:
                # Forked just now, it leads no group yet.
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the try's processes."""
        assert self.pid is not None
        processes.kill_group(self.pid)
        processes.kill(self.pid)

    def drain_output(self) -> None:
        """Write the try's output until now to the log: at most as much as a pipe holds."""
        room = MAX_PIPE_BYTES
        while room > 0 and self.output is not None and (size := self.output.read()):
            room -= size

    def release(self) -> None:
        """Close every descriptor."""
        self.cancel_timers()
        if self.wire is not None:
            self.wire.close()
        if self.output is not None:
            self.output.close()
        self.log.close()

    def final_end(self, said: Ended) -> Ended:
        """Return the end of the try, from its report: the keeper's own reason takes precedence, and secrets are masked.

        A try that took too long may still have asked its retry policy.
        """
        said = believable(said)
        exception = self._masked(said.exception)
        rendered = None if said.rendered_fields is None else masked_fields(said.rendered_fields, self.secrets)
        is_caught = self.ending is not None and self.ending.may_be_caught and said.state != "failed"
        if self.ending is not None and not is_caught:
            ended = Ended(
                self.token,
                "failed",
                said.ended_at,
                started_at=said.started_at,
                reason=self.ending.reason,
                retry=said.retry,
                retry_delay=said.retry_delay,
                cause=self.ending.cause,
                exception=exception,
                rendered_fields=rendered,
            )
        else:
            reason = self.secrets.mask_cut_text(said.reason)[:MAX_REASON_LENGTH]
            # The keeper has not ended it. A SIGTERM from elsewhere is the only other cause that a try can know.
            cause: FailureCause = "machine" if said.cause == "machine" else "task"
            ended = replace(
                said, token=self.token, reason=reason, exception=exception, cause=cause, rendered_fields=rendered
            )
        try:
            encode_frame(ended)
        except ProtocolError as exc:
            # Only code that goes around the try's own limit gets here.
            if self.ending is not None and not is_caught:
                return replace(ended, exception=None, rendered_fields=None)
            return Ended(self.token, "failed", said.ended_at, started_at=said.started_at, reason=str(exc))
        return ended

    def _masked(self, raised: RaisedException | None) -> RaisedException | None:
        if raised is None:
            return None
        mask = self.secrets.mask_cut_text
        arguments = tuple(mask(item) if isinstance(item, str) else item for item in raised.arguments)
        return replace(raised, message=mask(raised.message), arguments=arguments)


def masked_fields(fields: str, secrets: Secrets) -> str | None:
    """Return the JSON of template fields with secrets masked; None if it is none then, as when a number is secret."""
    masked = secrets.mask_cut_text(fields)
    return masked if _is_json(masked.encode()) else None


def plausible(stamp: datetime, now: datetime) -> datetime:
    """Return an instant that a try has stamped, moved into the past, and into the years that databases have."""
    return min(max(stamp, now - LONGEST_WAIT), now)


def believable(said: Ended) -> Ended:
    """Return a try's report of its end, with instants and lengths that are within a scheduler's range."""
    now = datetime.now(UTC)
    started_at = None if said.started_at is None else plausible(said.started_at, now)
    if said.return_value and not _is_json(bytes(said.return_value)):
        return Ended(said.token, "failed", plausible(said.ended_at, now), started_at=started_at, reason=NO_JSON)
    deferral, rendered = said.deferral, said.rendered_fields
    if rendered is not None and not (len(rendered) <= MOST_RENDERED and _is_json(rendered.encode())):
        rendered = None
    return replace(
        said,
        rendered_fields=rendered,
        ended_at=plausible(said.ended_at, now),
        started_at=started_at,
        reschedule_at=None if said.reschedule_at is None else min(said.reschedule_at, now + LONGEST_WAIT),
        retry_delay=_length(said.retry_delay),
        result_length=None if said.result_length is None else min(max(said.result_length, -1), LARGEST_LENGTH),
        deferral=None if deferral is None else replace(deferral, timeout=_length(deferral.timeout)),
    )


def _length(seconds: float | None) -> float | None:
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_WAIT.total_seconds())


def _is_json(data: bytes) -> bool:
    """Return whether bytes are JSON as it is read later; the frame was checked for its outline only."""
    try:
        msgspec.json.decode(data)
    except UNDECODABLE:
        return False
    return True


class TryLimits(NamedTuple):
    """Limits of every try: seconds and bytes."""

    import_timeout: float
    kill_time: float
    log_bytes: int


class SupervisedTries:
    """The tries of a keeper. `report` takes Started, Ended and Request frames for the scheduler."""

    def __init__(
        self, reactor: Reactor, home: Path, zygotes: Zygotes, limits: TryLimits, report: Callable[[Struct], None]
    ) -> None:
        self._reactor = reactor
        self._limits = limits
        self._report = report
        self._logs = home / "logs"
        self._records = AttemptRecords(home / "attempts")
        self._pool = TemplatePool(reactor, zygotes, limits.import_timeout, self)
        self._turns = Turns(self._begin)
        self._secrets = environment_secrets(os.environ)
        self._by_token: dict[str, SupervisedTry] = {}
        self._unreleased: set[SupervisedTry] = set()
        self._by_pid: dict[int, SupervisedTry] = {}
        self._reaped: Collection[int] = ()
        self._looks_for_strangers = False
        self.ends: dict[str, Ended] = {}
        """Ends that the scheduler has not acknowledged."""
        self._recover()

    @property
    def is_idle(self) -> bool:
        """Whether no process of a try is left."""
        return not self._unreleased

    @property
    def live(self) -> list[SupervisedTry]:
        """The tries that have not ended."""
        return list(self._by_token.values())

    def _recover(self) -> None:
        """Take over the ends of an earlier keeper's tries: those that it had running died with it."""
        for attempt, ended in self._records.load():
            if ended is None:
                ended = Ended(attempt.token, "failed", datetime.now(UTC), reason=LOST, cause="machine")
                if attempt.log_path:
                    task_log = self._open_log(attempt.log_path)
                    task_log.say("ERROR", LOST)
                    task_log.close()
                self._records.end(ended)
            self.ends[ended.token] = ended

    def launch(self, launch: Launch, *, refused: str = "") -> None:
        """Start a try, unless its token is known, or report that it is refused, for this reason."""
        if launch.token in self._by_token:
            return
        if launch.token in self.ends:
            self._report(self.ends[launch.token])
            return
        try:
            if refused:
                self._refuse(launch, refused, "interrupted")
                return
            if not self._records.create(launch):
                self._refuse(launch, "an earlier keeper has started this try", "machine")
                return
        except (OSError, ValueError) as exc:
            self._refuse(launch, f"the try could not be written down: {exc}", "machine")
            return
        secrets = Secrets(self._secrets)
        if launch.resume is not None:
            secrets.learn_fields(launch.resume.kwargs)
        supervised = SupervisedTry(launch, self._open_log(launch.log_path, secrets), secrets)
        self._by_token[launch.token] = supervised
        self._unreleased.add(supervised)
        self._turns.wait(supervised)

    def kill(self, kill: Kill) -> None:
        """End a try; an unknown one is ignored."""
        supervised = self._by_token.get(kill.token)
        if supervised is not None:
            self.end(supervised, Ending(kill.reason, kill.cause), kill.grace)

    def end_all(self, reason: str, cause: FailureCause, grace: float) -> None:
        """End every try. A try whose user code has not begun has lost nothing: it is interrupted, not killed."""
        for supervised in self.live:
            has_begun = supervised.started is not None
            self.end(supervised, Ending(reason, cause if has_begun else "interrupted"), grace)

    def end(self, supervised: SupervisedTry, ending: Ending, grace: float) -> None:
        """Send SIGTERM to a try's processes, and SIGKILL when `grace` seconds are over."""
        self._pool.read_news()
        if supervised.ended is not None:
            return
        is_first = supervised.ending is None
        supervised.ending = supervised.ending or ending
        if supervised.pid is None:
            self._pool.withdraw(supervised)
            self._gone(supervised, ending.reason, ending.cause)
            return
        if is_first:
            supervised.log.say("WARNING", f"Ending the task: {ending.reason}")
            supervised.terminate()
        supervised.keep_timer(self._reactor.after(grace, partial(self._kill, supervised)))

    def kill_all(self) -> None:
        """Send SIGKILL to the processes of every try, even if it has reported its end."""
        for supervised in list(self._unreleased):
            self._kill(supervised)

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Forget these ends."""
        known = [token for token in tokens if self.ends.pop(token, None) is not None]
        self._records.forget(known)

    def reply(self, reply: Reply) -> None:
        """Pass on the answer to a request."""
        supervised = self._by_token.get(reply.token)
        request = None if supervised is None else supervised.pending.pop(reply.request_id, None)
        if supervised is None or request is None:
            return
        supervised.secrets.learn(request.operation, request.arguments, reply.value)
        assert supervised.wire is not None
        try:
            supervised.wire.send(reply)
        except ProtocolError as exc:
            supervised.wire.send(Reply(reply.token, reply.request_id, error=str(exc)))

    def reap(self, exits: dict[int, int]) -> None:
        """Note the keeper's children that have exited, templates first, because they know of tries."""
        self._reaped = exits.keys()
        # Some may be templates whose Born was not read yet.
        self._pool.read_news()
        tries = {pid: status for pid, status in exits.items() if not self._pool.ended(pid, status)}
        for pid, status in tries.items():
            self.exited(pid, status)

    def forked(self, supervised: SupervisedTry, process: ReadyProcess, parent: int | None) -> None:
        """The try has this process, which waits for the launch."""
        supervised.pid, supervised.parent = process.pid, parent
        self._by_pid[process.pid] = supervised
        supervised.output = Pipe(self._reactor, process.output, supervised.log.write)
        control = socket.socket(fileno=process.control)
        supervised.wire = Wire(self._reactor, control, FromTry, partial(self._heard, supervised), lambda: None)
        supervised.wire.send(supervised.launch)
        seconds = self._limits.import_timeout
        self._end_after(seconds, supervised, f"the task's code took longer than {seconds:g} s to get ready")

    def has(self, pid: int) -> bool:
        """Whether this is the process of a try."""
        return pid in self._by_pid

    def exited(self, pid: int, status: int, parent: int | None = None) -> None:
        """A child of this parent, or of the keeper, has exited; it may be the process of a try."""
        supervised = self._by_pid.get(pid)
        # A template's message may come from its file, which may name a try of another template.
        if supervised is not None and parent in (None, supervised.parent):
            del self._by_pid[pid]
            self._gone(supervised, *reason_of(status))
        if not self._looks_for_strangers:
            self._looks_for_strangers = True
            self._reactor.after(0.0, self._kill_strangers)

    def lost(self, supervised: SupervisedTry, loss: Loss) -> None:
        """The template that was to fork the try is gone. None of the try's own code has run."""
        if loss.may_retry and not supervised.was_lost:
            supervised.was_lost = True
            self._begin(supervised)
        else:
            self._gone(supervised, loss.reason, loss.cause)

    def orphaned(self, parent: int) -> None:
        """The template that reported exits is gone; the keeper is now the parent of its tries."""
        for pid, supervised in list(self._by_pid.items()):
            if supervised.parent == parent and pid not in self._reaped and not is_child(pid):
                del self._by_pid[pid]
                self._gone(supervised, "its process died together with the one that had loaded its file", "machine")

    def _open_log(self, path: str, secrets: Secrets | None = None) -> TaskLog:
        return TaskLog(self._logs / path, self._limits.log_bytes, self._secrets if secrets is None else secrets)

    def _begin(self, supervised: SupervisedTry) -> None:
        self._pool.assign(supervised, supervised.launch.code)

    def _heard(self, supervised: SupervisedTry, message: FromTry) -> None:
        if supervised.ended is not None:
            return
        if isinstance(message, Ended):
            supervised.drain_output()
            self._finish(supervised, supervised.final_end(message))
        elif isinstance(message, Request):
            self._asked(supervised, replace(message, token=supervised.token))
        elif supervised.started is None:
            started_at = plausible(message.started_at, datetime.now(UTC))
            self._started(supervised, replace(message, token=supervised.token, started_at=started_at))

    def _started(self, supervised: SupervisedTry, started: Started) -> None:
        supervised.started = started
        self._report(started)
        limit = supervised.launch.execution_timeout
        if supervised.ending is None:
            supervised.cancel_timers()
            if limit is not None:
                self._end_after(limit, supervised, supervised.launch.timeout_reason)

    def _end_after(self, seconds: float, supervised: SupervisedTry, reason: str) -> None:
        late = partial(self.end, supervised, Ending(reason, "task", may_be_caught=True), self._limits.kill_time)
        supervised.keep_timer(self._reactor.after(seconds, late))

    def _asked(self, supervised: SupervisedTry, request: Request) -> None:
        if objection := supervised.objection_to(request):
            if supervised.ending is None:
                self.end(supervised, Ending(objection, "task"), self._limits.kill_time)
            return
        if request.operation == MASK_SECRET:
            assert supervised.wire is not None
            error = supervised.secrets.learn_told(request.arguments)
            supervised.wire.send(Reply(supervised.token, request.request_id, error=error))
            return
        supervised.pending[request.request_id] = request
        if request.operation == "trigger_outcomes":
            request = replace(request, arguments=supervised.secrets.mask_outcomes(request.arguments))
        try:
            self._report(request)
        except ProtocolError as exc:
            self.reply(Reply(supervised.token, request.request_id, error=f"{request.operation}: {exc}"))

    def _kill_strangers(self) -> None:
        self._looks_for_strangers = False
        kill_strangers(self._known)

    def _known(self) -> Collection[int]:
        # A process announces itself before it becomes a child of the keeper.
        self._pool.read_news()
        return self._pool.pids | self._by_pid.keys()

    def _kill(self, supervised: SupervisedTry) -> None:
        self._pool.read_news()
        if supervised.pid in self._by_pid:
            supervised.kill()

    def _gone(self, supervised: SupervisedTry, reason: str, cause: FailureCause) -> None:
        """End a try that no longer has a process, with or without its own report."""
        if supervised.wire is not None:
            supervised.wire.read_all()
        supervised.drain_output()
        supervised.log.flush(is_last=True)
        if supervised.ended is None:
            if supervised.ending is not None:
                reason, cause = supervised.ending.reason, supervised.ending.cause
            if cause == "interrupted":
                supervised.log.say("WARNING", f"The try was interrupted, and begins again: {reason}")
            else:
                supervised.log.say("ERROR", f"The task failed: {reason}")
            started_at = None if supervised.started is None else supervised.started.started_at
            now = datetime.now(UTC)
            ended = Ended(supervised.token, "failed", now, started_at=started_at, reason=reason, cause=cause)
            self._finish(supervised, ended)
        supervised.release()
        self._unreleased.remove(supervised)
        self._turns.is_over(supervised)

    def _finish(self, supervised: SupervisedTry, ended: Ended) -> None:
        supervised.ended = ended
        supervised.cancel_timers()
        supervised.keep_timer(self._reactor.after(LINGER_SECONDS, partial(self._kill, supervised)))
        supervised.log.flush()
        del self._by_token[supervised.token]
        self.ends[ended.token] = ended
        try:
            self._records.end(ended)
        except OSError as exc:  # the scheduler is told all the same; only a later keeper would not know
            log.warning("The end of try %s could not be written down: %s", ended.token, exc)
        self._report(ended)

    def _refuse(self, launch: Launch, reason: str, cause: FailureCause) -> None:
        ended = Ended(launch.token, "failed", datetime.now(UTC), reason=reason, cause=cause)
        self.ends[launch.token] = ended
        self._report(ended)


class Launched(Protocol):
    """A try, by its launch."""

    @property
    def launch(self) -> Launch: ...


Try = TypeVar("Try", bound=Launched)


class Turns(Generic[Try]):
    """Runs the tries of each task instance one after the other, in the order in which they were launched.

    A running task may be marked as failed and then cleared: its next try is launched while the try before still has
    time to clean up. The next try waits here until no process of the try before is left.

    Args:
        begin: Starts the next try.
    """

    def __init__(self, begin: Callable[[Try], None]) -> None:
        self._begin = begin
        self._lines: dict[object, deque[Try]] = {}

    def wait(self, launched: Try) -> None:
        """Begin this try as soon as no earlier try of its task instance has processes."""
        line = self._lines.setdefault(_instance(launched.launch), deque())
        line.append(launched)
        if len(line) == 1:
            self._begin(launched)

    def is_over(self, launched: Try) -> None:
        """Begin the next try: no process of this one is left. It may not have had its turn."""
        instance = _instance(launched.launch)
        line = self._lines[instance]
        had_its_turn = line[0] is launched
        line.remove(launched)
        if not line:
            del self._lines[instance]
        elif had_its_turn:
            self._begin(line[0])


def _instance(launch: Launch) -> object:
    """Return the key that the tries of a task instance share; each callback and trigger host has its own."""
    if launch.callback or launch.trigger_host is not None:
        return launch.token
    return launch.run.dag_id, launch.run.run_id, launch.task_id, launch.map_index
