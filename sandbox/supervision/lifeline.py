"""What ties the processes of tries to their keeper: when it dies, however it dies, the kernel kills them.

PR_SET_PDEATHSIG does not do here, because a try's parent is its template, which may end before it. So the keeper holds
the only writing end of a pipe. For each try the reading end is opened anew, and the kernel is asked to signal the try's
process group when something happens to it; the one thing that ever happens is that the keeper is gone.

What has left the try's group is found by its environment, which names the keeper, when the next keeper of the home
starts.
"""

import fcntl
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from asynsched.protocol.home_files import KEEPER_MARK
from sandbox.confinement import kernel

SWEEP_SECONDS = 5.0
SWEEP_PAUSE_SECONDS = 0.01


def make_tie(reading_end: int) -> int:
    """Return a descriptor that one process can be tied to the keeper with.

    It is made before the fork: a process that is new would have the kernel make what /proc tells of it.
    """
    if sys.platform != "linux":
        return os.dup(reading_end)
    tie = os.open(f"/proc/self/fd/{reading_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(tie, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(tie, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    return tie


def hold(tie: int) -> None:
    """Be killed, with the process group that this process leads, when the keeper is gone.

    Without such signals (not Linux) this does nothing.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(tie, fcntl.F_SETOWN, -os.getpid())
    poll = select.poll()
    poll.register(tie, 0)
    if poll.poll(0):
        # It was gone before the kernel knew whom to signal.
        os._exit(1)


def sweep(keeper_id: str) -> int:
    """Kill what a dead keeper's tries have left behind, and return how many processes that were.

    They are gone when this returns, or cannot be killed: the next keeper is to report their tries as ended. The process
    that calls this is spared.
    """
    mark = f"{KEEPER_MARK}={keeper_id}".encode()
    killed: set[int] = set()
    patience_ends_at = time.monotonic() + SWEEP_SECONDS
    while (left := set(_kill_marked(mark))) and time.monotonic() < patience_ends_at:
        killed |= left
        time.sleep(SWEEP_PAUSE_SECONDS)
    return len(killed | left)


def _kill_marked(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        with suppress(OSError):
            # Opened before it is known whose number this is: the signal goes to no other that gets it in between.
            process = os.pidfd_open(pid)
            try:
                if pid != os.getpid() and mark in entry.read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    yield pid
            finally:
                os.close(process)


log = logging.getLogger("sandbox.zygote")

PATIENCE_SECONDS = 0.25
"""How long a keeper may take to set the timer after it has rung: on a busy machine it is a little late. It is below the
margin after which another scheduler takes the runs."""


class Alarm:
    """The keeper's end: the timer. Where the kernel has no such timers (not Linux) it never rings."""

    def __init__(self) -> None:
        self.descriptor = kernel.make_timer() if sys.platform == "linux" else -1

    def set(self, when: float) -> None:
        """Have it ring then, and not before: an instant of CLOCK_BOOTTIME."""
        if self.descriptor >= 0:
            kernel.set_timer(self.descriptor, when)

    def silence(self) -> None:
        """Have it not ring, or not any more."""
        self.set(0.0)


class Watchdog:
    """The zygote's end.

    Args:
        keeper: Its process, which is our parent: the number is its own.
        alarm: Descriptor of the keeper's alarm.
    """

    def __init__(self, keeper: int, alarm: int) -> None:
        self.alarm = alarm
        self._keeper = os.pidfd_open(keeper)

    def bite(self) -> bool:
        """Give a keeper whose alarm rings a last chance, then kill it. Returns whether that was done.

        What has left the sessions of its tries is killed as well: the next keeper of the home may be long in coming.
        """
        time.sleep(PATIENCE_SECONDS)
        if not _is_readable(self.alarm):
            return False
        log.error("The lease is over, and the keeper has not ended its tries in time: it is killed, and they with it")
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
        signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
        sweep(os.environ[KEEPER_MARK])
        return True


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
