"""The work of a keeper: it connects the tries with the scheduler, and enforces the lease.

The keeper imports this module after it has forked the zygotes, so that no try has it in its memory.
"""

import argparse
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from asynsched.protocol.messages import Acknowledge, Hello, Inventory, Kill, Launch, Lease, Reply, Shutdown
from sandbox.processes import end_all_children, reap
from sandbox.supervision.lifeline import Alarm
from sandbox.supervision.reactor import Reactor, Timer, Urgency
from sandbox.supervision.scheduler_port import SchedulerPort
from sandbox.supervision.tries import Limits, Tries
from sandbox.zygote import Zygotes

log = logging.getLogger("sandbox.keeper")


@dataclass(slots=True)
class Fence:
    """When a keeper ends its tries: the lease is over, and another scheduler may take the runs.

    All in seconds, instants on the machine's CLOCK_BOOTTIME.

    Attributes:
        valid_until: When the lease ends.
        grace: How much longer tries may go on, so that a scheduler that comes back finds them.
        kill_time: The time that they then have to end themselves.
    """

    valid_until: float
    grace: float
    kill_time: float

    @property
    def closes_at(self) -> float:
        """When the keeper starts to end tries."""
        return self.valid_until + self.grace

    @property
    def safe_until(self) -> float:
        """When other schedulers take the runs: no try may be left then, however late the keeper noticed the end."""
        return self.closes_at + self.kill_time

    def time_to_end(self, now: float) -> float:
        """Return the seconds that tries have from now on to end themselves."""
        return max(0.0, min(self.kill_time, self.safe_until - now))

    def is_closed(self, now: float) -> bool:
        """Return whether tries are to be ended."""
        return now >= self.closes_at


ENDED_BY_FENCE = "the scheduler's lease is over, and another scheduler may run the task"
ENDED_BY_STOP = "the scheduler stopped"


class Keeper:
    """Connects the tries with the scheduler, and enforces the lease."""

    def __init__(self, options: argparse.Namespace, zygotes: Zygotes, alarm: Alarm) -> None:
        self._options = options
        self._alarm = alarm
        self._epoch = 0
        """The highest lease epoch that was greeted."""
        self._may_lose_runs = False
        """Whether other schedulers may take over the runs. If none can, tries get their whole time to end."""
        self._reactor = Reactor()
        self._fence = Fence(self._reactor.now() + options.lease_seconds, options.lease_grace, options.kill_time)
        limits = Limits(options.import_timeout, options.kill_time, options.log_bytes)
        self._tries = Tries(self._reactor, options.home, zygotes, limits, self._report)
        self._tries.recover()
        self._port = SchedulerPort(self._reactor, options.home, self._heard, self._leased, self._welcome)
        self._is_stopping = False
        self._is_fenced = False
        self._fence_timer = self._reactor.at(self._fence.closes_at, self._check_fence)
        self._kill_timer: Timer | None = None
        self._watch_signals()

    def serve(self) -> None:
        """Serve until stopped, or fenced without a scheduler, and until no try runs any more."""
        while not (self._tries.is_idle and (self._is_stopping or (self._is_fenced and not self._port.is_connected))):
            self._reactor.turn(self._check_fence)
            if self._is_fenced and self._tries.is_idle:
                self._alarm.set(0.0)
        self._port.close_listener()
        end_all_children()

    def _report(self, message: Struct) -> None:
        self._port.send(message)

    def _welcome(self) -> Iterator[Struct]:
        yield from list(self._tries.ends.values())
        live = self._tries.live
        running = tuple(supervised.started for supervised in live if supervised.started is not None)
        starting = tuple(supervised.token for supervised in live if supervised.started is None)
        yield Inventory(running, starting)
        for supervised in live:
            yield from list(supervised.pending.values())

    def _heard(self, message: Any) -> None:
        match message:
            case Launch():
                refused = ENDED_BY_FENCE if self._fence.is_closed(self._reactor.now()) else ""
                self._tries.launch(message, refused=refused or (ENDED_BY_STOP if self._is_stopping else ""))
            case Reply():
                self._tries.reply(message)
            case Acknowledge():
                self._tries.acknowledge(message.tokens)
            case Kill():
                self._tries.kill(message)
            case Shutdown():
                self._stop(message.grace)
            case Hello():
                self._greeted(message)

    def _greeted(self, hello: Hello) -> None:
        self._may_lose_runs = hello.shares_database
        is_another = hello.lease_epoch > self._epoch
        self._epoch = hello.lease_epoch
        if hello.lease is not None:
            self._leased(hello.lease)
        elif is_another:  # else it has connected again, which makes its lease no longer
            self._leased(Lease(self._reactor.now() + self._options.lease_seconds, self._options.lease_grace))

    def _leased(self, lease: Lease) -> None:
        kill_time = self._options.kill_time if lease.kill_time is None else lease.kill_time
        self._fence = Fence(lease.valid_until, lease.grace, kill_time)
        self._fence_timer.cancel()
        self._fence_timer = self._reactor.at(self._fence.closes_at, self._check_fence)
        if not self._fence.is_closed(self._reactor.now()):
            self._is_fenced = False
            if self._kill_timer is not None:
                self._kill_timer.cancel()
        if not self._is_fenced:
            self._alarm.set(self._fence.safe_until if self._may_lose_runs else 0.0)

    def _check_fence(self) -> None:
        """Check the clock before anything else: this process may have been stopped for a long time."""
        if self._is_fenced or not self._fence.is_closed(self._reactor.now()):
            return
        self._is_fenced = True
        if not self._port.is_connected:
            self._port.close_listener()
        if self._tries.live:
            log.warning("The scheduler's lease is over: ending %d tries", len(self._tries.live))
        kill_time = self._fence.kill_time
        if self._may_lose_runs:
            kill_time = self._fence.time_to_end(self._reactor.now())
        self._tries.end_all(ENDED_BY_FENCE, "machine", kill_time)
        self._kill_timer = self._reactor.after(kill_time, self._kill_tries)

    def _kill_tries(self) -> None:
        """Kill every try. A try with much memory may take long to exit; the zygote could not speed that up."""
        self._tries.kill_all()
        self._alarm.set(0.0)

    def _stop(self, grace: float) -> None:
        self._is_stopping = True
        self._port.close_listener()
        self._tries.end_all(ENDED_BY_STOP, "interrupted", grace)

    def _watch_signals(self) -> None:
        wakeup, waker = socket.socketpair()
        for end in (wakeup, waker):
            end.setblocking(False)
        self._signals = (wakeup, waker)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor delivers its number
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._reactor.watch(wakeup.fileno(), self._signalled, Urgency.EXITS)

    def _signalled(self, _events: int) -> None:
        numbers = self._signals[0].recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stop(self._options.kill_time)
        self._tries.reap(dict(reap()))
