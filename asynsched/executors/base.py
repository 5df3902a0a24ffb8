"""What an executor is: somewhere that tries run.

To write one, subclass Executor in a package of yours, and name it as `--executor package.module:Class`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from asynsched.clock import Clock
from asynsched.protocol.messages import Ended, Launch, Reply, Request, Started
from asynsched.settings import Settings

TryEvent = Started | Ended


def _raise(error: Exception) -> None:
    raise error


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """What an executor is given when it is made.

    `report` takes the events of tries, in order, and never blocks: the scheduler keeps an Ended until it is stored,
    then calls `acknowledge`. `answer` serves a Request of a try (XCom, variables, connections). Where it
    `shares_database`, other schedulers take over the runs of one that is gone: no try of it may go on then. `fail` ends
    the scheduler with an error that came up in the executor's own work, outside of any call; it never blocks.
    """

    home: Path
    settings: Settings
    clock: Clock
    scheduler_id: str
    report: Callable[[TryEvent], None]
    answer: Callable[[Request], Awaitable[Reply]]
    shares_database: bool = False
    fail: Callable[[Exception], None] = _raise


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens of earlier launches that an executor found when it started.

    `ended` are those whose end it reports.
    """

    starting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        """Every token that it knows anything of."""
        return self.starting | self.running | self.ended


class Executor(ABC):
    """Runs tries. Every method is called from one task; none may block the event loop.

    A Launch is of a task, of a callback (`callback`), or of a host of triggers (`trigger_host`), which runs until it is
    told to end. The last two come in addition to `parallelism`. To `sandbox.run.run_launch` they are all alike; whoever
    starts processes in another way passes the whole launch on.

    A try is named by its token. To launch a token twice starts it once. After `start`, every token that was ever
    launched and not acknowledged is either in what `start` returned, or reported as Ended, or was lost. A queued one
    that it does not know of then is launched again, unless this machine has restarted since it was submitted: the
    executor may have forgotten that it has begun.
    """

    def __init__(self, context: ExecutorContext) -> None:
        self.context = context

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many tries may be in it at once."""

    @property
    def capacities(self) -> Mapping[str, int]:
        """The names that a task may give as its `executor`, each with how many tries may be in it at once.

        Empty: there is one executor, and it takes every task.
        """
        return {}

    @abstractmethod
    async def start(self, lease_epoch: int) -> Held:
        """Connect, and return what it holds of earlier launches. Unacknowledged ends are reported."""

    @abstractmethod
    async def launch(self, launches: Sequence[Launch]) -> None:
        """Start these tries. The end of one that could not be started is reported.

        Its cause is `interrupted` when nothing of it has begun and another attempt may succeed, else `machine`.
        """

    @abstractmethod
    async def kill(self, token: str, reason: str) -> None:
        """End a try; its end is reported as failed for `reason`. An unknown token is ignored."""

    @abstractmethod
    async def acknowledge(self, tokens: Sequence[str]) -> None:
        """The ends of these tries are stored: forget them."""

    def renew_lease(self, valid_until: float) -> None:  # noqa: B027 - optional: not every executor outlives us
        """The scheduler's lease holds until this CLOCK_BOOTTIME, in seconds, should it not be renewed any more.

        Where others share the database, they take the runs over `lease.grace` and `lease.kill_time` seconds later, and
        a moment: no try may be left by then. Called before `start` for the first time, and then from the lease's own
        thread, also while the event loop is stalled; it must be quick.
        """

    def hurry(self) -> None:  # noqa: B027 - optional: not every executor gives tries time to end themselves
        """Give tries that are ended from now on no time to end themselves: somebody waits for it."""

    @abstractmethod
    async def drain(self, deadline: datetime) -> None:
        """Wait until no try is left, or until `deadline`; then end the rest, reported as interrupted."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Leaves no process behind after `drain`; without it, tries may go on."""

    @property
    def has_left_tries(self) -> bool:
        """Whether tries may go on after `drain` and `close`, because they could not be ended, or that is not known.

        Then the scheduler keeps its runs: others take them over when its lease and all that follows are over.
        """
        return False
