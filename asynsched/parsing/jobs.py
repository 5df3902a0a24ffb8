"""Jobs: the files whose parses have not begun, on their way from the queue to a slot.

    queued ──▶ claimed, and the stored rows of their DAGs read ──▶ ready ──▶ parsed

Jobs are prepared together and ahead, so that no parse waits for the database. They are prepared only for the next
moment of parses, because other schedulers do not parse the files that this one has claimed.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.parsing.files import KnownFiles
from asynsched.parsing.looks import Look, LookRequest
from asynsched.store.dags.files import claim_from_the_gone, claim_unclaimed, drop_claims, get_files, list_errors_of
from asynsched.store.database import Database
from asynsched.store.schema import DagFileRow

AHEAD_SECONDS = 0.25
"""How long the ready jobs may keep a slot busy, estimated from the duration of the last parse."""
MOST_AHEAD = 4
"""How many jobs are ready at most, for each slot."""
RETRY_DELAY = timedelta(seconds=1)
NEVER = datetime.min.replace(tzinfo=UTC)


class ParseJob(Struct, frozen=True):
    """A file to be parsed: the look at it that decided so, and the request for that look."""

    path: str
    look: Look
    request: LookRequest

    def look_again(self, known: KnownFiles) -> LookRequest:
        """Return the request to look again, because another scheduler is parsing the file."""
        waited_from = self.request.waited_from or _parsed_at(self.path, known)
        return replace(self.request, is_urgent=True, is_forced=True, waited_from=waited_from)


def _parsed_at(path: str, known: KnownFiles) -> datetime:
    row = known.get(path)
    return NEVER if row is None else row.parsed_at


class ParseClaims:
    """Claims files in the database, so that only one scheduler parses each, and takes over the results of others.

    Args:
        runtime: Names the runtime of the parses here; results of another runtime do not count.
        silent: Returns the schedulers that have been silent for a lease. Their files are parsed here at once, earlier
            than their runs are taken over: their results are no longer stored.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        scheduler_id: str,
        runtime: str,
        silent: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._database = database
        self._clock = clock
        self.scheduler_id = scheduler_id
        self._runtime = runtime
        self._silent = silent

    async def take(self, jobs: Sequence[ParseJob], known: KnownFiles) -> tuple[set[str], set[str]]:
        """Claim files, unless another scheduler parses them, or has parsed them meanwhile. Waits for the database.

        Returns:
            The files claimed for this scheduler until their outcomes are stored, and the files that others are parsing.
            Others have parsed the remaining files as they are now, and their results are in `known`.
        """
        while True:
            try:
                return await self._take(jobs, known)
            except StoreUnavailable:
                await self._clock.sleep(RETRY_DELAY)

    async def _take(self, jobs: Sequence[ParseJob], known: KnownFiles) -> tuple[set[str], set[str]]:
        paths = {job.path for job in jobs}
        claimed = await self._claim(paths)
        rows = await self._database.read_at_once(get_files, sorted(claimed)) if claimed else {}
        done = {job.path: row for job in jobs if (row := rows.get(job.path)) and self._is_done(job, row, known)}
        if done:
            await self._leave(done, known)
        return claimed - done.keys(), paths - claimed

    async def _claim(self, paths: set[str]) -> set[str]:
        now = self._clock.now()
        # Most files are unclaimed: claiming these takes one message to the server, and no transaction.
        claimed = await self._database.write_at_once(claim_unclaimed, paths, self.scheduler_id, now)
        if others := paths - claimed:
            claimed |= await self._database.write(claim_from_the_gone, others, self.scheduler_id, now, self._silent())
        return claimed

    async def _leave(self, done: dict[str, DagFileRow], known: KnownFiles) -> None:
        """Take over the results of other schedulers, and drop the claims."""
        errors = await self._database.read(list_errors_of, sorted(done))
        await self._database.write(drop_claims, sorted(done), self.scheduler_id)
        for path, row in done.items():
            kinds = (error.kind for error in errors if error.file_path == path and not error.is_warning)
            known.put(row, frozenset(kinds))

    def _is_done(self, job: ParseJob, row: DagFileRow, known: KnownFiles) -> bool:
        """Whether another scheduler has parsed the file as it is now, since this one last heard of it."""
        request = job.request
        if row.parsed_at == (request.waited_from or _parsed_at(job.path, known)):
            return False
        if request.asked_at is not None and row.parsed_at < request.asked_at:
            return False
        is_same = (row.content_hash, row.runtime) == (job.look.content_hash, self._runtime)
        return is_same and known.has_modules_of(row)


