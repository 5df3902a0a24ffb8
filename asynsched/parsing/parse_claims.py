"""Which files this scheduler parses, where several parse the same folder: each file is parsed by one of them."""

import enum
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.parsing.freshness import LookRequest
from asynsched.parsing.known_files import KnownFiles
from asynsched.parsing.parse_queue import ParseJob
from asynsched.store.dags.files import DagFileRow, get_files, list_errors_of
from asynsched.store.dags.parse_claims import claim_from_the_gone, claim_unclaimed, drop_claims
from asynsched.store.database import Database

RETRY_DELAY = timedelta(seconds=1)
NEVER = datetime.min.replace(tzinfo=UTC)


class Claim(enum.Enum):
    """What a scheduler has to do with a file."""

    OWN = enum.auto()
    """Parse it; the claim ends when what was found is stored."""
    DONE = enum.auto()
    """Nothing: another scheduler has parsed it as it is."""
    BUSY = enum.auto()
    """Look again: another scheduler is parsing it."""


def again(job: ParseJob, known: KnownFiles) -> LookRequest:
    """Return the request to look again at a file that another scheduler is parsing."""
    waited_from = job.waited_from or _parsed_at(job, known)
    return LookRequest(job.path, is_urgent=True, is_forced=True, asked_at=job.asked_at, waited_from=waited_from)


def _parsed_at(job: ParseJob, known: KnownFiles) -> datetime:
    row = known.get(job.path)
    return NEVER if row is None else row.parsed_at


class ParseClaims:
    """Claims files in the database, and takes over what others have found.

    Args:
        runtime: Names what parses here: what another runtime has found does not count.
        silent: Returns the schedulers that have not been heard of for a lease. What they were parsing is parsed here:
            not as late as their runs are taken over, for nothing that they find is stored then.
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

    async def take(self, jobs: Sequence[ParseJob], known: KnownFiles) -> dict[str, Claim]:
        """Claim files, unless another scheduler parses them, or has done so meanwhile. Waits for the database.

        Returns:
            What this scheduler has to do with each, by path.
        """
        while True:
            try:
                return await self._take(jobs, known)
            except StoreUnavailable:
                await self._clock.sleep(RETRY_DELAY)

    async def _take(self, jobs: Sequence[ParseJob], known: KnownFiles) -> dict[str, Claim]:
        claimed = await self._claim({job.path for job in jobs})
        rows = await self._database.read_at_once(get_files, sorted(claimed)) if claimed else {}
        done = {job.path: row for job in jobs if (row := rows.get(job.path)) and self._is_done(job, row, known)}
        if done:
            await self._leave(done, known)
        own = claimed - done.keys()
        return {
            job.path: Claim.OWN if job.path in own else Claim.DONE if job.path in done else Claim.BUSY for job in jobs
        }

    async def _leave(self, done: dict[str, DagFileRow], known: KnownFiles) -> None:
        """Take over what another scheduler has found of files, and give up their claims."""
        errors = await self._database.read(list_errors_of, sorted(done))
        await self._database.write(drop_claims, sorted(done), self.scheduler_id)
        for path, row in done.items():
            kinds = (error.kind for error in errors if error.file_path == path and not error.is_warning)
            known.put(row, frozenset(kinds))

    async def _claim(self, paths: set[str]) -> set[str]:
        now = self._clock.now()
        # Most files are nobody's: claiming these is one message to the server, and no transaction.
        claimed = await self._database.write_at_once(claim_unclaimed, paths, self.scheduler_id, now)
        if others := paths - claimed:
            claimed |= await self._database.write(claim_from_the_gone, others, self.scheduler_id, now, self._silent())
        return claimed

    def _is_done(self, job: ParseJob, row: DagFileRow, known: KnownFiles) -> bool:
        """Whether somebody has parsed the file since this scheduler last heard of it, and as it is now."""
        if row.parsed_at == (job.waited_from or _parsed_at(job, known)):
            return False
        if job.asked_at is not None and row.parsed_at < job.asked_at:
            return False
        is_same = (row.content_hash, row.runtime) == (job.content_hash, self._runtime)
        return is_same and known.has_modules_of(row)
