"""What systemd is told of a scheduler: that it is ready, stops, and is alive (sd_notify(3)).

The protocol is a datagram of lines to the socket that NOTIFY_SOCKET names. Without that variable nothing is told.
"""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from datetime import timedelta

import structlog

from asynsched.cli.rendering import printable
from asynsched.clock import Clock
from asynsched.errors import NotServing
from asynsched.health import Health
from asynsched.scheduler import Scheduler

log = structlog.get_logger(__name__)


class ServiceManager:
    """The service manager that started this process, if one did that wants to be told.

    Args:
        environment: Its variables are taken out: they are meant for this process, and not for tasks.
        pid: This process.

    Attributes:
        watchdog: How long it waits for a sign of life before it restarts the service; None: it wants none.
    """

    def __init__(self, environment: MutableMapping[str, str], pid: int) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        # A name that begins with @ is in no folder (unix(7), abstract).
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_for_us = environment.pop("WATCHDOG_PID", str(pid)) == str(pid)
        self.watchdog: timedelta | None = None
        if self._address and is_for_us and microseconds.isdecimal() and int(microseconds):
            self.watchdog = timedelta(microseconds=int(microseconds))

    def tell(self, *lines: str) -> None:
        """Tell it something, e.g. `READY=1`. Never blocks; who cannot be told is not."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as exc:
            log.warning("service_manager.not_told", about=lines[0], error=str(exc))

    async def accompany(self, scheduler: Scheduler, clock: Clock) -> None:
        """Say that a scheduler is ready once it is, and then that it is alive, unless one of its loops is stuck.

        A scheduler that waits for its database is alive. Signs of life are given three times as often as needed.
        """
        await scheduler.started.wait()
        self.tell("READY=1", f"STATUS=Serving {printable(str(scheduler.settings.dags_path))}")
        if self.watchdog is None:
            return
        with suppress(NotServing):
            is_stuck = False
            while True:
                is_stuck = self._report(scheduler.health(), is_stuck)
                await clock.sleep(self.watchdog / 3)

    def _report(self, health: Health, was_stuck: bool) -> bool:
        """Give a sign of life; or none, and say once why. Returns whether a loop is stuck."""
        stuck = health.stuck_loops
        if not stuck:
            self.tell("WATCHDOG=1")
        elif not was_stuck:
            log.error("scheduler.stuck", loops=list(stuck))
            self.tell(f"STATUS=Stuck: {', '.join(stuck)}")
        return bool(stuck)


def service_manager() -> ServiceManager:
    """Return that of this process."""
    return ServiceManager(os.environ, os.getpid())
