"""The keeper: `python -P -m sandbox.keeper --home HOME`, supervisor of every local try of one scheduler.

It outlives the scheduler: a scheduler that is killed and starts again on the same home takes it and its tries back.
When none comes until the lease and its grace are over, it ends its tries, and itself. It never runs user code. It has
one thread and no event loop of asyncio's, so that its forks are clean and small. It forks once, before it hears of any
try: what it passes on to tries is then in no other's memory. Tries of one task instance take turns in it: one begins
when no process of the one before is left.

    keeper ──fork──▶ zygote ──forks──▶ template (a version of a DAG file, loaded) ──fork──▶ try
                        └─────────────────────forks─────────────────────▶ try of a file that cannot be forked
"""

import argparse
import fcntl
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from msgspec import Struct

from asynsched.authoring.timezone import set_default_timezone
from sandbox.protocol import Acknowledge, Hello, Inventory, Kill, Launch, Lease, Reply, Shutdown
from sandbox.running.try_logging import configure_logging
from sandbox.running.warming import warm
from sandbox.supervision.children import adopt_orphans, end_all_children, reap, set_readable
from sandbox.supervision.fencing import Fence
from sandbox.supervision.lifeline import MARK, sweep
from sandbox.supervision.limits import Limits
from sandbox.supervision.reactor import Reactor, Timer, Urgency
from sandbox.supervision.scheduler_port import LONGEST_REASON, READY, SchedulerPort
from sandbox.supervision.tries import Tries
from sandbox.supervision.watchdog import Alarm
from sandbox.supervision.zygote_handle import ZygoteHandle

log = logging.getLogger("sandbox.keeper")

LOCK_NAME = "keeper.lock"
ENDED_BY_FENCE = "the scheduler's lease is over, and another scheduler may run the task"
ENDED_BY_STOP = "the scheduler stopped"
DEEPEST = 700
"""Python's limit of recursion here, below the usual one: a value that is not too deep for the keeper is not too deep
for the scheduler, whose stack is higher."""


class Keeper:
    """Joins the tries with the scheduler, and holds both to the lease."""

    def __init__(self, options: argparse.Namespace, zygote: ZygoteHandle, alarm: Alarm) -> None:
        self._options = options
        self._alarm = alarm
        self._epoch = 0
        """The highest lease epoch that was greeted."""
        self._may_lose_runs = False
        """Whether other schedulers may take over what runs here. Where none can, nothing is gained by haste."""
        self._reactor = Reactor()
        self._fence = Fence(self._reactor.now() + options.lease_seconds, options.lease_grace, options.kill_time)
        limits = Limits(options.import_timeout, options.kill_time, options.log_bytes)
        self._tries = Tries(self._reactor, options.home, zygote, limits, self._report)
        self._tries.recover()
        self._port = SchedulerPort(self._reactor, options.home, self._heard, self._leased, self._welcome)
        self._is_stopping = False
        self._is_fenced = False
        self._fence_timer = self._reactor.at(self._fence.closes_at, self._check_fence)
        self._kill_timer = Timer(self._kill_tries)
        self._watch_signals()

    def serve(self) -> None:
        """Serve until stopped, or fenced without a scheduler, and nothing runs any more."""
        while not (self._tries.is_idle and (self._is_stopping or (self._is_fenced and not self._port.is_connected))):
            self._reactor.turn(self._check_fence)
            if self._is_fenced and self._tries.is_idle:
                self._alarm.silence()
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
        elif is_another:  # else it has connected anew: its lease has not become longer by that
            self._leased(Lease(self._reactor.now() + self._options.lease_seconds, self._options.lease_grace))

    def _leased(self, lease: Lease) -> None:
        kill_time = self._options.kill_time if lease.kill_time is None else lease.kill_time
        self._fence = Fence(lease.valid_until, lease.grace, kill_time)
        self._fence_timer.cancel()
        self._fence_timer = self._reactor.at(self._fence.closes_at, self._check_fence)
        if not self._fence.is_closed(self._reactor.now()):
            self._is_fenced = False
            self._kill_timer.cancel()
        if not self._is_fenced:
            self._alarm.set(self._fence.safe_until if self._may_lose_runs else 0.0)

    def _check_fence(self) -> None:
        """Look at the clock before anything else is done: this process itself may have been stopped for long."""
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
        """Leave no try that goes on. One with much memory may take long to exit: no zygote can mend that."""
        self._tries.kill_all()
        self._alarm.silence()

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
            signal.signal(number, _noticed)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._reactor.watch(wakeup.fileno(), self._signalled, Urgency.EXITS)

    def _signalled(self, _events: int) -> None:
        numbers = self._signals[0].recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stop(self._options.kill_time)
        self._tries.reap(dict(reap()))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Detach from whoever started this, take the home's lock, and keep its tries."""
    options = _options(arguments)
    if os.fork():
        # The keeper is nobody's child: a scheduler that dies or restarts has nothing to wait for.
        os._exit(0)
    try:
        keeper, lock = _started(options)
    except BaseException as exc:
        log.exception("The keeper failed")
        _tell(options.ready, f"{type(exc).__name__}: {exc}".encode(errors="backslashreplace"))
        os._exit(1)
    try:
        _tell(options.ready, READY)
        keeper.serve()
        os.ftruncate(lock, 0)
    except BaseException:
        log.exception("The keeper failed")
        os._exit(1)
    os._exit(0)


def _started(options: argparse.Namespace) -> "tuple[Keeper, int]":
    """Return a keeper that takes connections, and the lock on its home, which has its name."""
    lock = take_lock(options.home)
    previous = os.pread(lock, 64, 0).decode().strip()
    if previous:
        sweep(previous)
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.environ[MARK].encode(), 0)
    lifeline, _writing_end = os.pipe()
    adopt_orphans()
    configure_logging()
    warm()
    # After the rehearsal of a try, which makes its process readable.
    set_readable(readable=False)
    set_default_timezone(options.default_timezone)
    alarm = Alarm()
    zygote = ZygoteHandle(options.home, lifeline, alarm, options.default_timezone)
    sys.setrecursionlimit(DEEPEST)
    return Keeper(options, zygote, alarm), lock


def _tell(descriptor: int, text: bytes) -> None:
    """Tell whoever started this keeper how that went."""
    with suppress(BrokenPipeError):
        # A scheduler that died meanwhile may have a successor, which finds this keeper.
        os.write(descriptor, text[:LONGEST_REASON])
    os.close(descriptor)


def take_lock(home: Path) -> int:
    """Wait until no other keeper lives on this home; one that is ending takes some seconds. Returns the descriptor."""
    descriptor = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _noticed(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal whose number the wake-up descriptor delivers."""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m sandbox.keeper", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder of the scheduler's state")
    parser.add_argument("--ready", type=int, required=True, help="descriptor that is told once schedulers may connect")
    parser.add_argument(
        "--lease-seconds", type=float, default=15.0, help="lease of a scheduler that has just connected"
    )
    parser.add_argument("--lease-grace", type=float, default=10.0, help="how long tries go on after a lease")
    parser.add_argument("--kill-time", type=float, default=5.0, help="time from SIGTERM to SIGKILL")
    parser.add_argument("--import-timeout", type=float, default=30.0, help="longest import of a DAG file")
    parser.add_argument("--default-timezone", default="UTC", help="zone of naive dates in DAG files")
    parser.add_argument("--log-bytes", type=int, default=64 * 1024**2, help="largest log of a try")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
