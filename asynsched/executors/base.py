"""The contract of an executor, which runs tries.

To write one, subclass Executor in a package of your own, and name it as `--executor package.module:Class`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from asynsched.clock import Clock
from asynsched.loggers import get_logger
from asynsched.protocol.messages import Ended, Launch, Reply, Request, Started
from asynsched.settings import Settings

if TYPE_CHECKING:
    from asynsched.executors.warm_workers import WarmWorkers
    from asynsched.store.database import Database  # a worker, which has none, does not load it

log = get_logger(__name__)

TryEvent = Started | Ended
STOPPED = "the scheduler stopped"
"""Why a try of a scheduler that ends is interrupted."""


def _raise(error: Exception) -> None:
    raise error


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """The parts of its scheduler that an executor uses.

    `report` takes the events of tries, in order, and never blocks: the scheduler keeps an Ended until it is stored,
    then calls `acknowledge`. `answer` serves a Request of a try (XCom, variables, connections). If the scheduler
    `shares_database`, others take over its runs once it is gone: no try of it may go on then. `fail` ends the scheduler
    with an error of the executor's own work, outside of any call; it never blocks.

    `name` is how tasks call the executor, where there are several. `database` is the scheduler's, for an executor that
    keeps its tries there. `warm` are workers on other machines that wait for another ticket.
    """

    home: Path
    settings: Settings
    clock: Clock
    scheduler_id: str
    report: Callable[[TryEvent], None]
    answer: Callable[[Request], Awaitable[Reply]]
    shares_database: bool = False
    fail: Callable[[Exception], None] = _raise
    name: str = ""
    database: "Database | None" = None
    warm: "WarmWorkers | None" = None


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens of earlier launches that an executor found when it started. It reports the ends of those that `ended`."""

    starting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        return self.starting | self.running | self.ended

    def joined(self, other: "Held") -> "Held":
        """Return the tokens of both. A try that has ended in one of them, found later, does not go on."""
        ended = self.ended | other.ended
        return Held((self.starting | other.starting) - ended, (self.running | other.running) - ended, ended)


Adopt = Callable[[Sequence[int]], Awaitable[Held]]
"""The type of `Executor.adopt`."""


async def adopt_none(_: Sequence[int]) -> Held:
    """Take over no tries: those of this executor end with their scheduler."""
    return Held()


