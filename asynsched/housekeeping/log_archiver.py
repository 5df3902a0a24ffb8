"""The log archiver: copies the logs of ended tries from the home to `log.store`, and then removes them from the home.

A local file goes only after the store has all of it, so a crash at any point costs nothing but a repetition. It stays
for some minutes first: two homes that copy their parts of one log at the same time may overwrite each other's, and each
then finds another size than it has noted, and copies its part again.

While the store is away, logs wait in the home. The archiver walks the home, because a log may change without any event:
a worker sends the rest of it, or a callback is called again. A walk takes at most a small part of the time.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.to_thread import run_sync

from asynsched.clock import Clock, jitter
from asynsched.errors import LogStoreUnavailable, StoreUnavailable
from asynsched.executors.log_archive import SCRATCH_PREFIX, TRANSFER_SECONDS, LogArchive
from asynsched.executors.log_paths import run_ids_of
from asynsched.executors.log_removal import remove_unwanted
from asynsched.executors.store_calls import StoreCalls
from asynsched.health import WaitingLogs
from asynsched.home import LOGS, TMP
from asynsched.housekeeping.home_logs import (
    QUIET,
    HomeLogs,
    LocalLog,
    RunLogs,
    Step,
    Writers,
    next_step,
    writers_of,
)
from asynsched.loggers import get_logger
from asynsched.service import Service
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.database import Database
from asynsched.store.runs.open_logs import open_logs
from asynsched.timers import has_come

log = get_logger(__name__)

INTERVAL = timedelta(seconds=5)
"""Time between two walks at least."""
SHARE = 50
"""The archiver rests this many times as long as a walk has taken."""
FIRST_BACKOFF = timedelta(seconds=5)
LONGEST_BACKOFF = timedelta(minutes=5)
BATCH_RUNS = 50
BATCH_NOTES = 20
AT_ONCE = 4
"""Logs that are copied at once; a step of the service copies no more."""
FINISH_SECONDS = 20.0
"""How long a stopping scheduler copies the logs that are left."""
OPEN_PAUSE = timedelta(milliseconds=100)
"""Time before a stopping scheduler tries again to store logs that a keeper still has open."""


class Work(NamedTuple):
    """A log, and what happens to it next."""

    run: RunLogs
    log: LocalLog
    step: Step


class LogArchiver(Service):
    """Copies logs to an archive. `keep`: how long a log stays in the home then."""

    name = "log archiver"

    def __init__(
        self, *, archive: LogArchive, keep: timedelta, database: Database, clock: Clock, home: Path, scheduler_id: str
    ) -> None:
        super().__init__(clock)
        self._archive = archive
        self._keep = keep
        self._database = database
        self._home = home
        self._logs = HomeLogs(home / LOGS)
        self._scheduler_id = scheduler_id
        self._calls = StoreCalls(self.pulse, clock, AT_ONCE)
        self._walk: AsyncIterator[None] | None = None
        self._began_at = 0.0
        self._next_at: datetime | None = None
        self._pause = timedelta()
        self._backoff = FIRST_BACKOFF
        self._is_last = False
        self._n_before = 0
        self._n_left = 0
        self._open: list[Work] = []
        """Logs that this walk could not store, because a process has them open."""
        self._problem = ""
        self._is_away = False
        self.problem = ""

    @property
    def waiting(self) -> WaitingLogs:
        """The logs that wait for the store, as far as they are known: those of the last walk, or of this one."""
        problem, seconds = self.problem, self._calls.oldest_seconds
        if seconds > TRANSFER_SECONDS:
            problem = f"log.store: {self._archive.url} has not answered for {seconds:.0f} s"
        return WaitingLogs(max(self._n_before, self._n_left), problem)

    async def tick(self, now: datetime) -> None:
        if self._walk is None and has_come(self._next_at, now, self._pause):
            self._begin(QUIET)
        if self._walk is not None and not await self._go_on():
            self._rest()
        self.due_at = self._next_at if self._walk is None else self.clock.now()

    async def finish(self) -> None:
        """Copy what is left when the scheduler stops: its machine may be replaced."""
        with anyio.move_on_after(FINISH_SECONDS):
            self._is_last = True
            try:
                await self._walk_until_closed()
            except StoreUnavailable as exc:
                self._problem = str(exc)
        if self._n_left:
            log.warning("logs.left_in_home", n_logs=self._n_left, home=str(self._home), reason=self._problem)

    async def _walk_until_closed(self) -> None:
        """Walk once, and store the logs that were open once they are closed.

        A try that has reported its end may write to its log for a moment.
        """
        self._begin(timedelta(0))
        while await self._go_on():
            pass
        while self._open:
            await self.clock.sleep(OPEN_PAUSE)
            works, self._open = self._open, []
            for first in range(0, len(works), AT_ONCE):
                await self._do(works[first : first + AT_ONCE])

    def _begin(self, quiet: timedelta) -> None:
        self._walk = self._steps(quiet)
        self._n_before = self._n_left
        self._began_at = self.clock.monotonic()
        self._n_left, self._open, self._problem, self._is_away = 0, [], "", False

    async def _go_on(self) -> bool:
        """Do a step of the walk. Returns whether there may be more."""
        # A walk that fails, because the database is away, begins again.
        walk, self._walk = self._walk, None
        assert walk is not None
        try:
            await anext(walk)
        except StopAsyncIteration:
            return False
        self._walk = walk
        return True

    def _rest(self) -> None:
        """Note how the walk has ended, and when the next one begins."""
        if self._problem and not self.problem:
            log.warning("logs.not_stored", n_logs=self._n_left, reason=self._problem, then="retrying")
        elif self.problem and not self._problem:
            log.info("logs.stored_again", store=self._archive.url)
        self.problem, self._n_before = self._problem, 0
        took = timedelta(seconds=self.clock.monotonic() - self._began_at)
        pause = max(INTERVAL, took * SHARE)
        if self._problem:
            pause = self._backoff + jitter(self._backoff)
            self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)
        else:
            self._backoff = FIRST_BACKOFF
        self._next_at, self._pause = self.clock.now() + pause, pause

    async def _steps(self, quiet: timedelta) -> AsyncIterator[None]:
        """Walk the home's logs: a batch at each step."""
        await run_sync(self._remove_scratch)
        # First: a run that is created again after a deletion must not find the logs of the old one.
        while await self._remove_unwanted():
            yield
        for dag_id in await self._database.read(all_dag_ids):
            folders = self._logs.runs_of(dag_id)
            while (found := await run_sync(partial(self._next_runs, folders))) is not None:
                work = await self._work_on(dag_id, found, quiet)
                self._n_left += sum(one.step == "store" for one in work)
                for first in range(0, len(work), AT_ONCE):
                    await self._do(work[first : first + AT_ONCE])
                    yield
                yield

    def _next_runs(self, folders: Iterator[str]) -> list[RunLogs] | None:
        """Return the logs of some runs; None at the end. What cannot be read is left out, and is the walk's problem."""
        found, n_folders = [], 0
        with self._told():
            for folder in islice(folders, BATCH_RUNS):
                n_folders += 1
                with self._told():
                    found.append(self._logs.of_run(folder))
        return found if n_folders else None

    def _remove_scratch(self) -> None:
        """Remove copies that a killed scheduler has left."""
        with self._told():
            for copy in (self._home / TMP).glob(f"{SCRATCH_PREFIX}*"):
                copy.unlink(missing_ok=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Make an error of the home's files the problem of the walk, which goes on."""
        try:
            yield
        except OSError as exc:
            self._problem = str(exc)

    async def _remove_unwanted(self) -> bool:
        """Remove the logs of deleted runs from the archive. Returns whether there may be more."""
        try:
            remove = partial(remove_unwanted, self._home, self._archive, at_most=BATCH_NOTES)
            return bool(await self._calls.call(remove))
        except (LogStoreUnavailable, OSError) as exc:
            # While a note is left, nothing is stored either: a run that is created again would lose its logs with it.
            self._problem, self._is_away = str(exc), True
            return False

    async def _work_on(self, dag_id: str, runs: list[RunLogs], quiet: timedelta) -> list[Work]:
        """Return the logs that are to be stored or removed."""
        now = self.clock.now()

        def work(writers: Writers | None) -> list[Work]:
            found = ((run, each) for run in runs for each in run.logs)
            steps = (self._work(run, each, writers, now, quiet) for run, each in found)
            return [one for one in steps if one.step in ("store", "remove")]

        # Most logs need no look at the database: they are stored, and stay for a time.
        if not await run_sync(lambda: work(None)):
            return []
        run_ids = run_ids_of(run.folder.rpartition("/")[2] for run in runs)
        found = await self._database.read(open_logs, dag_id, run_ids)
        return await run_sync(lambda: work(writers_of(dag_id, found, self._scheduler_id)))

    def _work(self, run: RunLogs, each: LocalLog, writers: Writers | None, now: datetime, quiet: timedelta) -> Work:
        """Return what happens to a log; `writers`: None if nothing is assumed to write to it."""
        is_open = writers is not None and writers.may_write(each.path)
        # What a stopped scheduler has interrupted may go on elsewhere, and its machine may be replaced.
        is_elsewhere = self._is_last or (writers is not None and run.folder in writers.elsewhere)
        step = next_step(
            each, run.stored.get(each.path), is_open=is_open, is_elsewhere=is_elsewhere, now=now, quiet=quiet,
            keep=self._keep,
        )  # fmt: skip
        if writers is not None and run.folder not in writers.known:
            step = "wait"  # the run was deleted, and its folder goes with it
        return Work(run, each, step)

    async def _do(self, works: list[Work]) -> None:
        if self._is_away:
            return
        async with anyio.create_task_group() as tasks:
            for one in works:
                tasks.start_soon(self._store if one.step == "store" else self._remove, one)

    async def _store(self, work: Work) -> None:
        now = self.clock.now()

        def store() -> bool:
            log = self._logs.look(work.log.path)  # it may have grown since the walk
            if self._logs.is_being_written(log.path):
                return False
            size = self._archive.put(log.path, self._logs.folder / log.path, self._home / TMP)
            if size is None:
                return False  # it goes on growing, and is stored once it is quiet again
            self._logs.note_stored(log, size, now)
            return True

        try:
            if await self._calls.call(store):
                self._n_left -= 1
            else:
                self._open.append(work)
        except FileNotFoundError:  # the run was deleted meanwhile
            self._n_left -= 1
        except (LogStoreUnavailable, OSError) as exc:
            await self._failed(exc)

    async def _remove(self, work: Work) -> None:
        stored = work.run.stored[work.log.path]

        def remove() -> None:
            # Somebody may have removed or changed the stored log. Then this file may be the only copy.
            if stored.n_stored is not None and self._archive.size(work.log.path) == stored.n_stored:
                self._logs.remove(work.log)
                return
            size = self._archive.put(work.log.path, self._logs.folder / work.log.path, self._home / TMP)
            if size is not None:
                self._logs.note_stored(work.log, size, stored.at)

        try:
            await self._calls.call(remove)
        except FileNotFoundError:
            pass  # the run was deleted meanwhile
        except (LogStoreUnavailable, OSError) as exc:
            await self._failed(exc)

    async def _failed(self, exc: Exception) -> None:
        """Note why a log could not be stored, and whether that is due to the store: then others need not try."""
        self._problem = str(exc)
        try:
            await self._calls.call(self._archive.check)
        except LogStoreUnavailable as again:
            self._problem, self._is_away = str(again), True
