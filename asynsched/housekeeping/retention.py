"""The retention sweep: deletes what is kept no longer, in small batches.

It is one of the few parts that look at everything, which is why a scheduler does so once an hour only, and only at what
a setting limits. Several may sweep one database at once: what one has locked the others leave alone.
"""

import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
import structlog
from msgspec import Struct

from asynsched.clock import Clock
from asynsched.executors.log_paths import DAG_PREFIX, RUN_PREFIX, folder_name, remove_logs, remove_tree
from asynsched.home import LOGS, SOURCES
from asynsched.service import Service
from asynsched.settings import RetentionSettings
from asynsched.store.assets.events import delete_old_events
from asynsched.store.audit import delete_old_audit
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.dags.versions import (
    delete_unused_sources,
    delete_unused_versions,
    has_unused_sources,
    unknown_sources,
)
from asynsched.store.database import Database
from asynsched.store.runs.retention import (
    Bound,
    RunAge,
    delete_runs,
    delete_xcoms_of,
    newest_run_ids,
    old_runs,
    old_runs_with_xcoms,
    run_ages,
)

SUPERSEDED_FOR = timedelta(hours=1)
"""Versions that were superseded later than this before now stay: a run that is being started may be given one."""


class RetentionPolicy(Struct, frozen=True):
    """What goes: what is beyond these bounds, and older than these instants. None keeps all of it."""

    runs: Bound = Bound()
    xcoms: Bound = Bound()
    logs: Bound = Bound()
    asset_events: datetime | None = None
    audit: datetime | None = None
    versions: datetime | None = None


def policy_of(settings: RetentionSettings, now: datetime) -> RetentionPolicy:
    """Return what the settings keep at an instant; a 0 in them keeps everything."""

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
    )


log = structlog.get_logger(__name__)

PAUSE = timedelta(milliseconds=50)
"""Between two batches: others write meanwhile."""
BATCH_RUNS = 100
"""Runs that are looked at together; how many of them are deleted together depends on their rows."""

Chore = Callable[[datetime], Awaitable[bool]]
"""Does one batch of its work, at an instant. Returns whether there may be more."""


class Sweep:
    """One sweep: a batch at each step, until nothing is left that is to go.

    Args:
        home: Where the logs and the laid out sources are.
        batch_rows: Rows that are deleted in one transaction, about.

    Attributes:
        deleted: How much of each kind has gone so far.
    """

    def __init__(self, policy: RetentionPolicy, *, database: Database, home: Path, batch_rows: int) -> None:
        self._policy = policy
        self._database = database
        self._home = home
        self._batch_rows = batch_rows
        self.deleted: Counter[str] = Counter()
        self._left: deque[Chore] = deque(self._chores())

    async def step(self, now: datetime) -> bool:
        """Delete a batch. Returns whether there may be more."""
        if self._left and not await self._left[0](now):
            self._left.popleft()
        return bool(self._left)

    def _chores(self) -> list[Chore]:
        policy, chores = self._policy, list[Chore]()
        if not policy.runs.is_open:
            chores.append(self._runs)
        if not policy.xcoms.is_open:
            chores.append(self._xcoms)
        if policy.asset_events is not None:
            chores.append(partial(self._rows, "asset_events", delete_old_events, policy.asset_events))
        if policy.audit is not None:
            chores.append(partial(self._rows, "audit", delete_old_audit, policy.audit))
        if policy.versions is not None:
            chores.append(partial(self._rows, "versions", delete_unused_versions, policy.versions))
            chores += [self._sources, SourceFiles(self._home / SOURCES, self._database).sweep]
        if not (policy.logs.is_open and policy.runs.is_open):
            chores.append(LogRetention(self._home, self._database, policy.logs, self.deleted).sweep)
        return chores

    async def _runs(self, now: datetime) -> bool:
        found = await self._database.read(old_runs, self._policy.runs, limit=BATCH_RUNS)
        if not found:
            return False
        ids = [run.id for run in found]
        deleted = await self._database.write(delete_runs, ids, max_rows=self._batch_rows)
        await anyio.to_thread.run_sync(remove_logs, self._home, [run.key for run in deleted.runs])
        self.deleted["runs"] += len(deleted.runs)
        return deleted.n_rows > 0

    async def _xcoms(self, now: datetime) -> bool:
        found = await self._database.read(old_runs_with_xcoms, self._policy.xcoms, limit=BATCH_RUNS)
        if not found:
            return False
        ids = [run.id for run in found]
        n = await self._database.write(delete_xcoms_of, ids, max_rows=self._batch_rows)
        self.deleted["xcoms"] += n
        return n > 0

    async def _rows(self, kind: str, delete: Callable[..., int], before: datetime, now: datetime) -> bool:
        n = await self._database.write(delete, before=before, limit=self._batch_rows)
        self.deleted[kind] += n
        return n == self._batch_rows

    async def _sources(self, now: datetime) -> bool:
        # Also those that an earlier sweep has left, which was stopped after it had deleted their versions.
        if await self._database.read(has_unused_sources):
            self.deleted["sources"] += await self._database.write(delete_unused_sources)
        return False


