"""Kills a keeper that stands still while its scheduler's lease and all that follows run out, and its tries with it.

The keeper holds its tries to the lease (`sandbox.supervision.fencing`). But it is one process: it may be stopped
(SIGSTOP), or hang, and another scheduler waits no longer for that. So the instant at which no try may be left is also
set on a timer of the kernel, which the keeper shares with the zygote. The keeper sets it to a later time with each
renewal, and off when the lease is over and it has sent SIGKILL to every try that is left. When it rings, the keeper has
done neither, and the zygote kills it. The kernel kills the tries then (`sandbox.supervision.lifeline`).

The timer is one of CLOCK_BOOTTIME: it rings also where the machine was suspended meanwhile, as soon as that goes on.
"""

import logging
import os
import select
import signal
import sys
import time

from sandbox.confinement import kernel
from sandbox.supervision.lifeline import MARK, sweep

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
        sweep(os.environ[MARK])
        return True


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