class Executor(ABC):
    """Runs tries. Every method is called from one task; none may block the event loop.

    A Launch starts a task, a callback (`callback`), or a trigger host (`trigger_host`), which runs until it is killed.
    Callbacks and trigger hosts come in addition to `parallelism`. `sandbox.run.run_launch` runs any of them; an
    executor that starts processes in another way passes the whole launch on.

    A try is named by its token. Launching a token twice starts it once. After `start`, every token that was ever
    launched and not acknowledged is either in the result of `start`, or reported as Ended, or lost. If the executor
    does not know a queued token then, the scheduler launches it again, unless the machine has restarted since the token
    was submitted: the executor may have forgotten that the try began.
    """

    runs_tasks_only = False
    """Whether another executor has to run trigger hosts, and callbacks unless the setting `callbacks.executor` names
    this one; `local` is added if there is none.
    """

    def __init__(self, context: ExecutorContext) -> None:
        self.context = context

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many tries it runs at once."""

    @property
    def capacities(self) -> Mapping[str, int]:
        """How many tries each of several executors runs at once, by the names that tasks give as `executor`.

        Empty: there is one executor, and it takes every task.
        """
        return {}

    @abstractmethod
    async def start(self, lease_epoch: int) -> Held:
        """Connect, report unacknowledged ends, and return the tokens of earlier launches."""

    @abstractmethod
    async def launch(self, launches: Sequence[Launch]) -> None:
        """Start these tries, and report the end of each that could not be started.

        Its cause is `interrupted` if nothing of it has begun and another attempt may succeed, otherwise `machine`.
        """

    @abstractmethod
    async def kill(self, token: str, reason: str) -> None:
        """End a try, and report it as failed for `reason`. An unknown token is ignored."""

    @abstractmethod
    async def acknowledge(self, tokens: Sequence[str]) -> None:
        """Forget these tries: their ends are stored."""

    def renew_lease(self, valid_until: float) -> None:  # noqa: B027 - optional: not every executor outlives us
        """Note when the scheduler's lease expires if it is not renewed again: seconds of CLOCK_BOOTTIME.

        Where others share the database, they take the runs `lease.grace` plus `lease.kill_time` and a margin later: no
        try may be left by then. Called before `start`, and then from the lease's own thread, also while the event loop
        is stalled; it must be quick.
        """

    async def adopt(self, run_ids: Sequence[int]) -> Held:
        """Take over the tries of runs that another scheduler has left, and return their tokens, as `start` does.

        Only an executor whose tries outlive their scheduler has some. May be repeated. Raises StoreUnavailable.
        """
        return Held()

    @property
    def kept(self) -> Collection[str]:
        """Tokens of tries that go on after `drain` and `close`: the next scheduler of their runs adopts them."""
        return ()

    def look(self) -> None:  # noqa: B027 - optional: few have workers elsewhere
        """Read the database soon: workers may have reported starts or ends of tries. Never blocks."""

    def hear(self, events: Sequence[TryEvent]) -> None:
        """Take starts and ends that a worker has reported to this scheduler, of any tries, and that are stored.

        An executor that does not override this reads them from the database. Never blocks.
        """
        self.look()

    def hurry(self) -> None:  # noqa: B027 - optional: not every executor gives tries time to end themselves
        """Kill tries at once from now on, without time to end themselves, because a user waits."""

    @abstractmethod
    async def drain(self, deadline: datetime) -> None:
        """Wait until no try is left, or until `deadline`; then end the rest, and report them as interrupted."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything. After `drain`, no process is left; without it, tries may go on."""

    @property
    def has_left_tries(self) -> bool:
        """Whether tries may go on after `drain` and `close`, because their end failed or is not known.

        The scheduler keeps its lease then: others take its runs once the lease has expired.
        """
        return False

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """End the scheduler when a task that is not awaited has failed: ends of tries would be lost."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.error("executor.failed", exc_info=error)
            self.context.fail(error)


POSTGRESQL_VARIABLES = frozenset(
    {
        "PGDATABASE", "PGGSSLIB", "PGHOST", "PGKRBSRVNAME", "PGPASSFILE", "PGPASSWORD", "PGPORT", "PGSERVICE",
        "PGSERVICEFILE", "PGSSLCERT", "PGSSLCRL", "PGSSLKEY", "PGSSLMAXPROTOCOLVERSION", "PGSSLMINPROTOCOLVERSION",
        "PGSSLMODE", "PGSSLNEGOTIATION", "PGSSLROOTCERT", "PGTARGETSESSIONATTRS", "PGUSER",
    }
)  # fmt: skip
"""The variables that asyncpg reads when it connects: https://magicstack.github.io/asyncpg/current/api/index.html#connection."""


def parted_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment with which a process of asynsched's own starts, and the variables that it is sent.

    Tasks of the same user can read the environment of a process that starts, and not its standard input.
    """
    shown = user_environment(environment, is_postgresql=True)
    return shown, {name: value for name, value in environment.items() if name not in shown}


def user_environment(environment: Mapping[str, str], *, is_postgresql: bool) -> dict[str, str]:
    """Return the environment of processes that run user code: the scheduler's, without what leads to its database.

    If its database is PostgreSQL, the variables of PostgreSQL's clients are its own; otherwise they are for tasks.
    """
    hidden = POSTGRESQL_VARIABLES if is_postgresql else frozenset()
    return {
        name: value for name, value in environment.items() if not name.startswith("ASYNSCHED_") and name not in hidden
    }
