"""Workers that stay warm: they have ended a try, and wait at this scheduler for another one.

    worker ──the end of a try──▶ waits ──hand_over──▶ offered ──the worker's claim──▶ taken
                                   │                     └── no claim soon ──▶ the engine gets the ticket
                                   └── its time is over ──▶ refused: the worker ends

Nothing of this is stored: a scheduler that has restarted refuses the workers that have waited, and they end. A ticket
that goes to a worker, whose answer may be lost or late, and to the engine, too, starts one try: the claim decides.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from asynsched.clock import Clock
from asynsched.errors import TicketRefused
from asynsched.protocol.worker_messages import Proof, Ticket
from asynsched.store.tickets import digest_of_secret

POLL_SECONDS = 20.0
"""Longest time that a worker's request waits: shorter than the time limits of workers and of usual proxies."""
CLAIM_SECONDS = 3.0
"""Longest time that a ticket waits for the claim of a worker, which may be lost."""
NO_OTHER = "there is no other try for this worker"
MOST_TAKEN = 10_000
"""Tries in warm workers whose jobs are remembered."""


@dataclass(eq=False)
class _Waiting:
    """A worker that waits.

    Attributes:
        last: The ticket of the try that has ended. Its secret admits the worker.
        job: The engine's name of the worker's job.
        until: On the monotonic clock.
    """

    last: Ticket
    job: str
    until: float
    ticket: Ticket | None = None
    is_offered: anyio.Event = field(default_factory=anyio.Event)


class WarmWorkers:
    """Hands tickets to workers that wait.

    Args:
        seconds: How long a worker waits; 0: no worker stays.
        most: How many may wait at the same time.
    """

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock, self._seconds, self._most = clock, seconds, most
        self._waiting: dict[str, _Waiting] = {}
        self._claims: dict[str, anyio.Event] = {}
        """Of the tickets that are offered, by their tokens."""
        self._jobs: dict[str, str] = {}
        """The jobs of tries that warm workers have taken, by their tokens."""

    def stay(self, last: Ticket) -> None:
        """Admit the worker of a try that has just ended to those that wait, if there is room."""
        now = self._clock.monotonic()
        self._waiting = {token: one for token, one in self._waiting.items() if one.until > now}
        if self._seconds and len(self._waiting) < self._most:
            job = self._jobs.pop(last.token, "")
            self._waiting.setdefault(last.token, _Waiting(last, job, now + self._seconds))

    def close(self) -> None:
        """End the wait of all workers, and admit no others."""
        self._seconds = 0.0
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.is_offered.set()

    async def hand_over(self, ticket: Ticket, name_of: Callable[[Ticket], str], fits: Callable[[str], bool]) -> str:
        """Hand a ticket to a worker, and return the engine's name of its job; empty: no worker has taken it.

        Args:
            name_of: Returns the name of the job that was made for a ticket.
            fits: Whether the worker of a job may run the try.
        """
        now = self._clock.monotonic()
        for one in list(self._waiting.values()):
            job = one.job or name_of(one.last)
            if one.ticket is not None or one.until <= now or not fits(job):
                continue
            one.ticket, claim = ticket, anyio.Event()
            self._claims[ticket.token] = claim
            one.is_offered.set()
            with anyio.move_on_after(CLAIM_SECONDS):
                await claim.wait()
            self._claims.pop(ticket.token, None)
            self._drop(one)
            if not claim.is_set():
                return ""  # another worker may be lost, too, and cost as long
            self._jobs[ticket.token] = job
            if len(self._jobs) > MOST_TAKEN:
                del self._jobs[next(iter(self._jobs))]
            return job
        return ""

    def note_claim(self, token: str) -> None:
        """Note that a worker has claimed a try."""
        if (claim := self._claims.get(token)) is not None:
            claim.set()

    async def next(self, proof: Proof) -> Ticket | None:
        """Return a ticket for the worker whose try has ended; None: it may ask again.

        Raises:
            TicketRefused: The worker is to end.
        """
        one = self._waiting.get(proof.token)
        if one is None or not hmac.compare_digest(*map(digest_of_secret, (one.last.secret, proof.secret))):
            raise TicketRefused(NO_OTHER)
        left = one.until - self._clock.monotonic()
        with anyio.move_on_after(min(left, POLL_SECONDS)):
            await one.is_offered.wait()
        if self._waiting.get(proof.token) is not one or (one.ticket is None and left <= POLL_SECONDS):
            self._drop(one)
            raise TicketRefused(NO_OTHER)
        if one.ticket is not None:
            self._drop(one)
        return one.ticket

    def _drop(self, one: _Waiting) -> None:
        if self._waiting.get(one.last.token) is one:
            del self._waiting[one.last.token]
