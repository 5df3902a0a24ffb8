"""Ties the processes of tries to their keeper: when the keeper dies, however it dies, the kernel kills them.

PR_SET_PDEATHSIG does not work here, because a try's parent is its template, which may end before it. So the keeper
holds the only writing end of a pipe. For each try the reading end is opened again, and the kernel is asked to signal
the try's process group when something happens to it; the only thing that ever happens is the keeper's death. Processes
that have left the try's group are found by their environment, which names the keeper, when the next keeper of the home
starts.

The keeper may also stand still: stopped (SIGSTOP), or hanging, while its scheduler's lease and the time for ending the
tries (`sandbox.supervision.keeper`) run out. Other schedulers do not wait longer for that. So the keeper shares a
timer of the kernel with its plain zygote. With each renewal of the lease it sets the timer to the instant at which no
try may be left, and off when the lease is over and it has sent SIGKILL to every remaining try. If the timer fires, the
keeper has done neither, and the zygote kills it. The timer is one of CLOCK_BOOTTIME, so on a machine that was suspended
meanwhile it fires as soon as the machine goes on.
"""

import fcntl
import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from asynsched.protocol.home_files import KEEPER_MARK
from sandbox.confinement import kernel

log = logging.getLogger("sandbox.zygote")

SWEEP_SECONDS = 5.0
SWEEP_PAUSE_SECONDS = 0.01
PATIENCE_SECONDS = 0.25
"""How long a keeper may take to set the timer after it has rung: on a busy machine it is a little late. It is below the
margin after which another scheduler takes the runs."""


def make_tie(reading_end: int) -> int:
    """Return a descriptor with which one process can be tied to the keeper.

    The keeper makes it before the fork, because the kernel would have to build the /proc files of a new process.
    """
    if sys.platform != "linux":
        return os.dup(reading_end)
    tie = os.open(f"/proc/self/fd/{reading_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(tie, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(tie, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    return tie


def hold(tie: int) -> None:
    """Make the kernel kill this process, and the process group that it leads, when the keeper is gone.

    Without such signals (not Linux) this does nothing.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(tie, fcntl.F_SETOWN, -os.getpid())
    if _is_ready(tie, 0):
        # It was gone before the kernel knew which processes to signal.
        os._exit(1)


def sweep(keeper_id: str) -> None:
    """Kill the processes that a dead keeper's tries have left behind, but not the calling one.

    They are gone when this returns, or cannot be killed: the next keeper is to report their tries as ended.
    """
    mark = f"{KEEPER_MARK}={keeper_id}".encode()
    patience_ends_at = time.monotonic() + SWEEP_SECONDS
    while _kill_marked(mark) and time.monotonic() < patience_ends_at:
        time.sleep(SWEEP_PAUSE_SECONDS)


def _kill_marked(mark: bytes) -> bool:
    """Kill the processes whose environment has this mark; return whether there were any."""
    killed = False
    for entry in Path("/proc").glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        with suppress(OSError):
            # Opened before its environment is read, so that the signal reaches no later process of that number.
            process = os.pidfd_open(pid)
            try:
                if pid != os.getpid() and mark in entry.read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    killed = True
            finally:
                os.close(process)
    return killed


class Alarm:
    """The keeper's end of the timer. Where the kernel has no such timers (not Linux), it never fires."""

    def __init__(self) -> None:
        self.descriptor = kernel.make_timer() if sys.platform == "linux" else -1

    def set(self, when: float) -> None:
        """Set the instant at which it fires, of CLOCK_BOOTTIME, or 0 for never."""
        if self.descriptor >= 0:
            kernel.set_timer(self.descriptor, when)


class Watchdog:
    """The zygote's end. The keeper is our parent, so its number is its own."""

    def __init__(self, keeper: int, alarm: int) -> None:
        self.alarm = alarm
        self._keeper = os.pidfd_open(keeper)

    def kill_late_keeper(self) -> bool:
        """Give a keeper whose alarm has fired a last chance, then kill it. Returns whether it was killed.

        Processes that have left the sessions of their tries are killed as well: the home's next keeper may start only
        long after.
        """
        time.sleep(PATIENCE_SECONDS)
        if not _is_ready(self.alarm, select.POLLIN):
            return False
        log.error("The lease is over, and the keeper has not ended its tries in time: it is killed, and they with it")
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
        signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
        sweep(os.environ[KEEPER_MARK])
        return True


def _is_ready(descriptor: int, events: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(0))
