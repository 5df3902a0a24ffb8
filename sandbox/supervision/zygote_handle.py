"""What the keeper knows of its zygote: asks it for processes, and starts another one when it is gone."""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion
from sandbox.running.warming import warm_fully
from sandbox.supervision.lifeline import Alarm
from sandbox.template import Born, TemplateStart, become_template
from sandbox.zygote import LONE_TRY, ZygoteStart, become_zygote


class ZygoteBusy(OSError):
    """The zygote has more to do than its socket holds."""


class ZygoteHandle:
    """The zygote of now. Make it when the keeper is warm, and has heard of no try yet.

    Where there are no subreapers (not Linux) there is none, and the keeper forks.

    Args:
        lifeline: Reading end of the pipe that ties tries to the keeper.
        alarm: When it rings, the zygote kills the keeper.
        default_timezone: Zone of naive dates in DAG files.
    """

    def __init__(self, home: Path, lifeline: int, alarm: Alarm, default_timezone: str) -> None:
        self._home = home
        self._lifeline = lifeline
        self._alarm = alarm
        self._default_timezone = default_timezone
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
            become_zygote(ZygoteStart(theirs, lifeline, alarm.descriptor, home / "sources", keeper))
        theirs.close()

    def ask(self, kind: bytes, code: CodeVersion, channel: int, output: int) -> None:
        """Ask for a process that loads a version, and is to have these descriptors. It says `Born` on the channel.

        Raises:
            ZygoteBusy: It cannot be asked now.
            OSError: It cannot be asked.
        """
        if sys.platform != "linux":
            self._fork_here(kind, code, channel, output)
            return
        file = os.memfd_create("code")
        try:
            with os.fdopen(os.dup(file), "wb") as writer:
                writer.write(msgspec.json.encode(code))
            descriptors = (channel, output, file)
            try:
                socket.send_fds(self._channel, [kind], descriptors)
            except BlockingIOError as exc:
                raise ZygoteBusy(*exc.args) from exc
            except (BrokenPipeError, ConnectionResetError):
                self._start_anew()
                socket.send_fds(self._channel, [kind], descriptors)
        finally:
            os.close(file)

    def kill(self) -> None:
        """Kill it: it does not do what it was asked for."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def ended(self, pid: int) -> bool:
        """Take note that a child of the keeper was reaped. Returns whether it was the zygote."""
        if pid != self.pid:
            return False
        self.pid = None
        return True

    def replace(self) -> None:
        """Start another one if it is gone: the next template need not wait for it, and it watches over the keeper.

        Raises:
            OSError: None can be started now.
        """
        if self.pid is None and sys.platform == "linux":
            self._start_anew()

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

    def _start_anew(self) -> None:
        """Start another one, which is executed: a fork of the keeper would have the memory of now."""
        self._channel.close()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        command = [
            sys.executable, "-P", "-m", "sandbox.zygote", "--home", str(self._home),
            "--channel", str(theirs.fileno()), "--lifeline", str(self._lifeline),
            "--alarm", str(self._alarm.descriptor), "--keeper", str(os.getpid()),
            "--default-timezone", self._default_timezone,
        ]  # fmt: skip
        given = (theirs.fileno(), self._lifeline, self._alarm.descriptor)
        with theirs:
            for descriptor in given:
                os.set_inheritable(descriptor, True)
            try:
                self.pid = os.posix_spawn(sys.executable, command, os.environ)
            finally:
                for descriptor in given:
                    os.set_inheritable(descriptor, False)
