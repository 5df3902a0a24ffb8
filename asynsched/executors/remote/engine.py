"""The contract of an engine's adapter: an engine carries tickets to workers, and asynsched does everything else.

An engine may deliver a ticket twice, late or never, and may say anything of its jobs: a try starts once, by its claim.
So an adapter keeps no state that a restart must save, and needs no care for exactness.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from asynsched.executors.base import ExecutorContext
from asynsched.protocol.worker_messages import Ticket

LONGEST_REASON = 300
"""Characters of a reason that an engine gives."""


class Job(Struct, frozen=True):
    """A ticket to submit, and what its task says of where it runs.

    Attributes:
        executor_config: The task's argument of that name, as JSON has it: it means what the engine says.
        former_digest: The SHA-256 of the secret of a void ticket of this try, which an earlier scheduler may have
            submitted; empty: there is none.
    """

    ticket: Ticket
    queue: str
    priority_weight: int
    pool: str
    executor_config: Mapping[str, Any]
    former_digest: str = ""


class Accepted(Struct, frozen=True):
    """The engine has taken a job, and knows it by this id: at most 256 characters."""

    engine_id: str


class Rejected(Struct, frozen=True):
    """The engine will never take this job, such as for a wrong executor_config: the try fails, without a retry."""

    reason: str


class Later(Struct, frozen=True):
    """The engine cannot take a job now, for a reason that people read: the next pass submits it again."""

    reason: str


class Sight(Struct, frozen=True):
    """How an engine sees a job.

    Attributes:
        state: `queued` or `running`; `gone`: the engine does not have it any more; `unknown`: it cannot say.
        reason: For people, in one sentence, such as `no worker listens on the queue gpu`; empty: nothing to say.
    """

    state: Literal["queued", "running", "gone", "unknown"]
    reason: str = ""


def reason_of(exc: BaseException) -> str:
    """Return an error in one line for people, of at most LONGEST_REASON characters."""
    return " ".join((str(exc) or type(exc).__name__).split())[:LONGEST_REASON]


class Engine(ABC):
    """An adapter. Every method is called from one task of the event loop, one at a time, and may wait for the engine.

    Give each wait a time limit: while it lasts, the executor hears of no end. If a method raises an error, it is logged
    and called again a moment later.
    """

    def __init__(self, context: ExecutorContext) -> None:
        self.context = context

    @property
    def parallelism(self) -> int:
        """How many tries it may have at once; by default the setting `workers.slots`."""
        return self.context.settings.workers.slots

    async def start(self) -> None:  # noqa: B027 - optional, as `close` is: not every engine has a connection
        """Connect. An error ends the start of the scheduler."""

    @abstractmethod
    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        """Hand jobs to the engine, and return what became of each, in their order.

        After an error, the same jobs come again: half of them together, and so on, until a single job fails. Others go
        before that one from then on, and people read what the error said.
        """

    @abstractmethod
    async def cancel(self, engine_ids: Sequence[str]) -> None:
        """Drop jobs that no worker has claimed, as far as the engine can. Their tickets are void in any case."""

    @abstractmethod
    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        """Return how the engine sees these jobs, by their ids; a job that is left out is `unknown`.

        Of a job with a claim, it is asked only when its worker has been silent for too long, for the reason.
        """

    async def close(self) -> None:  # noqa: B027 - as `start`
        """Disconnect. The jobs go on."""
