"""Jobs on their way from the queue to their parses: claimed, and what is stored of their files read, some together.

That is done ahead, so that no parse waits for the database: as far ahead as a moment of parses reaches, for what this
scheduler has claimed is left alone by others.
"""

from collections.abc import Iterable

from asynsched.parsing.known_files import KnownFiles
from asynsched.parsing.parse_claims import Claim, ParseClaims
from asynsched.parsing.parse_queue import ParseJob, ParseQueue
from asynsched.parsing.processes.parser import Parser

AHEAD_SECONDS = 0.25
"""How long those that wait for a slot may keep it busy, going by how long the last parse took."""
MOST_AHEAD = 4
"""How many wait at most, for each slot."""


class Preparation:
    """Prepares jobs, and holds those that are prepared.

    Args:
        queue: Where they come from.
        n_slots: Parses that may run at once.
        parser: Reads what is stored.
        claims: Which files are this scheduler's to parse; None: all are.
    """

    def __init__(self, queue: ParseQueue, n_slots: int, parser: Parser, claims: ParseClaims | None) -> None:
        self._queue = queue
        self._n_slots = n_slots
        self._parser = parser
        self._claims = claims
        self._n_ahead = 0
        self._begun: list[ParseJob] = []
        self._ready = ParseQueue()

    @property
    def n_waiting(self) -> int:
        """How many jobs there are whose parses have not begun, those of the queue included."""
        return len(self._queue) + len(self._begun) + len(self._ready)

    def note_parsed(self, seconds: float) -> None:
        """Learn how long a parse takes; 0: one that gave no report, and may have taken long."""
        self._n_ahead = self._n_slots * min(MOST_AHEAD, int(AHEAD_SECONDS / seconds)) if seconds else 0

    def begin(self, n_free: int) -> list[ParseJob]:
        """Take the jobs out of the queue that are to be prepared now, together.

        Nothing is taken for little room: soon there is room for more at once. A file that has changed waits for none.

        Args:
            n_free: Parses that may begin.
        """
        wanted = n_free + self._n_ahead
        room = wanted - len(self._begun) - len(self._ready)
        if 2 * room < wanted:
            room = 1 if self._queue.has_urgent and not self._has_urgent() else 0
        jobs = [self._queue.pop() for _ in range(min(room, len(self._queue)))]
        self._begun += jobs
        return jobs

    def _has_urgent(self) -> bool:
        return self._ready.has_urgent or any(job.is_urgent for job in self._begun)

    async def prepare(self, jobs: list[ParseJob], known: KnownFiles) -> list[tuple[ParseJob, Claim]]:
        """Prepare what was taken, and return the jobs that are not this scheduler's, with the reason."""
        claims = {} if self._claims is None else await self._claims.take(jobs, known)
        of_jobs = [(job, claims.get(job.path, Claim.OWN)) for job in jobs]
        own = [job for job, claim in of_jobs if claim is Claim.OWN]
        if own:
            await self._parser.prepare([job.path for job in own])
        self._begun = [job for job in self._begun if job not in jobs]
        for job in own:
            self._ready.add(job)
        return [(job, claim) for job, claim in of_jobs if claim is not Claim.OWN]

    def hasten(self, paths: Iterable[str]) -> None:
        """Bring those files forward that are prepared: they have changed since."""
        for path in paths:
            self._ready.hasten(path)

    def pop(self) -> ParseJob | None:
        """Take out the next job whose parse may begin; None without any."""
        return self._ready.pop() if self._ready else None
