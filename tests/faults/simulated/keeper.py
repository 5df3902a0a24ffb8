"""A simulated keeper: it answers as `sandbox.keeper` does, and its tries are timers, which take turns as
real ones do.

It outlives its scheduler until the lease and its grace are over. Its records of each try survive it: the
next keeper knows which tries died with it.
"""

from collections.abc import Callable
from typing import Any

from asynsched.protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    Ended,
    Hello,
    Inventory,
    Kill,
    Launch,
    LeaseTerm,
    Reply,
    Request,
    Shutdown,
)
from asynsched.settings import LeaseSettings
from sandbox.supervision.tries import Turns
from tests.faults.simulated.ledger import Execution
from tests.faults.simulated.loop import Process
from tests.faults.simulated.machine_clock import MachineClock
from tests.faults.simulated.stream import Stream
from tests.faults.simulated.tries import SimulatedTry
from tests.faults.simulated.trigger_hosts import SimulatedHost

FENCED = "the scheduler's lease is over, and another scheduler may run the task"


class SimulatedKeeper:
    """The keeper of the home of a machine."""

    process: Process | None = None
    """The process that stops when its machine does; None: it never does."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._world = machine.world
        self.clock: MachineClock = machine.clock
        self._records: dict[str, Ended | None] = machine.records
        self._lease: LeaseSettings = machine.settings.lease
        self._epoch = self._served_epoch = 0
        self._is_stopping = False
        self._is_fenced = False
        self.is_alive = True
        self.is_listening = True
        self.connection: Stream | None = None
        self.streams: dict[Stream, None] = {}
        self.live: dict[str, SimulatedTry | SimulatedHost] = {}
        self._turns: Turns[SimulatedTry | SimulatedHost] = Turns(lambda one: one.get_ready())
        self.ends: dict[str, Ended] = {}
        self._closes_at = 0.0
        for token, ended in list(self._records.items()):
            reason = "the keeper of the task's process died, and the process with it"
            self.ends[token] = self._records[token] = ended or Ended(
                token, "failed", self.clock.now(), reason=reason, cause="machine"
            )
        self._leased(self.clock.boottime() + self._lease.duration)

    def connect(self) -> Stream | None:
        """Take a connection."""
        if not self.is_alive or not self.is_listening:
            return None
        stream = Stream(self._world, self._heard, self._lost, self.process)
        self.streams[stream] = None
        return stream

    def die(self) -> None:
        """Die at once, and take every process along."""
        self._world.say("keeper", f"{self._machine.name} dies with {len(self.live)} tries")
        self.is_alive = False
        for one in list(self.live.values()):
            one.die_with_keeper()
        self.live.clear()
        for stream in list(self.streams):
            stream.cut("the keeper died")

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call something after a while, on this machine."""
        self._world.later(seconds, call, *args, process=self.process)

    def begin(self, launch: Launch) -> Execution:
        """User code of a try begins. Raises Violation when it must not."""
        self._world.check_launch(launch)
        return self._world.ledger.begin(launch, self._world.clock.monotonic(), *self._world.pool_of(launch))

    def report(self, message: Any) -> None:
        """Tell the scheduler, if it is there."""
        if not self.is_alive:
            return
        if self._world.chance.happens("keeper_death"):
            self.die()
            return
        if self._world.chance.happens("power_cut"):
            self._machine.cut_power()
            return
        if self.connection is not None:
            self.connection.send(message)
            if not isinstance(message, Request) and self._world.chance.happens("repeated"):
                self._world.say("fault", f"the keeper repeats a {type(message).__name__}")
                self.connection.send(message)
            if self._world.chance.happens("cut"):
                self.connection.cut("by a fault")

    def ended(self, one: SimulatedTry | SimulatedHost, ended: Ended) -> None:
        """A try has no process any more."""
        del self.live[one.launch.token]
        self.ends[ended.token] = self._records[ended.token] = ended
        self.report(ended)
        self._turns.is_over(one)
        self._leave_if_idle()

    # Incoming messages

    def _heard(self, stream: Stream, message: Any) -> None:
        if not self.is_alive:
            return
        self._check_fence()
        if isinstance(message, Hello):
            self._greet(stream, message)
        elif isinstance(message, LeaseTerm):
            self._leased(message.valid_until)
        elif stream is self.connection:
            self._told(message)

    def _told(self, message: Any) -> None:
        match message:
            case Launch():
                self._launch(message)
            case Acknowledge():
                for token in message.tokens:
                    if self.ends.pop(token, None) is not None:
                        self._records.pop(token, None)
            case Kill() if message.token in self.live:
                self.live[message.token].end(message.reason, message.cause, message.grace)
            case Reply() if message.token in self.live:
                self.live[message.token].answered(message)
            case Shutdown():
                self._stop(message.grace)

    def _greet(self, stream: Stream, hello: Hello) -> None:
        stream.hello = hello
        if hello.lease_epoch < self._epoch:
            stream.send(Hello(PROTOCOL_VERSION, 1, lease_epoch=self._epoch))
            stream.cut("an older epoch")
            return
        is_another = hello.lease_epoch > self._served_epoch
        self._epoch = hello.lease_epoch
        if hello.role == "lease":
            return
        if self.connection is not None:
            self.connection.cut("a newer scheduler")
        self.connection = stream
        self._served_epoch = hello.lease_epoch
        if hello.lease is not None:
            self._leased(hello.lease.valid_until)
        elif is_another:
            self._leased(self.clock.boottime() + self._lease.duration)
        stream.send(Hello(PROTOCOL_VERSION, 1, lease_epoch=hello.lease_epoch))
        for ended in list(self.ends.values()):
            stream.send(ended)
        begun = tuple(one.started for one in self.live.values() if one.started is not None)
        starting = tuple(token for token, one in self.live.items() if one.started is None)
        stream.send(Inventory(begun, starting, self._closes_at - self._lease.grace))
        for one in self.live.values():
            for question in one.questions.values():
                stream.send(question)

    def _launch(self, launch: Launch) -> None:
        if launch.token in self.live:
            return
        if launch.token in self.ends:
            self.report(self.ends[launch.token])
        elif self._is_fenced or self._is_stopping:
            self._refuse(launch, FENCED if self._is_fenced else "the scheduler stopped", "interrupted")
        elif launch.token in self._records:
            self._refuse(launch, "an earlier keeper has started this try", "machine")
        else:
            self._records[launch.token] = None
            made = SimulatedTry if launch.trigger_host is None else SimulatedHost
            self.live[launch.token] = made(self._world, self, launch)
            self._turns.wait(self.live[launch.token])

    def _refuse(self, launch: Launch, reason: str, cause: Any) -> None:
        ended = Ended(launch.token, "failed", self.clock.now(), reason=reason, cause=cause)
        self.ends[launch.token] = ended
        self.report(ended)

    def _lost(self, stream: Stream) -> None:
        self.streams.pop(stream, None)
        if stream is self.connection:
            self.connection = None
            self._leave_if_idle()

    # Leases and ends

    def _leased(self, valid_until: float) -> None:
        self._closes_at = valid_until + self._lease.grace
        if self.clock.boottime() < self._closes_at:
            self._is_fenced = False
        self.later(max(0.0, self._closes_at - self.clock.boottime()), self._check_fence)

    def _check_fence(self) -> None:
        if not self.is_alive or self._is_fenced or self.clock.boottime() < self._closes_at:
            return
        self._is_fenced = True
        self.is_listening = self.connection is not None
        self._world.say("keeper", f"{self._machine.name} is fenced, {len(self.live)} tries")
        self._end_all(FENCED, "machine", self._lease.kill_time)

    def _stop(self, grace: float) -> None:
        self._is_stopping = True
        self.is_listening = False
        self._end_all("the scheduler stopped", "interrupted", grace)

    def _end_all(self, reason: str, cause: Any, grace: float) -> None:
        for one in list(self.live.values()):
            one.end(reason, cause if one.started is not None else "interrupted", grace)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self.is_alive and not self.live and (self._is_stopping or (self._is_fenced and self.connection is None)):
            self._world.say("keeper", f"{self._machine.name} leaves")
            self.is_alive = False
            for stream in list(self.streams):
                stream.cut("the keeper left")