class _Queue:
    """Files that changed first, then those found at the start, each in the order of arrival. A file is in it once."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, ParseJob] = OrderedDict()
        self._patient: OrderedDict[str, ParseJob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._patient)

    @property
    def has_urgent(self) -> bool:
        return bool(self._urgent)

    def add(self, job: ParseJob) -> None:
        """Queue a job, or replace and bring forward the job that is queued for its file."""
        if job.request.is_urgent or job.path in self._urgent:
            self._patient.pop(job.path, None)
            self._urgent[job.path] = job
        else:
            self._patient[job.path] = job

    def hasten(self, is_hurried: Callable[[str], bool]) -> None:
        for path in list(filter(is_hurried, self._patient)):
            self._urgent[path] = self._patient.pop(path)

    def discard(self, path: str) -> None:
        self._urgent.pop(path, None)
        self._patient.pop(path, None)

    def pop(self) -> ParseJob:
        return (self._urgent or self._patient).popitem(last=False)[1]


class Jobs:
    """The jobs that are queued, being prepared, or ready.

    Args:
        n_slots: How many parses may run at once.
        claims: Claims files beside other schedulers; None: there are no other schedulers.
        prepare: Reads the stored rows that the parses of these files need.
    """

    def __init__(
        self, n_slots: int, claims: ParseClaims | None, prepare: Callable[[Sequence[str]], Awaitable[None]]
    ) -> None:
        self._n_slots = n_slots
        self._prepare = prepare
        self._claims = claims
        self._n_ahead = 0
        self._queued = _Queue()
        self._begun: list[ParseJob] = []
        self._ready = _Queue()

    @property
    def n_waiting(self) -> int:
        """How many jobs there are."""
        return len(self._queued) + len(self._begun) + len(self._ready)

    def add(self, job: ParseJob) -> None:
        """Queue a file, or bring forward one that is queued."""
        self._queued.add(job)

    def discard(self, path: str) -> None:
        """Remove a file from the queue, if it is there."""
        self._queued.discard(path)

    def hasten(self, is_hurried: Callable[[str], bool]) -> None:
        """Bring forward the ready jobs of files that have changed again."""
        self._ready.hasten(is_hurried)

    def note_parsed(self, seconds: float) -> None:
        """Note how long a parse took; 0: it gave no report, and may have taken long."""
        self._n_ahead = self._n_slots * min(MOST_AHEAD, int(AHEAD_SECONDS / seconds)) if seconds else 0

    def begin(self, n_free: int) -> list[ParseJob]:
        """Take from the queue the jobs to prepare together now.

        While there is little room, only a changed file is taken: soon there will be room for several at once.

        Args:
            n_free: How many parses may begin.
        """
        wanted = n_free + self._n_ahead
        room = wanted - len(self._begun) - len(self._ready)
        if 2 * room < wanted:
            is_urgent_ahead = self._ready.has_urgent or any(job.request.is_urgent for job in self._begun)
            room = 1 if self._queued.has_urgent and not is_urgent_ahead else 0
        jobs = [self._queued.pop() for _ in range(min(room, len(self._queued)))]
        self._begun += jobs
        return jobs

    async def prepare(self, jobs: list[ParseJob], known: KnownFiles) -> list[tuple[ParseJob, bool]]:
        """Prepare jobs that `begin` returned.

        Returns:
            The jobs of other schedulers, each with whether it is being parsed; otherwise it has been parsed already.
        """
        own, busy = {job.path for job in jobs}, set[str]()
        if self._claims is not None:
            own, busy = await self._claims.take(jobs, known)
        if own:
            await self._prepare([job.path for job in jobs if job.path in own])
        self._begun = [job for job in self._begun if job not in jobs]
        for job in jobs:
            if job.path in own:
                self._ready.add(job)
        return [(job, job.path in busy) for job in jobs if job.path not in own]

    def pop(self) -> ParseJob | None:
        """Take the next job whose parse may begin; None without any."""
        return self._ready.pop() if self._ready else None
