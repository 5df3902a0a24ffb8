"""The retention sweep: deletes data that the settings no longer keep, in small batches.

It is one of the few parts that look at everything. So a scheduler sweeps only once an hour, and only data that a
setting limits. Several schedulers may sweep one database at once: each skips rows that another has locked.
"""

import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio.to_thread
from msgspec import Struct

from asynsched.clock import Clock
from asynsched.errors import LogStoreUnavailable
from asynsched.executors.log_archive import TRANSFER_SECONDS, LogArchive
from asynsched.executors.log_paths import DAG_PREFIX, RUN_PREFIX, folder_name, remove_folders, run_ids_of
from asynsched.executors.log_removal import remove_logs
from asynsched.executors.store_calls import StoreCalls
from asynsched.home import LOGS, SOURCES
from asynsched.loggers import get_logger
from asynsched.service import Service
from asynsched.settings import RetentionSettings
from asynsched.store.assets import delete_old_events
from asynsched.store.audit import delete_old_audit
from asynsched.store.changes import delete_old_changes
from asynsched.store.dags.dags import (
    all_dag_ids,
    delete_unused_sources,
    delete_unused_versions,
    has_unused_sources,
    unknown_sources,
)
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import newest_run_ids
from asynsched.store.runs.retention import (
    Bound,
    RunAge,
    delete_runs,
    delete_xcoms_of,
    old_runs,
    old_runs_with_xcoms,
    run_ages,
)
from asynsched.store.state_stores import delete_old_states
from asynsched.timers import has_come

SUPERSEDED_FOR = timedelta(hours=1)
"""Versions that were superseded more recently stay: a run that is being started may still get one."""


class RetentionPolicy(Struct, frozen=True):
    """Bounds and instants before which things are deleted. None keeps everything.

    Attributes:
        most_changes: How many of the newest changes are kept.
        task_states: For values without an end of their own; whatever it is, those that have expired are deleted.
        with_task_states: Whether to delete task states at all.
    """

    runs: Bound = Bound()
    xcoms: Bound = Bound()
    logs: Bound = Bound()
    asset_events: datetime | None = None
    audit: datetime | None = None
    versions: datetime | None = None
    changes: datetime | None = None
    most_changes: int | None = None
    task_states: datetime | None = None
    with_task_states: bool = True


def policy_of(settings: RetentionSettings, now: datetime) -> RetentionPolicy:
    """Return the policy of the settings at an instant; a 0 in the settings keeps everything."""

    def before(days: float) -> datetime | None:
        return now - timedelta(days=days) if days else None

    versions = before(settings.versions_days)
    return RetentionPolicy(
        runs=Bound(before(settings.runs_days), settings.runs_per_dag or None),
        xcoms=Bound(before(settings.xcoms_days), settings.xcoms_per_dag or None),
        logs=Bound(before(settings.logs_days), settings.logs_per_dag or None),
        asset_events=before(settings.asset_events_days),
        audit=before(settings.audit_days),
        versions=versions and min(versions, now - SUPERSEDED_FOR),
        changes=before(settings.changes_days),
        most_changes=settings.changes_number or None,
        task_states=before(settings.task_state_days),
    )


T = TypeVar("T")
log = get_logger(__name__)

PAUSE = timedelta(milliseconds=50)
"""Between two batches, so that others can write."""
BATCH_RUNS = 100
"""Runs that are read together; how many of them are deleted together depends on their rows."""

BATCH_FOLDERS = 200
BATCH_ARCHIVED = 20
"""Runs whose archived logs are removed in one step: each is a request to the store."""
STORE_SECONDS = 2 * TRANSFER_SECONDS
"""Longest that the store may take for a request."""
MOST_FAILURES = 3
"""After this many failed DAGs in a row the store itself is away, and the next sweep goes on."""
BATCH_FILES = 500
ORPHANED_AFTER = timedelta(days=1)
"""How long a folder is kept, after its last change, whose run is not stored."""
LEAST_AGE = timedelta(days=1)
"""A younger file may belong to a version that is being stored."""


class LogFolder(NamedTuple):
    """The logs of a run."""

    path: Path
    name: str
    written_at: datetime


Chore = Callable[[datetime], AsyncIterator[int]]
"""Deletes one kind of things, as of an instant: each step is a batch, and yields how many things it deleted."""


