"""What all simulated machines have: a home, clocks, the process of a scheduler or a worker, and a keeper."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from asynsched.protocol.messages import Ended
from asynsched.settings import Settings
from tests.faults.simulated.keeper import SimulatedKeeper
from tests.faults.simulated.loop import NotYet, Process
from tests.faults.simulated.machine_clock import MachineClock
from tests.faults.simulated.stream import Stream

SHARE_OF_CANCELLATIONS = 0.5
"""Of the stops, those that do not wait for the tries that run."""
LOST_RECORDS = 0.5
"""Share of the records that a power cut takes, of those that it may take."""


class Machine(ABC):
    """A machine with one home.

    Attributes:
        records: The records of its keepers: the end of each try that was begun, None before that.
        process: The process of now.
    """

    make_keeper = SimulatedKeeper
    expected_ends: tuple[type[BaseException], ...]
    """The exceptions after which the process is started again by its supervisor."""

    def __init__(self, world: Any, home: Path, settings: Settings) -> None:
        self.world = world
        self.home = home
        self.settings = settings
        self.clock = MachineClock(world.clock)
        self.records: dict[str, Ended | None] = {}
        self.keeper: SimulatedKeeper | None = None
        self.process: Process | None = None
        self.n_starts = 0

    @property
    def name(self) -> str:
        return self.home.name

    @abstractmethod
    def crash(self, when: str) -> None:
        """Kill the process; the keeper goes on."""

    def cut_power(self) -> None:
        """End everything on this machine. Records of tries that had not ended may be lost."""
        for token, ended in list(self.records.items()):
            if ended is None and self.world.chance.random.random() < LOST_RECORDS:
                self.world.say("fault", f"it is forgotten that {token} has begun")
                del self.records[token]
        self.clock.n_boots += 1
        if self.keeper is not None:
            self.keeper.die()
        if self.process is not None and not self.process.is_dead:
            self.crash("by a power cut")

    # The stand-in for asynsched.executors.local

    def connect(self) -> Stream | None:
        return None if self.keeper is None else self.keeper.connect()

    def start_keeper(self) -> None:
        if self.keeper is not None and self.keeper.is_alive:
            raise NotYet
        self.keeper = self.make_keeper(self)
        self.world.say("keeper", f"of {self.name} starts")

    def _hang_up(self, why: str) -> None:
        for stream in list(self.keeper.streams) if self.keeper is not None else []:
            if stream.process is self.process:
                stream.cut(why)

    def _is_expected(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._is_expected, error.exceptions))
        return isinstance(error, self.expected_ends)
