"""The work of a keeper: it connects the tries with the scheduler, and enforces the lease.

Schedulers connect to its Unix socket in the home. It serves one of them at a time.

The keeper imports this module after it has forked the zygotes, so that no try has it in its memory.
"""

import argparse
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from asynsched.protocol import messages
from asynsched.protocol.frames import ProtocolError
from asynsched.protocol.home_files import KEEPER_SOCKET, socket_address
from sandbox.processes import end_all_children, reap
from sandbox.supervision.lifeline import Alarm
from sandbox.supervision.reactor import Reactor, Timer, Urgency, Wire
from sandbox.supervision.tries import SupervisedTries, TryLimits
from sandbox.supervision.zygote_handle import Zygotes

log = logging.getLogger("sandbox.keeper")
ENDED_BY_FENCE = "the scheduler's lease is over, and another scheduler may run the task"
ENDED_BY_STOP = "the scheduler stopped"


class Fence(NamedTuple):
    """When a keeper ends its tries: the lease is over, and another scheduler may take the runs.

    All in seconds, instants on the machine's CLOCK_BOOTTIME.
    """

    valid_until: float
    """When the lease ends."""
    grace: float
    """How much longer tries may go on, so that a scheduler that comes back finds them."""
    kill_time: float
    """The time that they then have to end themselves."""

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
        limits = TryLimits(options.import_timeout, options.kill_time, options.log_bytes)
        self._port = SchedulerPort(self._reactor, options.home, self._heard, self._welcome)
        self._tries = SupervisedTries(self._reactor, options.home, zygotes, limits, self._port.send)
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

    def _welcome(self) -> Iterator[Struct]:
        yield from list(self._tries.ends.values())
        live = self._tries.live
        running = tuple(supervised.started for supervised in live if supervised.started is not None)
        starting = tuple(supervised.token for supervised in live if supervised.started is None)
        yield messages.Inventory(running, starting, self._fence.valid_until)
        for supervised in live:
            yield from list(supervised.pending.values())

    def _heard(self, message: Any) -> None:
        match message:
            case messages.Launch():
                refused = ENDED_BY_FENCE if self._is_closed else ""
                self._tries.launch(message, refused=refused or (ENDED_BY_STOP if self._is_stopping else ""))
            case messages.Reply():
                self._tries.reply(message)
            case messages.Acknowledge():
                self._tries.acknowledge(message.tokens)
            case messages.Kill():
                self._tries.kill(message)
            case messages.Shutdown():
                self._stop(message.grace)
            case messages.Hello():
                self._greeted(message)
            case messages.LeaseTerm():
                self._leased(message)

    def _greeted(self, hello: messages.Hello) -> None:
        self._may_lose_runs = hello.shares_database
        is_another = hello.lease_epoch > self._epoch
        self._epoch = hello.lease_epoch
        if hello.lease is not None:
            self._leased(hello.lease)
        elif is_another:  # else it has connected again, which makes its lease no longer
            self._leased(
                messages.LeaseTerm(self._reactor.now() + self._options.lease_seconds, self._options.lease_grace)
            )

    def _leased(self, lease: messages.LeaseTerm) -> None:
        kill_time = self._options.kill_time if lease.kill_time is None else lease.kill_time
        self._fence = Fence(lease.valid_until, lease.grace, kill_time)
        self._fence_timer.cancel()
        self._fence_timer = self._reactor.at(self._fence.closes_at, self._check_fence)
        if not self._is_closed:
            self._is_fenced = False
            if self._kill_timer is not None:
                self._kill_timer.cancel()
        if not self._is_fenced:
            self._alarm.set(self._fence.safe_until if self._may_lose_runs else 0.0)

    @property
    def _is_closed(self) -> bool:
        """Whether tries are to be ended."""
        return self._reactor.now() >= self._fence.closes_at

    def _check_fence(self) -> None:
        """Check the clock before anything else: this process may have been stopped for a long time."""
        if self._is_fenced or not self._is_closed:
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