class Sweep:
    """One sweep: a batch at each step, until nothing is left to delete.

    About `batch_rows` rows are deleted in one transaction. `deleted` counts each kind.
    """

    def __init__(
        self,
        policy: RetentionPolicy,
        *,
        database: Database,
        home: Path,
        batch_rows: int,
        archive: LogArchive | None = None,
        calls: StoreCalls,
    ) -> None:
        self._policy = policy
        self._archive = archive
        self._calls = calls
        self._database = database
        self._home = home
        self._batch_rows = batch_rows
        self.deleted: Counter[str] = Counter()
        self._left: deque[tuple[str, Chore]] = deque(self._chores())
        self._batches: AsyncIterator[int] | None = None

    async def step(self, now: datetime) -> bool:
        """Delete a batch. Returns whether there may be more."""
        if self._left:
            kind, chore = self._left[0]
            # A chore that fails, because the database is away, begins again.
            batches, self._batches = self._batches or chore(now), None
            try:
                self.deleted[kind] += await anext(batches)
                self._batches = batches
            except StopAsyncIteration:
                self._left.popleft()
        return bool(self._left)

    def _chores(self) -> Iterator[tuple[str, Chore]]:
        policy = self._policy
        if not policy.runs.is_open:
            yield "runs", self._runs
        if not policy.xcoms.is_open:
            yield "xcoms", self._xcoms
        if policy.with_task_states:
            yield "task_states", self._task_states
        if not (policy.changes is None and policy.most_changes is None):
            yield "changes", partial(self._rows, delete_old_changes, before=policy.changes, most=policy.most_changes)
        if policy.asset_events is not None:
            yield "asset_events", partial(self._rows, delete_old_events, before=policy.asset_events)
        if policy.audit is not None:
            yield "audit", partial(self._rows, delete_old_audit, before=policy.audit)
        if policy.versions is not None:
            yield "versions", partial(self._rows, delete_unused_versions, before=policy.versions)
            yield "sources", self._sources
            yield "source_files", self._source_files
        if not (policy.logs.is_open and policy.runs.is_open):
            yield "logs", self._logs
        if self._archive is not None and not policy.logs.is_open:
            yield "archived_logs", partial(self._archived_logs, self._archive)

    async def _runs(self, _: datetime) -> AsyncIterator[int]:
        while found := await self._database.read(old_runs, self._policy.runs, limit=BATCH_RUNS):
            ids = [run.id for run in found]
            deleted = await self._database.write(delete_runs, ids, max_rows=self._batch_rows)
            remove = partial(remove_logs, are_archived=self._archive is not None)
            await anyio.to_thread.run_sync(remove, self._home, [run.key for run in deleted.runs])
            yield len(deleted.runs)
            if not deleted.n_rows:
                return

    async def _xcoms(self, _: datetime) -> AsyncIterator[int]:
        while found := await self._database.read(old_runs_with_xcoms, self._policy.xcoms, limit=BATCH_RUNS):
            ids = [run.id for run in found]
            n = await self._database.write(delete_xcoms_of, ids, max_rows=self._batch_rows)
            yield n
            if not n:
                return

    async def _rows(self, delete: Callable[..., int], _: datetime, **bounds: object) -> AsyncIterator[int]:
        n = self._batch_rows
        while n == self._batch_rows:
            n = await self._database.write(delete, **bounds, limit=self._batch_rows)
            yield n

    def _task_states(self, now: datetime) -> AsyncIterator[int]:
        return self._rows(delete_old_states, now, before=self._policy.task_states, now=now)

    async def _sources(self, _: datetime) -> AsyncIterator[int]:
        # Also sources of versions that an earlier sweep deleted before it was stopped.
        if await self._database.read(has_unused_sources):
            yield await self._database.write(delete_unused_sources)

    async def _source_files(self, now: datetime) -> AsyncIterator[int]:
        """Delete files that are named by the hash of their content, if no version needs them."""
        files = _files(self._home / SOURCES)
        while found := await anyio.to_thread.run_sync(lambda: list(islice(files, BATCH_FILES))):
            old = {path.stem: path for path, written_at in found if written_at < now - LEAST_AGE}
            gone = await self._database.read(unknown_sources, old) if old else []
            await anyio.to_thread.run_sync(_unlink, [old[content_hash] for content_hash in gone])
            yield 0  # they are copies: the sources themselves are counted

    async def _logs(self, now: datetime) -> AsyncIterator[int]:
        """Delete the logs of old runs. Folders of unknown DAGs stay."""
        bound, dag_ids = self._policy.logs, await self._database.read(all_dag_ids)
        for dag_id, folder in await anyio.to_thread.run_sync(_dag_folders, self._home / LOGS, dag_ids):
            folders = _run_folders(folder)
            newest: frozenset[str] | None = None
            while found := await anyio.to_thread.run_sync(lambda: list(islice(folders, BATCH_FOLDERS))):  # noqa: B023 - awaited here
                newest = await self._newest(dag_id) if newest is None else newest
                known = await self._known(dag_id, [each.name for each in found])
                going = [each for each in found if is_too_old(each, known.get(each.name), newest, bound, now)]
                await anyio.to_thread.run_sync(remove_folders, [each.path for each in going])
                yield len(going)

    async def _archived_logs(self, archive: LogArchive, now: datetime) -> AsyncIterator[int]:
        """Delete the archived logs of old runs. Folders of unknown runs stay: they may be another database's."""
        n_failed = 0
        for dag_id in await self._database.read(all_dag_ids):
            folder = f"{DAG_PREFIX}{folder_name(dag_id)}"
            try:
                names = await self._ask_store(partial(archive.run_folders, folder))
                newest = await self._newest(dag_id) if names else frozenset()
                for first in range(0, len(names), BATCH_ARCHIVED):
                    some = names[first : first + BATCH_ARCHIVED]
                    known = await self._known(dag_id, some)
                    going = [name for name in some if name in known and is_old(known[name], newest, self._policy.logs)]
                    for name in going:
                        await self._ask_store(partial(archive.remove_folder, f"{folder}/{name}"))
                    yield len(going)
            except LogStoreUnavailable as exc:
                log.warning("retention.logs_left_in_store", dag_id=dag_id, reason=str(exc), then="the next sweep")
                n_failed += 1
                if n_failed == MOST_FAILURES:
                    return
            else:
                n_failed = 0

    async def _ask_store(self, work: Callable[[], T]) -> T:
        """Return the result of a blocking call of the archive. Raises LogStoreUnavailable, also if it hangs."""
        try:
            with anyio.fail_after(STORE_SECONDS):
                return await self._calls.call(work)
        except TimeoutError:
            raise LogStoreUnavailable(f"log.store has not answered for {STORE_SECONDS:g} s") from None

    async def _newest(self, dag_id: str) -> frozenset[str]:
        """Return the run_ids of a DAG's newest runs, whose logs a number keeps."""
        limit = self._policy.logs.per_dag
        return frozenset(() if limit is None else await self._database.read(newest_run_ids, dag_id, limit=limit))

    async def _known(self, dag_id: str, names: list[str]) -> dict[str, RunAge]:
        """Return the runs whose logs are in folders with these names, by the names."""
        found = await self._database.read(run_ages, dag_id, run_ids_of(names))
        return {RUN_PREFIX + folder_name(run.run_id): run for run in found}


