"""The keeper's state of one try, and its checks of the try's own messages.

User code shares the process of a try, and may have written anything that is a frame. Ordinary tries say nothing that is
changed here but dates and lengths that no date arithmetic can handle.
"""

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from asynsched.protocol.frames import MAX_FRAME_BYTES, UNDECODABLE, ProtocolError, encode_frame
from asynsched.protocol.messages import Ended, FailureCause, Launch, RaisedException, Request, Started
from sandbox import processes
from sandbox.supervision.masking import Secrets
from sandbox.supervision.reactor import Reactor, Timer, Urgency, Wire
from sandbox.supervision.task_log import TaskLog

READ_BYTES = 256 * 1024
MAX_REASON_LENGTH = 1000
MAX_PIPE_BYTES = 1024 * 1024
MAX_REQUESTS = 64
"""How many requests a try may have open; its own code makes one at a time."""
MAX_UNREAD_BYTES = 4 * MAX_FRAME_BYTES
"""The most bytes of answers that a try may leave unread; an interrupted one leaves one answer."""
LONGEST_WAIT = timedelta(days=36_525)
LARGEST_LENGTH = 2**31 - 1
"""Of a result that others are mapped over: the largest number that its column can hold."""
NO_JSON = "its process returned a value that is not valid JSON"


class Ending(NamedTuple):
    """Why a try is being ended. The try's own later reports do not change this end."""

    reason: str
    cause: FailureCause


class SupervisedTry:
    """One try: its launch, its process, its descriptors, and how far it has come.

    launched ──forked──▶ has a process ──Started──▶ user code runs ──Ended, or exit──▶ ended ──exit──▶ released
    """

    def __init__(self, reactor: Reactor, number: int, launch: Launch, log: TaskLog, secrets: Secrets) -> None:
        self.number = number
        self.launch = launch
        self.log = log
        self.secrets = secrets
        self.wire: Wire | None = None
        self.pid: int | None = None
        self.parent: int | None = None
        self.started: Started | None = None
        self.ending: Ending | None = None
        self.ended: Ended | None = None
        self.pending: dict[int, Request] = {}
        self.was_lost = False
        self._reactor = reactor
        self._output: int | None = None
        self._timers: list[Timer] = []

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

    def watch_output(self, descriptor: int) -> None:
        """Write the try's output on this pipe to the log."""
        os.set_blocking(descriptor, False)
        self._output = descriptor
        self._reactor.watch(descriptor, lambda _: self._read_output(), Urgency.OUTPUT)

    def drain_output(self) -> None:
        """Write the try's output until now to the log: at most as much as a pipe holds."""
        room = MAX_PIPE_BYTES
        while room > 0 and (size := self._read_output()):
            room -= size

    def release(self) -> None:
        """Close every descriptor."""
        self.cancel_timers()
        if self.wire is not None:
            self.wire.close()
        self._close_output()
        self.log.close()

    def settled(self, said: Ended) -> Ended:
        """Return the end of the try, from its report: the keeper's own reason takes precedence, and secrets are masked.

        A try that took too long may still have asked its retry policy.
        """
        said = believable(said)
        exception = self._masked(said.exception)
        if self.ending is not None:
            return Ended(
                self.token,
                "failed",
                said.ended_at,
                started_at=said.started_at,
                reason=self.ending.reason,
                retry=said.retry,
                retry_delay=said.retry_delay,
                cause=self.ending.cause,
                exception=exception,
            )
        reason = self.secrets.mask_text(said.reason)[:MAX_REASON_LENGTH]
        # The keeper has not ended it. A SIGTERM from elsewhere is the only other cause that a try can know.
        cause: FailureCause = "machine" if said.cause == "machine" else "task"
        ended = replace(said, token=self.token, reason=reason, exception=exception, cause=cause)
        try:
            encode_frame(ended)
        except ProtocolError as exc:
            # Only code that goes around the try's own limit gets here.
            return Ended(self.token, "failed", said.ended_at, started_at=said.started_at, reason=str(exc))
        return ended

    def _read_output(self) -> int:
        """Write some of the try's output to the log, and return the number of bytes."""
        if self._output is None:
            return 0
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self.log.write(data)
        else:
            self._close_output()
        return len(data)

    def _close_output(self) -> None:
        if self._output is not None:
            self._reactor.forget(self._output)
            os.close(self._output)
            self._output = None

    def _masked(self, raised: RaisedException | None) -> RaisedException | None:
        if raised is None:
            return None
        mask = self.secrets.mask_text
        arguments = tuple(mask(item) if isinstance(item, str) else item for item in raised.arguments)
        return replace(raised, message=mask(raised.message), arguments=arguments)


def plausible(stamp: datetime, now: datetime) -> datetime:
    """Return an instant that a try has stamped, moved into the past, and into the years that databases have."""
    return min(max(stamp, now - LONGEST_WAIT), now)


def believable(said: Ended) -> Ended:
    """Return a try's report of its end, with instants and lengths that are within a scheduler's range."""
    now = datetime.now(UTC)
    started_at = None if said.started_at is None else plausible(said.started_at, now)
    if said.return_value and not _is_json(bytes(said.return_value)):
        return Ended(said.token, "failed", plausible(said.ended_at, now), started_at=started_at, reason=NO_JSON)
    deferral = said.deferral
    return replace(
        said,
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