class RetentionSweeper(Service):
    """Sweeps at the start, and then once an interval."""

    name = "retention"

    def __init__(self, *, settings: RetentionSettings, database: Database, clock: Clock, home: Path) -> None:
        super().__init__(clock)
        self._settings = settings
        self._database = database
        self._home = home
        self._sweep: Sweep | None = None
        self._next_sweep_at: datetime | None = None

    async def tick(self, now: datetime) -> None:
        """Go on with the sweep that is under way, or begin the next one when it is due."""
        if self._sweep is None and (self._next_sweep_at is None or now >= self._next_sweep_at):
            policy = policy_of(self._settings, now)
            rows = self._settings.batch_rows
            self._sweep = Sweep(policy, database=self._database, home=self._home, batch_rows=rows)
            self._next_sweep_at = now + timedelta(seconds=self._settings.interval)
        if self._sweep is not None and not await self._sweep.step(now):
            found = {f"n_{kind}": n for kind, n in sorted(self._sweep.deleted.items()) if n}
            if found:
                log.info("retention.swept", **found)
            self._sweep = None
        self.due_at = self._next_sweep_at if self._sweep is None else self.clock.now() + PAUSE


BATCH_FOLDERS = 200
ORPHANED_AFTER = timedelta(days=1)
"""A folder whose run is not stored is left alone for so long after it was last written to."""


class LogFolder(NamedTuple):
    """The logs of a run."""

    path: Path
    name: str
    written_at: datetime


def is_too_old(folder: LogFolder, run: RunAge | None, newest: frozenset[str], bound: Bound, now: datetime) -> bool:
    """Return whether the logs of a run go.

    Args:
        run: The run, as it is stored; None when it is not.
        newest: The runs of its DAG whose logs are kept whatever their age, if `bound` has a number.
    """
    if run is None:
        return folder.written_at < now - ORPHANED_AFTER
    if run.ended_at is None:
        return False
    if bound.before is not None and run.ended_at < bound.before:
        return True
    return bound.per_dag is not None and run.run_id not in newest


class LogRetention:
    """One walk through the logs of a home.

    Args:
        deleted: Counts what goes.
    """

    def __init__(self, home: Path, database: Database, bound: Bound, deleted: Counter[str]) -> None:
        self._logs = home / LOGS
        self._database = database
        self._bound = bound
        self._deleted = deleted
        self._dags: Iterator[tuple[str, Path]] | None = None
        self._dag_id = ""
        self._folders: Iterator[LogFolder] = iter(())
        self._newest: frozenset[str] = frozenset()

    async def sweep(self, now: datetime) -> bool:
        """Look at some folders, and remove what goes. Returns whether there are more."""
        if self._dags is None:
            dag_ids = await self._database.read(all_dag_ids)
            self._dags = await anyio.to_thread.run_sync(self._dag_folders, dag_ids)
        folders = await anyio.to_thread.run_sync(self._next_folders)
        if not folders:
            return await self._next_dag(self._dags)
        known = {RUN_PREFIX + folder_name(run.run_id): run for run in await self._ages(folders)}
        going = [
            folder for folder in folders if is_too_old(folder, known.get(folder.name), self._newest, self._bound, now)
        ]
        await anyio.to_thread.run_sync(_remove, going)
        self._deleted["logs"] += len(going)
        return True

    async def _next_dag(self, dags: Iterator[tuple[str, Path]]) -> bool:
        found = next(dags, None)
        if found is None:
            return False
        self._dag_id, folder = found
        self._folders = _run_folders(folder)
        self._newest = frozenset()
        if self._bound.per_dag is not None:
            ids = await self._database.read(newest_run_ids, self._dag_id, limit=self._bound.per_dag)
            self._newest = frozenset(ids)
        return True

    async def _ages(self, folders: list[LogFolder]) -> list[RunAge]:
        """Return the runs that the folders are of, as far as they are stored."""
        ids = [folder.name.removeprefix(RUN_PREFIX) for folder in folders]
        # A folder whose name is not the run's own, because that is too long or strange, may be any run's of the DAG.
        if any(folder_name(run_id) != run_id for run_id in ids):
            return await self._database.read(run_ages, self._dag_id, None)
        return await self._database.read(run_ages, self._dag_id, ids)

    def _dag_folders(self, dag_ids: list[str]) -> Iterator[tuple[str, Path]]:
        """Return the folders of known DAGs; of others nothing is known, and they stay."""
        found = ((dag_id, self._logs / f"{DAG_PREFIX}{folder_name(dag_id)}") for dag_id in dag_ids)
        return iter([(dag_id, folder) for dag_id, folder in found if folder.is_dir()])

    def _next_folders(self) -> list[LogFolder]:
        return list(islice(self._folders, BATCH_FOLDERS))


def _run_folders(folder: Path) -> Iterator[LogFolder]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(RUN_PREFIX) and entry.is_dir(follow_symlinks=False):
                    written_at = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime).astimezone()
                    yield LogFolder(Path(entry.path), entry.name, written_at)
    except FileNotFoundError:
        return


def _remove(folders: list[LogFolder]) -> None:
    for folder in folders:
        remove_tree(folder.path)


BATCH_FILES = 500
LEAST_AGE = timedelta(days=1)
"""A file that was written lately may be of a version that is being stored."""


class SourceFiles:
    """One walk through the folder of sources: files that are named by their content's hash."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._database = database
        self._files = _files(folder)

    async def sweep(self, now: datetime) -> bool:
        """Look at some files, and remove those whose text no version needs. Returns whether there are more."""
        found = await anyio.to_thread.run_sync(lambda: list(islice(self._files, BATCH_FILES)))
        old = {path.stem: path for path, written_at in found if written_at < now - LEAST_AGE}
        if old:
            gone = await self._database.read(unknown_sources, old)
            await anyio.to_thread.run_sync(_remove_of_source_files, [old[content_hash] for content_hash in gone])
        return bool(found)


def _files(folder: Path) -> Iterator[tuple[Path, datetime]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path), datetime.fromtimestamp(entry.stat().st_mtime).astimezone()


def _remove_of_source_files(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
