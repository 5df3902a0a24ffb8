"""The parse dispatcher: parses changed files, stores the outcomes, and announces the DAGs that have changed.

    FileChanged ──▶ asked ──look (thread)──▶ nothing new
                              ├──▶ queued ──▶ claimed ──▶ parse, at most `parse.processes` at once ──▶ outcomes
                              └──▶ gone, or unreadable ───────────────────────────────────────────────▶ outcomes
    outcomes ──one transaction──▶ DagChanged

A tick does one bounded pass over all of it; the parses themselves run beside. `files.py` has the stage of each file.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from asynsched.channels import (
    CallbackRequested,
    Channels,
    DagChanged,
    FileChanged,
    FolderScanned,
    InstallationChanged,
    NameChanged,
)
from asynsched.clock import Clock
from asynsched.errors import SandboxError
from asynsched.parsing.files import Files, KnownFiles, Stage
from asynsched.parsing.looks import Look, LookRequest, Step, look_at, next_step, runtime_of, shown
from asynsched.parsing.processes.informed_parser import InformedParser, ParseSlots
from asynsched.parsing.processes.sandbox_parser import options_of_parses, report_of_error, report_of_failure
from asynsched.parsing.progress import ParseLog, ParsesUnderWay, ReadingProgress
from asynsched.parsing.readable_secrets import ReadableSecrets, with_other_options
from asynsched.serialization.schema import ParseReport
from asynsched.service import Service, until_available
from asynsched.settings import Settings
from asynsched.store.dags.files import claim_from_the_gone, claim_unclaimed, drop_claims, get_files, list_errors_of
from asynsched.store.dags.parse_results import (
    DagDefaults,
    FileStamp,
    Outcome,
    load_files,
    may_call_listeners,
    store_outcomes,
)
from asynsched.store.database import Database
from asynsched.store.schema import DagFileRow

AHEAD_SECONDS = 0.25
"""How long the ready jobs may keep a slot busy, estimated from the duration of the last parse."""
MOST_AHEAD = 4
"""How many jobs are ready at most, for each slot."""
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


def _is_of_look(report: ParseReport, look: Look) -> bool:
    """Whether a parse has read the text that the look before it found; true if the report does not tell."""
    read = [source.content_hash for source in report.sources if source.path == report.path]
    return not read or not look.text_hash or look.text_hash in read


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
        silent: Callable[[], Collection[str]],
    ) -> None:
        self._database = database
        self._clock = clock
        self.scheduler_id = scheduler_id
        self.runtime = runtime
        self._silent = silent

    async def take(self, jobs: Sequence[ParseJob], known: KnownFiles) -> tuple[set[str], set[str]]:
        """Claim files, unless another scheduler parses them, or has parsed them meanwhile. Waits for the database.

        Returns:
            The files claimed for this scheduler until their outcomes are stored, and the files that others are parsing.
            Others have parsed the remaining files as they are now, and their results are in `known`.
        """
        return await until_available(self._clock, self._take, jobs, known)

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
        is_same = (row.content_hash, row.runtime) == (job.look.content_hash, self.runtime)
        return is_same and known.has_modules_of(row) and known.has_names_of(row)


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
    """The files whose parses have not begun: queued; being prepared, that is claimed and their stored rows read; ready.

    It moves these files to their stages.

    Jobs are prepared together and ahead, so that no parse waits for the database. They are prepared only for the next
    moment of parses, because other schedulers do not parse the files that this one has claimed.

    Without `claims`, there are no other schedulers.

    Args:
        move: Moves a file to a stage; None: to no stage.
    """

    def __init__(
        self,
        n_slots: int,
        claims: ParseClaims | None,
        prepare: Callable[[Sequence[str]], Awaitable[None]],
        move: Callable[[str, Stage | None], None],
    ) -> None:
        self._n_slots = n_slots
        self._move = move
        self._prepare = prepare
        self._claims = claims
        self._n_ahead = 0
        self._queued = _Queue()
        self._begun: list[ParseJob] = []
        self._ready = _Queue()

    @property
    def n_waiting(self) -> int:
        return len(self._queued) + len(self._begun) + len(self._ready)

    def add(self, job: ParseJob) -> None:
        self._move(job.path, Stage.QUEUED)
        self._queued.add(job)

    def discard(self, path: str) -> None:
        self._queued.discard(path)

    def hasten(self, is_hurried: Callable[[str], bool]) -> None:
        self._ready.hasten(is_hurried)

    def note_parsed(self, seconds: float) -> None:
        """Note how long a parse took; 0: it gave no report, and may have taken long."""
        self._n_ahead = self._n_slots * min(MOST_AHEAD, int(AHEAD_SECONDS / seconds)) if seconds else 0

    def begin(self, n_free: int) -> list[ParseJob]:
        """Take from the queue the jobs to prepare together now.

        While there is little room, only a changed file is taken: soon there will be room for several at once.
        """
        wanted = n_free + self._n_ahead
        room = wanted - len(self._begun) - len(self._ready)
        if 2 * room < wanted:
            is_urgent_ahead = self._ready.has_urgent or any(job.request.is_urgent for job in self._begun)
            room = 1 if self._queued.has_urgent and not is_urgent_ahead else 0
        jobs = [self._queued.pop() for _ in range(min(room, len(self._queued)))]
        for job in jobs:
            self._move(job.path, Stage.CLAIMED)
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
            else:
                self._move(job.path, None)
        return [(job, job.path in busy) for job in jobs if job.path not in own]

    def pop(self) -> ParseJob | None:
        """Take the next job whose parse begins now; None without any."""
        if not self._ready:
            return None
        job = self._ready.pop()
        self._move(job.path, Stage.PARSING)
        return job


BATCHING_DELAY = timedelta(milliseconds=100)
"""How long an outcome waits to share a transaction while more files wait to be parsed. The last one never waits."""
ENOUGH = 20
"""As many outcomes wait no longer: a larger transaction would make none of them cheaper."""
MOST_STORED = 100
"""How many outcomes share a transaction at most."""


class ParseDispatcher(Service):
    """Parses changed files; without `claims`, all of them by itself.

    `installation` is the digest of the installation's own code, as it is when the service is made.
    """

    name = "parse dispatcher"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        parser: InformedParser,
        claims: ParseClaims | None = None,
        installation: str = "",
    ) -> None:
        super().__init__(clock)
        self._settings = settings
        self._root = settings.dags_path
        self._claims = claims
        self._runtime = runtime_of(settings, installation)
        self._defaults = DagDefaults(settings.max_active_runs_per_dag, settings.dags_are_paused_at_creation)
        self._channels = channels
        self._database = database
        self._parser = parser
        self._secrets = ReadableSecrets(settings.parse, database.read)
        self._name = None if claims is None else claims.scheduler_id
        self._parses: TaskGroup | None = None
        self._slots = ParseSlots(settings.parse.processes, self.wake)
        self._files = Files(timedelta(seconds=settings.watch.min_file_process_interval))
        self.known = self._files.known
        self.jobs = Jobs(settings.parse.processes, claims, parser.prepare, self._files.move)
        self._outcomes: list[tuple[datetime, Outcome]] = []
        self._is_unanswered = False
        self._log = ParseLog(timedelta(seconds=settings.watch.print_stats_interval), clock.now())
        self._is_loaded = False
        self._is_ticking = False
        self.progress = ReadingProgress()
        self.under_way = ParsesUnderWay(clock, min(settings.parse.import_timeout, settings.parse.timeout))

    # Questions from other services

    def reparse(self, path: str) -> None:
        """Parse a file, even if nothing about it is new. `path` is relative to the DAG folder."""
        self._files.ask(LookRequest(path, is_urgent=True, is_forced=True, asked_at=self.clock.now()))
        self.wake()

    @property
    def is_idle(self) -> bool:
        """Whether the folder was scanned, and every file found so far is parsed and stored."""
        has_heard_all = self._files.n_scans > 0 and self._channels.file_changes.empty()
        return has_heard_all and not self._is_ticking and self._files.is_idle

    async def wait_idle(self) -> None:
        while not self.is_idle:
            await self.progress.step()

    # The service

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Dispatch until cancelled, which ends the parses under way."""
        self._channels.file_changes.wakes(self.wake)
        async with anyio.create_task_group() as self._parses:
            self._parses.start_soon(self._parser.warm_up, self.progress)
            await super().run(task_status=task_status)

    async def tick(self, now: datetime) -> None:
        self._is_ticking = True
        try:
            if not self._is_loaded:
                await self._load()
            await self._store(now)
            self._take(now)
            if read := self._files.to_compare():
                self._files.note_digests(await self._secrets.digests(read))
            await self._look(now)
            self._start_parses()
            self._log.statistics(self.known, now)
            self._plan(now)
        finally:
            self._is_ticking = False
        self.progress.note(is_idle=self.is_idle)

    def _take(self, now: datetime) -> None:
        changes: list[FileChanged | FolderScanned | NameChanged] = []
        for message in self._channels.file_changes.take():
            if isinstance(message, InstallationChanged):
                self._note_installation(message.digest)
            else:
                changes.append(message)
        self._files.take(changes, now)

    def _note_installation(self, digest: str) -> None:
        """Parse all files again: no parse counts that was made with other plugins, policies or helper modules."""
        for row in self.known:
            self._files.ask(LookRequest(row.path, is_urgent=True))
        self._runtime = runtime_of(self._settings, digest)
        if self._claims is not None:
            self._claims.runtime = self._runtime

    async def _load(self) -> None:
        rows, errors = await self._database.read(load_files)
        self._log.remember(errors)
        options = await anyio.to_thread.run_sync(options_of_parses, self._settings)
        for row in rows:
            if with_other_options(row.asked, options):
                row = replace(row, runtime="")  # as if no runtime had parsed it
            self.known.put(row, frozenset(error.kind for error in errors.get(row.path, ())))
        self._is_loaded = True

    def _plan(self, now: datetime) -> None:
        times = (
            self._files.next_at, self._log.next_statistics_at, self._outcomes_due_at, self.under_way.log_long_ones(now)
        )  # fmt: skip
        self.due_at = min(filter(None, times), default=None)
        if self._files.are_asked or self._are_outcomes_due(now):
            self.wake()

    # Looks

    async def _look(self, now: datetime) -> None:
        requests = self._files.to_look(now)
        if not requests:
            return
        looks = await anyio.to_thread.run_sync(lambda: [look_at(self._root, request.path) for request in requests])
        for request, look in zip(requests, looks, strict=True):
            if look is None:
                self._files.ask_later(request, now)
            elif self._files.is_busy(shown(request.path)):
                self._files.ask(request)  # it was claimed meanwhile: look once more when its outcome is stored
            else:
                self._decide(request, look, now)

    def _decide(self, request: LookRequest, look: Look, now: datetime) -> None:
        path = shown(request.path)
        known = self.known.get(path)
        self._files.note_look(request, look)
        if request.is_for_module and not self.known.has_modules_of(known):
            request = replace(request, is_forced=True)
        step = next_step(
            request,
            look,
            known,
            is_ignored=self._files.is_ignored(path),
            runtime=self._runtime,
            safe_mode=self._settings.watch.safe_mode,
            now_seconds=now.timestamp(),
            may_have_healed=self.known.has_transient_error(path),
        )
        match step:
            case Step.PARSE:
                self.jobs.add(ParseJob(path, look, request))
            case Step.REMOVE:
                self.jobs.discard(path)
                self._conclude(Outcome(path), now)
            case Step.REPORT:
                assert look.error is not None
                self.jobs.discard(path)
                # No claim is needed: each scheduler finds the error itself.
                stamp = FileStamp("", 0, 0, self._runtime)
                self._conclude(Outcome(path, report_of_error(path, look.error), stamp), now)
            case Step.LOOK_LATER:
                self._files.ask_later(request, now)
            case Step.NOTHING:
                self._log.still_failing(path)

    # Parses

    def _start_parses(self) -> None:
        """Begin the parses of the jobs that are ready, and prepare the next ones."""
        assert self._parses is not None
        self.jobs.hasten(self._files.is_hurried)
        while self._slots.n_free and (job := self.jobs.pop()):
            self._slots.take()
            self._parses.start_soon(self._parse, job)
        if jobs := self.jobs.begin(self._slots.n_free):
            self._parses.start_soon(self._prepare, jobs)

    async def _prepare(self, jobs: list[ParseJob]) -> None:
        for job, is_being_parsed in await self.jobs.prepare(jobs, self.known):
            if is_being_parsed:
                self._files.ask_later(job.look_again(self.known), self.clock.now())
        self._start_parses()
        self.wake()

    async def _parse(self, job: ParseJob) -> None:
        self.under_way.begin(job.path)
        try:
            report = await self._parser.parse(job.path, self._slots, is_edited=job.request.is_urgent)
        except SandboxError as exc:
            report = report_of_failure(job.path, exc)
        finally:
            self.under_way.end(job.path)
            self._slots.give_back()
        self.jobs.note_parsed(report.duration)
        # Do not leave this to the next tick: the present one may still be storing earlier outcomes.
        self._start_parses()
        stamp = FileStamp(job.look.content_hash, job.look.modified_ns, job.look.size, self._runtime)
        is_of_look = _is_of_look(report, job.look)
        if not is_of_look:
            # The file was edited between the look and the parse, which may have read a part of it: look at it again.
            stamp = stamp._replace(content_hash="")
            self._files.ask(LookRequest(job.path, is_urgent=True))
        outcome = Outcome(job.path, report, stamp, claimed_by=self._name, keeps_dags=not is_of_look)
        if report.errors:
            after = await anyio.to_thread.run_sync(look_at, self._root, job.path)
            if after is not None and after.is_gone:
                outcome = Outcome(job.path, claimed_by=self._name)
        self._conclude(outcome, self.clock.now())
        self.wake()

    # Outcomes

    def _conclude(self, outcome: Outcome, now: datetime) -> None:
        self._files.move(outcome.path, Stage.STORING)
        self._outcomes.append((now, outcome))

    @property
    def _outcomes_due_at(self) -> datetime | None:
        """When outcomes are to be stored even if files wait to be parsed; None without outcomes."""
        return self._outcomes[0][0] + BATCHING_DELAY if self._outcomes else None

    def _are_outcomes_due(self, now: datetime) -> bool:
        """Whether outcomes are to be stored now: some share a transaction while more files wait to be parsed."""
        due_at = self._outcomes_due_at
        return due_at is not None and (not self.jobs.n_waiting or len(self._outcomes) >= ENOUGH or now >= due_at)

    async def _store(self, now: datetime) -> None:
        """Store the outcomes that are due, all of them in one transaction, and announce the DAGs that changed."""
        if not self._are_outcomes_due(now):
            return
        outcomes = [outcome for _, outcome in self._outcomes[:MOST_STORED]]
        may_be_stored, self._is_unanswered = self._is_unanswered, True
        stored = await self._database.write(
            store_outcomes, outcomes, now=now, defaults=self._defaults, may_be_stored=may_be_stored
        )
        self._is_unanswered = False
        # Outcomes that have arrived meanwhile wait for the next transaction.
        del self._outcomes[: len(outcomes)]
        self._files.stored([outcome.path for outcome in outcomes], stored, self.clock.now())
        for file in stored:
            self._log.stored(file, self.metrics)
        for file in stored:
            for dag_id in file.changed_dags:
                await self._channels.dag_changes.put(DagChanged(dag_id))
        if any(may_call_listeners(outcome) for outcome in outcomes):
            self._channels.callbacks.put_nowait(CallbackRequested())
