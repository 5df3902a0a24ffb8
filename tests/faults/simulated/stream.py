"""A simulated stream between a scheduler and its keeper: ordered, late, and cut when the world says so."""

from collections import deque
from collections.abc import Callable
from typing import Any

from asynsched.protocol.frames import FrameReader, encode_frame
from asynsched.protocol.messages import Hello, ToKeeper
from tests.faults.simulated.loop import PROCESS, Process


class Stream:
    """Both ends of one connection. To the scheduler it is its socket and its transport.

    Messages arrive in order, some time later, or never: a cut loses all that are on their way.

    Args:
        keeper: The keeper's process, if it may be stopped.
    """

    def __init__(
        self,
        world: Any,
        take: Callable[["Stream", Any], None],
        lost: Callable[["Stream"], None],
        keeper: Process | None = None,
    ) -> None:
        self._world = world
        self._keeper = keeper
        self._take = take
        self._lost = lost
        self._reader = FrameReader(ToKeeper)
        self._to_keeper: deque[bytes] = deque()
        self._to_scheduler: deque[bytes] = deque()
        self._protocol: Any = None
        self.process: Process | None = PROCESS.get()
        self.is_cut = False
        self.hello: Hello | None = None

    # The scheduler's end

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def is_closing(self) -> bool:
        return self.is_cut

    def write(self, data: bytes) -> None:
        if self.is_cut or (self.process is not None and self.process.is_dead):
            return
        self._to_keeper.append(bytes(data))
        self._world.later(self._world.chance.latency(), self._arrive_at_keeper, process=self._keeper)

    def sendall(self, data: bytes) -> None:
        """Send, as a blocking socket does."""
        if self.is_cut:
            raise BrokenPipeError
        self.write(data)

    def close(self) -> None:
        self.cut("the scheduler hung up")

    # The keeper's end

    def send(self, message: Any) -> None:
        """Send a frame to the scheduler."""
        if self.is_cut:
            return
        self._to_scheduler.append(encode_frame(message))
        self._world.later(self._world.chance.latency(), self._arrive_at_scheduler, process=self.process)

    def cut(self, why: str) -> None:
        """Break the connection, for both ends."""
        if self.is_cut:
            return
        self.is_cut = True
        self._to_keeper.clear()
        self._to_scheduler.clear()
        self._world.say("stream", f"cut: {why}")
        self._world.later(0, self._lost, self, process=self._keeper)
        if self._protocol is not None and not self.process.is_dead:
            self._world.later(0, self._protocol.connection_lost, None, process=self.process)

    def _arrive_at_keeper(self) -> None:
        if self._to_keeper:
            for message in self._reader.feed(self._to_keeper.popleft()):
                if not self.is_cut:
                    self._take(self, message)

    def _arrive_at_scheduler(self) -> None:
        if self._to_scheduler and not self.process.is_dead:
            self._protocol.data_received(self._to_scheduler.popleft())