class RetentionSweeper(Service):
    """Sweeps at the start, and then once per interval."""

    name = "retention"

    def __init__(
        self,
        *,
        settings: RetentionSettings,
        database: Database,
        clock: Clock,
        home: Path,
        archive: LogArchive | None = None,
    ) -> None:
        super().__init__(clock)
        self._archive = archive
        self._calls = StoreCalls(self.pulse, clock, at_once=1)
        self._settings = settings
        self._database = database
        self._home = home
        self._sweep: Sweep | None = None
        self._next_sweep_at: datetime | None = None

    async def tick(self, now: datetime) -> None:
        interval = timedelta(seconds=self._settings.interval)
        if self._sweep is None and has_come(self._next_sweep_at, now, interval):
            policy = policy_of(self._settings, now)
            rows = self._settings.batch_rows
            self._sweep = Sweep(
                policy, database=self._database, home=self._home, batch_rows=rows, archive=self._archive,
                calls=self._calls,
            )  # fmt: skip
            self._next_sweep_at = now + interval
        if self._sweep is not None and not await self._sweep.step(now):
            found = {f"n_{kind}": n for kind, n in sorted(self._sweep.deleted.items()) if n}
            if found:
                log.info("retention.swept", **found)
            self._sweep = None
        self.due_at = self._next_sweep_at if self._sweep is None else self.clock.now() + PAUSE


def is_too_old(folder: LogFolder, run: RunAge | None, newest: frozenset[str], bound: Bound, now: datetime) -> bool:
    """Return whether the logs of a run are deleted.

    Args:
        folder: Has the logs.
        run: The run as it is stored; None if it is not.
        newest: The newest runs of its DAG, if `bound` has a number.
        bound: The runs to keep.
        now: The present instant.
    """
    if run is None:
        return folder.written_at < now - ORPHANED_AFTER
    return is_old(run, newest, bound)


def is_old(run: RunAge, newest: frozenset[str], bound: Bound) -> bool:
    """Return whether the logs of a stored run are beyond a bound; `newest`: the newest runs of its DAG."""
    if run.ended_at is None:
        return False
    if bound.before is not None and run.ended_at < bound.before:
        return True
    return bound.per_dag is not None and run.run_id not in newest


def _dag_folders(logs: Path, dag_ids: list[str]) -> list[tuple[str, Path]]:
    found = ((dag_id, logs / f"{DAG_PREFIX}{folder_name(dag_id)}") for dag_id in dag_ids)
    return [(dag_id, folder) for dag_id, folder in found if folder.is_dir()]


def _run_folders(folder: Path) -> Iterator[LogFolder]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(RUN_PREFIX) and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        yield LogFolder(Path(entry.path), entry.name, _written_at(entry))
    except FileNotFoundError:
        return


def _files(folder: Path) -> Iterator[tuple[Path, datetime]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # renamed meanwhile, or removed
                    yield Path(entry.path), _written_at(entry)


def _written_at(entry: "os.DirEntry[str]") -> datetime:
    return datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime).astimezone()


def _unlink(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
