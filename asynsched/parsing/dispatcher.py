"""The parse dispatcher: has changed files parsed, stores what was found, says which DAGs have changed.

    FileChanged ──▶ requests ──look (thread)──▶ nothing new
                                       ├──▶ queue ──▶ prepared ──▶ parse, at most `parse.processes` at once ──▶ outcomes
                                       └──▶ gone, or cannot be read ──────────────────────────────────────────▶ outcomes
    outcomes ──one transaction──▶ DagChanged

A tick does one bounded pass over all of it; the parses themselves run beside. What happens to a file during its parse
is looked at afterwards (`look_requests.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from asynsched.channels import Channels, DagChanged
from asynsched.clock import Clock
from asynsched.errors import SandboxError
from asynsched.parsing.examination import Examined, examine, shown
from asynsched.parsing.freshness import SETTLED_SECONDS, TRANSIENT_KINDS, LookRequest, Step, next_step, runtime_of
from asynsched.parsing.known_files import KnownFiles
from asynsched.parsing.look_requests import LookRequests
from asynsched.parsing.outcome_batch import OutcomeBatch
from asynsched.parsing.parse_claims import Claim, ParseClaims, again
from asynsched.parsing.parse_log import ParseLog
from asynsched.parsing.parse_queue import ParseJob, ParseQueue, job_of
from asynsched.parsing.preparation import Preparation
from asynsched.parsing.processes.parse_slots import ParseSlots
from asynsched.parsing.processes.parser import Parser, report_of_error, report_of_failure
from asynsched.parsing.progress import ParsesUnderWay, ReadingProgress
from asynsched.parsing.repeats import Repeats
from asynsched.parsing.seen_files import SeenFiles
from asynsched.service import Service
from asynsched.settings import Settings
from asynsched.store.dags.parse_results import DagDefaults, FileStamp, Outcome, Stored, load_files, store_outcomes
from asynsched.store.database import Database


class ParseDispatcher(Service):
    """Parses what changes.

    Args:
        claims: Which files are this scheduler's to parse; None: all are.
    """

    name = "parse dispatcher"

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        database: Database,
        clock: Clock,
        parser: Parser,
        claims: ParseClaims | None = None,
    ) -> None:
        super().__init__(clock)
        self._settings = settings
        self._root = settings.dags_path
        self._runtime = runtime_of(settings)
        self._defaults = DagDefaults(settings.max_active_runs_per_dag, settings.dags_are_paused_at_creation)
        self._channels = channels
        self._database = database
        self._parser = parser
        self._name = None if claims is None else claims.scheduler_id
        self._parses: TaskGroup | None = None
        self._slots = ParseSlots(settings.parse.processes, self.wake)
        self.known: KnownFiles | None = None
        self._requests = LookRequests()
        self._seen = SeenFiles(self._requests)
        self.queue = ParseQueue()
        self.prepared = Preparation(self.queue, settings.parse.processes, parser, claims)
        self._texts_at_start: dict[str, int] = {}
        self._outcomes = OutcomeBatch()
        self._is_unanswered = False
        self._n_later = 0
        self._log = ParseLog(timedelta(seconds=settings.watch.print_stats_interval), clock.now())
        self._repeats = Repeats(timedelta(seconds=settings.watch.min_file_process_interval))
        self._is_ticking = False
        self.progress = ReadingProgress()
        self.under_way = ParsesUnderWay(clock, min(settings.parse.import_timeout, settings.parse.timeout))

    # What others ask

    @property
    def n_scans(self) -> int:
        """How many full scans there were whose files are all taken in."""
        return self._seen.n_scans

    def reparse(self, path: str) -> None:
        """Have a file parsed, even if nothing about it is new. `path` is relative to the DAG folder."""
        self._requests.add(LookRequest(path, is_urgent=True, is_forced=True, asked_at=self.clock.now()))
        self.wake()

    @property
    def is_idle(self) -> bool:
        """Whether the folder was scanned, and every file found so far is parsed and stored."""
        return (
            self.n_scans > 0
            and not self._is_ticking
            and self._channels.file_changes.empty()
            and self._requests.is_empty
            and not (self.queue or self._outcomes or self._n_later)
        )

    async def wait_idle(self) -> None:
        """Wait until `is_idle`."""
        while not self.is_idle:
            await self.progress.step()

    # The service

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Dispatch until cancelled; parses that are under way are then ended."""
        self._channels.file_changes.wakes(self.wake)
        async with anyio.create_task_group() as self._parses:
            self._parses.start_soon(self._parser.warm_up, self.progress)
            await super().run(task_status=task_status)

    async def tick(self, now: datetime) -> None:
        self._is_ticking = True
        try:
            if self.known is None:
                self.known = await self._load()
            await self._pass(self.known, now)
        finally:
            self._is_ticking = False
        self.progress.note(is_idle=self.is_idle)

    async def _pass(self, known: KnownFiles, now: datetime) -> None:
        await self._store(known, now)
        self._seen.take(self._channels.file_changes.take(), known, now)
        await self._look(known, now)
        for path in self._repeats.due(known, now):
            self._requests.add(LookRequest(path, is_forced=True))
        self._start_parses(known)
        self._log.statistics(known, now)
        self._log.long_parses(self.under_way.take_new_long_ones())
        times = (
            self._repeats.next_at, self._log.next_statistics_at, self._outcomes.due_at,
            self.under_way.next_long_at(now),
        )  # fmt: skip
        self.due_at = min(filter(None, times), default=None)
        if self._requests.are_waiting or self._outcomes.is_ready(now, more_to_come=self.prepared.n_waiting > 0):
            self.wake()

    async def _load(self) -> KnownFiles:
        rows, errors = await self._database.read(load_files)
        kinds = {path: frozenset(error.kind for error in found) for path, found in errors.items()}
        self._log.remember(errors)
        return KnownFiles(rows, kinds)

    # Looks

    async def _look(self, known: KnownFiles, now: datetime) -> None:
        """Look at the files that are asked about, and decide what to do with each."""
        requests = self._requests.take()
        if not requests:
            return
        looks = await anyio.to_thread.run_sync(lambda: [examine(self._root, request.path) for request in requests])
        for request, examined in zip(requests, looks, strict=True):
            if examined is None:
                self._look_later(request)
            elif self._requests.is_busy(shown(request.path)):
                self._requests.add(request)  # its parse has begun meanwhile: look once more when that is over
            else:
                self._decide(known, request, examined, now)

    def _decide(self, known: KnownFiles, request: LookRequest, examined: Examined, now: datetime) -> None:
        path = shown(request.path)
        self._ask_importers(known, request, examined)
        if request.is_for_module and not known.has_modules_of(known.get(path)):
            request = replace(request, is_forced=True)
        step = next_step(
            request,
            examined,
            known.get(path),
            is_ignored=self._seen.is_ignored(path),
            runtime=self._runtime,
            safe_mode=self._settings.watch.safe_mode,
            now_seconds=now.timestamp(),
            may_have_healed=known.has_error(path, TRANSIENT_KINDS),
        )
        if step in (Step.REMOVE, Step.REPORT):
            self.queue.discard(path)
        match step:
            case Step.PARSE:
                self.queue.add(job_of(path, examined, request))
            case Step.REMOVE:
                self._requests.begin(path)
                self._outcomes.add(Outcome(path), now)
            case Step.REPORT:
                assert examined.error is not None
                self._requests.begin(path)
                report = report_of_error(path, examined.error)
                # Without a claim: each scheduler sees it by itself.
                self._outcomes.add(Outcome(path, report, FileStamp("", 0, 0, self._runtime)), now)
            case Step.LOOK_LATER:
                self._look_later(request)
            case Step.NOTHING:
                self._log.still_failing(path)

    def _ask_importers(self, known: KnownFiles, request: LookRequest, examined: Examined) -> None:
        """Have the files looked at that have imported a module with another text."""
        path, text = shown(request.path), None if examined.is_gone else examined.text_hash
        if path.endswith(".py") and examined.error is None:
            for importer in known.note_text(path, text):
                # One that is being parsed is compared with what it imported when that is known.
                if not self._requests.is_busy(importer):
                    self._requests.add(LookRequest(importer, is_urgent=request.is_urgent, is_for_module=True))

    def _look_later(self, request: LookRequest) -> None:
        async def ask_again() -> None:
            await self.clock.sleep(timedelta(seconds=SETTLED_SECONDS))
            self._n_later -= 1
            self._requests.add(request)
            self.wake()

        assert self._parses is not None
        self._n_later += 1
        self._parses.start_soon(ask_again)

    # Parses

    def _start_parses(self, known: KnownFiles) -> None:
        """Begin the parses of the jobs that are prepared, and have the next ones prepared."""
        assert self._parses is not None
        self.prepared.hasten(self._requests.hurried)
        while self._slots.n_free and (ready := self.prepared.pop()):
            self._slots.take()
            self._parses.start_soon(self._parse, known, ready)
        if jobs := self.prepared.begin(self._slots.n_free):
            for job in jobs:
                self._requests.begin(job.path)
                self._texts_at_start[job.path] = known.n_text_changes
            self._parses.start_soon(self._prepare, known, jobs)

    async def _prepare(self, known: KnownFiles, jobs: list[ParseJob]) -> None:
        for job, claim in await self.prepared.prepare(jobs, known):
            self._requests.end(job.path)
            if claim is Claim.BUSY:
                self._look_later(again(job, known))
        self._start_parses(known)
        self.wake()

    async def _parse(self, known: KnownFiles, job: ParseJob) -> None:
        self.under_way.begin(job.path)
        try:
            report = await self._parser.parse(job.path, self._slots)
        except SandboxError as exc:
            report = report_of_failure(job.path, exc)
        finally:
            self.under_way.end(job.path)
            self._slots.give_back()
        self.prepared.note_parsed(report.duration)
        # Not only in the next tick: this one may be storing what was parsed before.
        self._start_parses(known)
        stamp = FileStamp(job.content_hash, job.modified_ns, job.size, self._runtime)
        outcome = Outcome(job.path, report, stamp, claimed_by=self._name)
        if report.errors:
            after = await anyio.to_thread.run_sync(examine, self._root, job.path)
            if after is not None and after.is_gone:
                outcome = Outcome(job.path, claimed_by=self._name)
        self._outcomes.add(outcome, self.clock.now())
        self.wake()

    # Results

    async def _store(self, known: KnownFiles, now: datetime) -> None:
        """Store what is ready, all of it in one transaction, and tell of the DAGs that changed."""
        if not self._outcomes.is_ready(now, more_to_come=self.prepared.n_waiting > 0):
            return
        outcomes = self._outcomes.first()
        may_be_stored, self._is_unanswered = self._is_unanswered, True
        stored = await self._database.write(
            store_outcomes, outcomes, now=now, defaults=self._defaults, may_be_stored=may_be_stored
        )
        self._is_unanswered = False
        self._outcomes.stored(len(outcomes))
        self._take_up(known, stored)
        for path in {outcome.path for outcome in outcomes} - {file.path for file in stored}:
            # Another scheduler has taken this one for gone, and parses the file: its result is waited for.
            self._requests.end(path)
            self._requests.add(LookRequest(path, is_urgent=True, is_forced=True))
        for file in stored:
            for dag_id in file.changed_dags:
                await self._channels.dag_changes.put(DagChanged(dag_id))

    def _take_up(self, known: KnownFiles, stored: Sequence[Stored]) -> None:
        for file in stored:
            self._requests.end(file.path)
            if file.row is None:
                known.forget(file.path)
            else:
                known.put(file.row, kinds := frozenset(error.kind for error in file.errors if not error.is_warning))
                self._repeats.note_parsed(file.row, kinds, self.clock.now())
            self._log.stored(file, self.metrics)
            for path in file.changes.contested:
                self._requests.add(LookRequest(path, is_urgent=True, is_forced=True))
            texts_at_start = self._texts_at_start.pop(file.path, known.n_text_changes)
            for path in known.modules_changed_since(file.path, texts_at_start):
                self._requests.add(LookRequest(path, is_urgent=True))
