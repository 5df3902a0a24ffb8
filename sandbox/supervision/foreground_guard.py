"""Guards a run in the foreground: it ends when its command wants that or is gone, and leaves nothing behind.

    command ──SIGTERM: end it; hangs up: kill it──▶ guard ──fork──▶ the run

The run stays in the process group of the command, which has the terminal, so that its code may ask there, as debuggers
do. Ctrl-C reaches all three: the guard leaves it to the command to say what is to happen, the run begins to clean up.
"""

import os
import select
import signal
import socket
import time
import traceback
from contextlib import suppress

from sandbox.processes import adopt_orphans, die_with, end_all_children

ENDING = (signal.SIGTERM, signal.SIGINT)


def go_on_guarded(command: int, kill_time: float) -> None:
    """Go on in a fork of this process. Returns there only, with SIGTERM and SIGINT held back.

    Args:
        command: Descriptor of a socket that ends with the command.
        kill_time: How long the run may take to end itself, seconds.
    """
    guard = os.getpid()
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    run = os.fork()
    if run == 0:
        die_with(guard)
        return
    status = 1
    try:
        status = _Guard(command, run, kill_time).watch()
    except BaseException:  # noqa: BLE001 - it must not go on as the run, and nothing is to be left of that
        traceback.print_exc()
        end_all_children()
    finally:
        os._exit(status)


class _Guard:
    """Watches a run until it has ended."""

    def __init__(self, command: int, run: int, kill_time: float) -> None:
        self._command = command
        self._run = run
        self._kill_time = kill_time
        self._kill_at: float | None = None
        self._is_ending = False
        self._status = 0
        self._wakeup, self._waker = socket.socketpair()
        for end in (self._wakeup, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # When the terminal is gone, or Ctrl-\\ was pressed, so is the command: that is heard of.
        for number in (signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def watch(self) -> int:
        """Return the run's exit code, as a shell tells it, when no process of it is left."""
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(self._command, 0)  # it is the run that reads there
        while not self._has_ended():
            for descriptor, _ in poll.poll(self._patience()):
                if descriptor == self._command:
                    poll.unregister(descriptor)
                    self._kill()
                elif signal.SIGTERM in self._wakeup.recv(4096):
                    self._end()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
        end_all_children()
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _has_ended(self) -> bool:
        """Reap who has exited: the run, or what it has left behind until now."""
        pid = -1
        while pid not in (0, self._run):
            pid, self._status = os.waitpid(-1, os.WNOHANG)
        return pid == self._run

    def _patience(self) -> float | None:
        """How long nothing is to be done, milliseconds; None for as long as nothing happens."""
        return None if self._kill_at is None else 1000 * max(0.0, self._kill_at - time.monotonic())

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._kill_at = time.monotonic() + self._kill_time
            os.kill(self._run, signal.SIGTERM)

    def _kill(self) -> None:
        self._is_ending, self._kill_at = True, None
        with suppress(ProcessLookupError):
            os.kill(self._run, signal.SIGKILL)