def listen(home: Path) -> socket.socket:
    """Return the socket in the home, open for its user only. The lock of the keeper must be held."""
    (home / KEEPER_SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    mask = os.umask(0o177)
    try:
        with socket_address(home, KEEPER_SOCKET) as address:
            listener.bind(address)
    finally:
        os.umask(mask)
    listener.listen(16)
    return listener


class Caller(Wire):
    """A connection of a scheduler, which identifies itself by its Hello."""

    def __init__(self, port: "SchedulerPort", reactor: Reactor, connection: socket.socket) -> None:
        self.hello: messages.Hello | None = None
        super().__init__(
            reactor,
            connection,
            messages.ToKeeper,
            lambda message: port.heard(self, message),
            lambda: port.left(self),
            Urgency.LEASE,
        )

    def _refuse(self, error: ProtocolError) -> None:
        # Any local process of this user can connect; only a scheduler that was greeted may add to the log.
        if self.hello is not None and self.hello.role == "scheduler":
            log.error("The keeper hangs up on the scheduler (process %d), which sent %s", self.hello.pid, error)


class SchedulerPort:
    """The connections of schedulers.

    `on_message` takes the scheduler's messages, its Hello included, and every LeaseTerm of its epoch. `welcome` returns
    the first messages to a scheduler after the keeper's Hello.
    """

    def __init__(
        self,
        reactor: Reactor,
        home: Path,
        on_message: Callable[[Any], None],
        welcome: Callable[[], Iterable[Struct]],
    ) -> None:
        self._reactor = reactor
        self._path = home / KEEPER_SOCKET
        self._listener: socket.socket | None = listen(home)
        self._on_message = on_message
        self._welcome = welcome
        self._callers: set[Caller] = set()
        self._scheduler: Caller | None = None
        self._epoch = 0
        reactor.watch(self._listener.fileno(), self._accept, Urgency.LEASE)

    @property
    def is_connected(self) -> bool:
        """Whether a scheduler is connected."""
        return self._scheduler is not None

    def send(self, message: Struct) -> None:
        """Send a message to the scheduler if one is connected; a later one gets the message of `welcome`."""
        if self._scheduler is not None:
            self._scheduler.send(message)

    def close_listener(self) -> None:
        """Accept no more schedulers, and remove the socket: a later scheduler starts another keeper."""
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._reactor.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def heard(self, caller: Caller, message: Any) -> None:
        """Handle a message of a caller."""
        if isinstance(message, messages.Hello):
            self._greeted(caller, message)
        elif caller.hello is None:
            self._hang_up(caller)
        elif caller is self._scheduler or isinstance(message, messages.LeaseTerm):
            self._on_message(message)

    def left(self, caller: Caller) -> None:
        """Forget a connection that was closed."""
        self._callers.discard(caller)
        if self._scheduler is caller:
            self._scheduler = None

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._callers.add(Caller(self, self._reactor, connection))

    def _greeted(self, caller: Caller, hello: messages.Hello) -> None:
        if caller.hello is not None or hello.lease_epoch < self._epoch:
            self._callers.discard(caller)
            caller.send(self._own_hello())
            caller.close_when_sent()
            return
        caller.hello = hello
        self._epoch = hello.lease_epoch
        for other in list(self._callers):
            if other.hello is not None and other.hello.lease_epoch < hello.lease_epoch:
                self._hang_up(other)
        caller.send(self._own_hello())
        if hello.role == "lease":
            return
        if self._scheduler is not None:
            self._hang_up(self._scheduler)
        self._scheduler = caller
        # From now on, news of the lease is served before it.
        caller.change_urgency(Urgency.FRAMES)
        self._on_message(hello)
        for message in self._welcome():
            caller.send(message)

    def _own_hello(self) -> messages.Hello:
        return messages.Hello(messages.PROTOCOL_VERSION, os.getpid(), lease_epoch=self._epoch)

    def _hang_up(self, caller: Caller) -> None:
        caller.close()
        self.left(caller)
