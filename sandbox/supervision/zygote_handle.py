"""The keeper's side of its zygotes: it asks them for templates, and starts another one when one is gone."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion
from sandbox import processes
from sandbox.supervision.lifeline import Alarm
from sandbox.template import Born, TemplateStart, become_template
from sandbox.zygote import LONE_TRY, Errand, ZygoteStart, become_zygote, given_alarm, warm_fully


class ZygoteBusy(OSError):
    """The zygote has more to do than its socket holds."""


class ZygoteHandle:
    """The keeper's side of a zygote: asks it for processes, and starts another one when it is gone.

    Make it when the keeper is warm and has heard of no try yet. Where there are no subreapers (not Linux) there is no
    zygote, and the keeper forks. `lifeline` is the reading end of the pipe that ties tries to the keeper; when the
    alarm rings, the zygote kills the keeper. `user_code` are options of the zygote that say how DAG files are read.
    """

    def __init__(
        self, home: Path, lifeline: int, alarm: Alarm | None, user_code: Sequence[str], *, is_plain: bool
    ) -> None:
        self._home = home
        self._lifeline = lifeline
        self._alarm = None if alarm is None else alarm.descriptor
        self._user_code = user_code
        self._is_plain = is_plain
        self.pid: int | None = None
        """Its process, None when it is known to be gone."""
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        if sys.platform != "linux":
            warm_fully()
            return
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            become_zygote(ZygoteStart(theirs, lifeline, self._alarm, home / "sources", keeper, is_plain))
        theirs.close()

    def ask(self, kind: bytes, code: CodeVersion, channel: int, output: int) -> None:
        """Ask for a process that loads a version and gets these descriptors. It says `Born` on the channel.

        Raises ZygoteBusy if it cannot be asked now, and OSError if it cannot be asked.
        """
        if sys.platform != "linux":
            self._fork_here(kind, code, channel, output)
            return
        with os.fdopen(os.memfd_create("code"), "wb", buffering=0) as file:
            file.write(msgspec.json.encode(code))
            errand = Errand(channel, output, file.fileno())
            try:
                socket.send_fds(self._channel, [kind], errand)
            except BlockingIOError as exc:
                raise ZygoteBusy(*exc.args) from exc
            except (BrokenPipeError, ConnectionResetError):
                self._execute()
                socket.send_fds(self._channel, [kind], errand)

    def kill(self) -> None:
        """Kill the zygote, which has failed to answer a request."""
        if self.pid is not None:
            processes.kill(self.pid)

    def ended(self, pid: int) -> bool:
        """Take note that a child of the keeper was reaped. Returns whether it was the zygote."""
        if pid != self.pid:
            return False
        self.pid = None
        return True

    def replace(self) -> None:
        """Start another one if it is gone: the next template need not wait for it, and it watches over the keeper.

        Raises OSError if none can be started now.
        """
        if self.pid is None and sys.platform == "linux":
            self._execute()

    def _fork_here(self, kind: bytes, code: CodeVersion, channel: int, output: int) -> None:
        keeper = os.getpid()
        if os.fork() == 0:
            try:
                ours = socket.socket(fileno=channel)
                ours.sendall(encode_frame(Born(os.getpid())))
                sources = self._home / "sources"
                is_lone_try = kind == LONE_TRY
                become_template(TemplateStart(code, sources, ours, output, self._lifeline, keeper, is_lone_try))
            finally:
                os._exit(1)

    def _execute(self) -> None:
        self._channel.close()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        given = (theirs.fileno(), self._lifeline, *given_alarm(self._alarm))
        command = [
            sys.executable, "-P", "-m", "sandbox.zygote", "--home", str(self._home),
            "--channel", str(theirs.fileno()), "--lifeline", str(self._lifeline),
            "--keeper", str(os.getpid()), *self._user_code,
            *(["--plain"] if self._is_plain else []),
            *([] if self._alarm is None else ["--alarm", str(self._alarm)]),
        ]  # fmt: skip
        with theirs:
            for descriptor in given:
                os.set_inheritable(descriptor, True)
            try:
                self.pid = os.posix_spawn(sys.executable, command, os.environ)
            finally:
                for descriptor in given:
                    os.set_inheritable(descriptor, False)


class Zygotes(NamedTuple):
    """Both zygotes of a keeper."""

    plain: ZygoteHandle
    full: ZygoteHandle

    def of(self, code: CodeVersion) -> ZygoteHandle:
        """Return the one that forks the template of a version."""
        return self.plain if code.is_plain or not code.sources else self.full
